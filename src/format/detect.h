// Which format a file is in, by its bytes; which a new file should be in, by its suffix; and the table of all formats.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "format/flashpack.h"
#include "format/layout.h"
#include "format/safetensors.h"
#include "format/torch_encode.h"
#include "format/torch_file.h"

namespace penstock {

// Detects the format and parses the file. Throws Error(kFormat) that says what the bytes look like when no format fits
// (an empty file, a pickle, a zip, HTML, a Git LFS pointer ...).
Layout parse_layout(const ByteSource& source);

// The name of the format that the bytes look like, and of the one that a path's suffix stands for; empty: none.
std::string_view format_by_bytes(const ByteSource& source);
std::string_view format_by_suffix(std::string_view path) noexcept;

// The format for a new file: `requested` if not empty, else by the suffix of `path`. Throws Error(kArgument).
std::string format_for_save(std::string_view requested, std::string_view path);

// What each format lets a writer choose.
struct EncodeOptions {
  bool safetensors_empty_metadata = false;
  FlashPackOptions flashpack;
  torch::EncodeOptions torch;
  std::span<const std::uint32_t> checksums;  // of the specs, for a format that has them in its structure
};

// True when encode_layout() wants the CRC-32 of every tensor.
bool has_own_checksums(std::string_view format) noexcept;

// Lays out a file of `format`, which is one that format_for_save() returned.
FilePlan encode_layout(std::string_view format, std::span<const TensorSpec> specs, const Metadata& metadata,
                       const EncodeOptions& options);

// The files that metadata can be stored in.
bool has_metadata(std::string_view format) noexcept;

// Whether a pickle says what is in a file of this format.
bool has_pickle(std::string_view format) noexcept;

// Whether the libraries of a format save by writing another file and renaming it. torch.save rewrites the file in
// place, under whoever has it mapped.
bool is_replaced_when_saved(std::string_view format) noexcept;

// The suffixes of checkpoint files, in the order in which a directory is searched for them.
std::span<const std::string_view> data_suffixes() noexcept;

}  // namespace penstock
