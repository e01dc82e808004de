// Proofs: what each file of a reader can be checked against, and which of these a load uses.
//
//   a seal    beside the file: every bit of it, or of the wanted tensors alone
//   stored    checksums inside the file: a CRC-32C per tensor in the metadata of safetensors and FlashPack, a CRC-32
//   per
//             record of a torch zip
//   a digest  of the whole file: the name of its blob in the Hugging Face cache, or a seal's SHA-256
//
// The first of these that is there is used, unless the caller insists on one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/files/reader_state.h"
#include "format/seal.h"
#include "format/zip.h"

namespace penstock {

// What the files of a reader say, read once.
struct StoredChecksums {
  explicit StoredChecksums(const Reader::State& state);

  std::vector<std::optional<std::uint32_t>> tensors;  // CRC-32C, by number
  std::vector<std::vector<zip::Record>> records;      // of each file: those with a CRC-32, by offset
  std::vector<bool> any;                              // of each file: whether it has some
};

// A seal that was found, and fits its file's size.
struct FoundSeal {
  Seal seal;
  std::string path;
  std::int64_t modified_nanoseconds = 0;
};

// Nothing where none lies beside the file. Throws Error for one that can't be read, and Error(kFormat) that says so
// where the file has another size than when it was sealed.
std::shared_ptr<const FoundSeal> find_seal(const File& file);

// For messages about a file that is not what was sealed: "; it was written to after that: ..." where that is so.
std::string changed_hint(const File& file, const FoundSeal& seal);

// What a whole file hashes to.
struct Digest {
  enum class Kind : std::uint8_t { kSha256, kGitBlob };  // git: SHA-1 of "blob SIZE\0" and the file
  Kind kind = Kind::kSha256;
  std::string hex;
  std::string origin;  // for messages: "its seal says"
};

// A snapshot of the Hugging Face cache is a link to "../../blobs/HEX".
std::optional<Digest> find_blob_name(const std::filesystem::path& path);

enum class Against : std::uint8_t { kNothing, kSeal, kStored, kDigest };
std::string_view to_text(Against against) noexcept;

struct FileProof {
  Against against = Against::kNothing;
  std::shared_ptr<const FoundSeal> seal;
  std::optional<Digest> digest;
};

struct Proofs {
  Proofs(const Reader::State& state, Verify wanted);

  Verify wanted;
  StoredChecksums stored;
  std::vector<FileProof> files;    // what is unpacked has that of the file it comes from
  std::vector<FileProof> indexes;  // of Reader::State::indexes; stored checksums cover none

  // Throws Error(kFormat), with what to do about it, for a file that there is nothing to check against.
  [[noreturn]] void refuse(const File& file) const;
};

}  // namespace penstock
