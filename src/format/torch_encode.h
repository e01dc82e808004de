// Writing torch files: where each storage goes, and what lies between them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "format/layout.h"
#include "penstock/options.h"

namespace penstock::torch {

// What the caller chose, and what follows from the file that is made.
struct EncodeOptions : TorchOptions {
  std::string folder = "archive";  // of the zip's records
  // Legacy, with `pickle`: the keys under which the object knows the storages, in the order of the specs.
  std::vector<std::string> keys;
};

// A zip. `checksums`: the CRC-32 of each spec, in their order, once they are known; before, all zeros. A file with and
// one without differ in nothing but those values.
FilePlan encode_zip(std::span<const TensorSpec> specs, const EncodeOptions& options,
                    std::span<const std::uint32_t> checksums);

FilePlan encode_legacy(std::span<const TensorSpec> specs, const EncodeOptions& options);

}  // namespace penstock::torch
