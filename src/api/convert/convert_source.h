// What conversions have in common: where the bytes of a view come from, and what a target may not be.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/convert.h"
#include "penstock/reader.h"
#include "penstock/writer.h"

namespace penstock {

// Produces a view, whose elements are apart in the file, out of what `load` returns: all of it, row-major. It is loaded
// when the first of its bytes is wanted, and kept until as many were as it has. A save may want some twice, for a
// checksum and for the file: then it is loaded again.
FillFunction make_view_fill(std::function<Tensor()> load);

// What tensors are called in the target, by ConvertOptions::rename.
class TargetNames {
 public:
  TargetNames(const ConvertOptions& options, const std::filesystem::path& target)
      : options_(options), target_(target) {}

  // Throws Error(kArgument) when another tensor was given this name before.
  std::string take(const std::string& name);

 private:
  const ConvertOptions& options_;
  const std::filesystem::path& target_;
  std::map<std::string, std::string> taken_;  // by the name in the target: the name in the source
};

// Saves what `writer` was given out of `sources`. A conversion never replaces what it reads, nor anything else unless
// it was asked to. `check_sources` is called when everything was read and nothing has appeared; it may throw.
Stats save_conversion(Writer& writer, std::span<const std::filesystem::path> sources, bool overwrite,
                      const std::function<void()>& check_sources);

// The files of FastPersist that `sources` name, by rank: some of PATH-0.N ... PATH-N-1.N; PATH itself, where that is no
// file; or a directory with nothing else that could be converted. Empty when they name something else. Throws Error
// that names the fragment for one that is missing, there twice, or of another save.
std::vector<std::filesystem::path> find_fragments(std::span<const std::filesystem::path> sources);

// Joins fragments, by rank, to one file.
ConvertStats merge_fragments(const std::vector<std::filesystem::path>& fragments, const std::filesystem::path& target,
                             const ConvertOptions& options);

// Joins the chunks that dcp.json, or torch's `.metadata`, describes (see find_chunks) to whole tensors of one file.
ConvertStats merge_chunks(const std::filesystem::path& description, const std::filesystem::path& target,
                          const ConvertOptions& options);

// What they would have.
std::vector<TensorInfo> chunked_tensors(const std::filesystem::path& description);
std::vector<TensorInfo> fragmented_tensors(const std::vector<std::filesystem::path>& fragments);

// The name that SaveOptions::format has for a directory of torch.distributed.checkpoint, and what makes one.
inline constexpr std::string_view kChunksFormat = "dcp";
ConvertStats make_chunks(std::span<const std::filesystem::path> sources, const std::filesystem::path& target,
                         const ConvertOptions& options);

}  // namespace penstock
