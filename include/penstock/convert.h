// Whole-file operations: convert a checkpoint to another layout, format or dtype, and check one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/export.h"
#include "penstock/options.h"
#include "penstock/reader.h"

namespace PENSTOCK_EXPORT penstock {

struct ConvertOptions {
  std::function<bool(const TensorInfo&)> select;  // nothing: every tensor
  std::optional<DType> dtype;                     // for floating tensors
  // The name in the target of a tensor that was selected, given that in the source; nothing: the same. Two tensors that
  // would have one name are refused.
  std::function<std::string(std::string_view name)> rename;
  bool keep_metadata = true;
  bool overwrite = false;  // replace an existing target
  // Check the source as it is read, so that damage does not get new, right checksums. kAny: against its seal or its own
  // checksums, where it has some. Fragments of FastPersist have none.
  Verify verify = Verify::kAny;
  SaveOptions save;  // format, sharding, checksums, durability; its metadata is added
};

// What a conversion did.
struct ConvertStats : Stats {
  std::vector<std::string> notes;  // what the target can't hold and is left out, or holds in another form; a line each
};

// Copies `source` (as Reader takes it) to `target` in a stream, whatever the size, in bounded memory. The source is
// never changed: a target that is one of its files is refused.
//
// Tensors are converted, and metadata where the target's format has a place for it. What else a source holds (values of
// a torch file that are no tensors, tensors that share their bytes, checksums) is told in the notes. A dtype that the
// target's format lacks is an error.
//
// The fragments PATH-0.N, PATH-1.N ... that DeepSpeed's FastPersist leaves of a torch file are joined: name all of
// them, or PATH, or their directory. With no format named, or "torch-legacy", and every tensor as it is, the target is
// the file that they are parts of, with the object as it was saved; else the tensors are converted as any file's.
//
// A directory of torch.distributed.checkpoint is joined too: the chunks that ranks wrote of each tensor, by what
// dcp.json of penstock.dcp says of them, or torch's `.metadata`, a pickle, which is read as data. What is no tensor
// there is told in the notes. With SaveOptions::format "dcp" the target is such a directory, as penstock.dcp writes it:
// safetensors files with checksums, an index and dcp.json, which appear by one rename. Every tensor is one chunk.
ConvertStats convert(const std::filesystem::path& source, const std::filesystem::path& target,
                     const ConvertOptions& options = {});

// The same of several files.
ConvertStats convert(std::span<const std::filesystem::path> sources, const std::filesystem::path& target,
                     const ConvertOptions& options = {});

// The tensors that convert() would copy, joined where it joins them; `file` and `offset` mean something only where
// these are tensors of a Reader.
std::vector<TensorInfo> source_tensors(std::span<const std::filesystem::path> sources);

struct VerifyOptions {
  bool finite = false;              // also look for NaN and infinities in floating tensors
  Verify checksums = Verify::kAny;  // what to check the bytes against, where it is there
  bool compute = false;  // compute a CRC-32C of every tensor for the report, also where the file carries none
  IoOptions io;
  ProgressFunction progress;
};

struct VerifiedTensor {
  std::string name;
  std::optional<std::uint32_t> crc32c;           // as computed, when anything asked for it
  std::optional<std::uint32_t> expected_crc32c;  // as the file says
  std::uint64_t not_finite = 0;                  // elements that are NaN or infinite
  bool ok = true;
};

struct VerifyReport {
  bool ok = true;
  std::uint64_t bytes = 0;  // of tensor data in the files
  std::uint64_t bytes_read = 0;
  bool had_checksums = false;
  std::string against;  // what the files were checked against: "seal", "stored", "sha256"; several with commas
  std::vector<VerifiedTensor> tensors;  // in the reader's order
  std::vector<std::string> problems;    // one line each
  std::vector<OpaqueValue> opaque;      // what of a torch checkpoint is no data; tensors in it were checked
  double seconds = 0;
};

// Opening checks the structure (a broken one throws, as Reader does); this reads the data where an option asks for it.
VerifyReport verify(const std::filesystem::path& path, const VerifyOptions& options = {});

}  // namespace penstock
