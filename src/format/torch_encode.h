// Writing torch files: where each storage goes, and what lies between them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "format/layout.h"

namespace penstock::torch {

struct EncodeOptions {
  std::string folder = "archive";     // of the zip's records
  std::optional<std::string> pickle;  // of the object, whose storages the specs are; nothing: that of a flat state dict
  bool checksums = true;              // of a zip's records; without, zeros everywhere
  std::uint64_t alignment = 0;  // of a zip's records; 0: 4096 for large storages, else 64, which is what torch has
  // Legacy, with `pickle`: the keys under which the object knows the storages, in the order of the specs.
  std::vector<std::string> keys;
  // The same: the pickles before it and behind it, the latter the sorted list of keys; nothing: those of protocol 2.
  std::optional<std::pair<std::string, std::string>> around_pickle;
};

// A zip. `checksums`: the CRC-32 of each spec, in their order, once they are known; before, all zeros. A file with and
// one without differ in nothing but those values.
FilePlan encode_zip(std::span<const TensorSpec> specs, const EncodeOptions& options,
                    std::span<const std::uint32_t> checksums);

FilePlan encode_legacy(std::span<const TensorSpec> specs, const EncodeOptions& options);

}  // namespace penstock::torch
