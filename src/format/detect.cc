#include "format/detect.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/error.h"

namespace penstock {
namespace {

using namespace std::string_view_literals;

// A format that can be read and written: later ones are added here.
struct Format {
  std::string_view name;
  std::string_view suffix;
  bool (*looks_like)(const ByteSource&);
  Layout (*parse)(const ByteSource&);
  FilePlan (*encode)(std::span<const TensorSpec>, const Metadata&, const EncodeOptions&);
};

FilePlan encode_safetensors(std::span<const TensorSpec> specs, const Metadata& metadata, const EncodeOptions& options) {
  return safetensors::encode(specs, metadata, options.safetensors_empty_metadata);
}

FilePlan encode_flashpack(std::span<const TensorSpec> specs, const Metadata& metadata, const EncodeOptions& options) {
  return flashpack::encode(specs, metadata, options.flashpack);
}

FilePlan encode_torch(std::span<const TensorSpec> specs, const Metadata&, const EncodeOptions& options) {
  return torch::encode_zip(specs, options.torch, options.checksums);
}

FilePlan encode_torch_legacy(std::span<const TensorSpec> specs, const Metadata&, const EncodeOptions& options) {
  return torch::encode_legacy(specs, options.torch);
}

// A footer's mark is surer than a header that starts with '{': FlashPack is asked first.
constexpr std::array kFormats = {
    Format{"flashpack", ".flashpack", flashpack::looks_like, flashpack::parse, encode_flashpack},
    Format{torch::kZipFormat, ".pt", torch::looks_like_zip, torch::parse_zip, encode_torch},
    Format{torch::kLegacyFormat, ".legacy.pt", torch::looks_like_legacy, torch::parse_legacy, encode_torch_legacy},
    Format{"safetensors", ".safetensors", safetensors::looks_like, safetensors::parse, encode_safetensors},
};
constexpr std::array kDataSuffixes = {".safetensors"sv, ".flashpack"sv};

// What people hand over instead, by its first bytes.
struct Stranger {
  std::string_view magic;
  std::string_view what;
};
constexpr std::array kStrangers = {
    Stranger{"\x80\x02"sv, "a Python pickle"},
    Stranger{"\x80\x03"sv, "a Python pickle"},
    Stranger{"\x80\x04\x95"sv, "a Python pickle"},
    Stranger{"\x80\x05\x95"sv, "a Python pickle"},
    Stranger{"GGUF"sv, "a GGUF file"},
    Stranger{"\x89HDF\r\n\x1a\n"sv, "an HDF5 file"},
    Stranger{"\x93NUMPY"sv, "a NumPy array"},
    Stranger{"version https://git-lfs"sv, "a Git LFS pointer, not the file it stands for"},
    Stranger{"<!DOCTYPE html"sv, "an HTML page"},
    Stranger{"<!doctype html"sv, "an HTML page"},
    Stranger{"<html"sv, "an HTML page"},
    Stranger{"<HTML"sv, "an HTML page"},
    Stranger{"<?xml"sv, "an XML document"},
    Stranger{"\x1f\x8b"sv, "a gzip archive"},
    Stranger{"\x28\xb5\x2f\xfd"sv, "a zstd archive"},
    Stranger{"{"sv, "JSON text"},
};

constexpr std::size_t kHeadBytes = 32;

std::string read_text(const ByteSource& source, std::uint64_t offset, std::size_t length) {
  std::string text(length, '\0');
  source.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

std::string hex_text(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes)
    text += fmt::format("{}{:02x}", text.empty() ? "" : " ", static_cast<unsigned char>(byte));
  return text;
}

std::string known_formats() {
  std::string names;
  for (const Format& format : kFormats) names += fmt::format("{}{}", names.empty() ? "" : ", ", format.name);
  return names;
}

[[noreturn]] void refuse(const ByteSource& source, std::string_view what) {
  throw_format(source.path(), "this is {}, which this version can't read (it reads {})", what, known_formats());
}

bool is_tar(const ByteSource& source) {
  constexpr std::uint64_t kMarkAt = 257;
  constexpr std::string_view kMark = "ustar";
  return source.size() >= kMarkAt + kMark.size() && read_text(source, kMarkAt, kMark.size()) == kMark;
}

[[noreturn]] void refuse_stranger(const ByteSource& source) {
  const std::uint64_t size = source.size();
  if (size == 0) throw_format(source.path(), "the file is empty");
  const std::string head = read_text(source, 0, std::min<std::uint64_t>(size, kHeadBytes));
  if (is_tar(source)) refuse(source, "a tar archive, as torch.save made before 2018");
  for (const Stranger& stranger : kStrangers) {
    if (head.starts_with(stranger.magic)) refuse(source, stranger.what);
  }
  throw_format(source.path(), "not a format that this version reads ({}): the {} bytes start with {}", known_formats(),
               size, hex_text(std::string_view(head).substr(0, 16)));
}

}  // namespace

Layout parse_layout(const ByteSource& source) {
  for (const Format& format : kFormats) {
    if (format.looks_like(source)) return format.parse(source);
  }
  refuse_stranger(source);
}

std::string_view format_by_bytes(const ByteSource& source) {
  for (const Format& format : kFormats) {
    if (format.looks_like(source)) return format.name;
  }
  return {};
}

std::string_view format_by_suffix(std::string_view path) noexcept {
  if (path.ends_with(".pth") || path.ends_with(".bin")) return torch::kZipFormat;
  for (const Format& format : kFormats) {
    if (path.ends_with(format.suffix)) return format.name;
  }
  return {};
}

std::string format_for_save(std::string_view requested, std::string_view path) {
  if (requested.empty()) {
    const std::string_view format = format_by_suffix(path);
    if (!format.empty()) return std::string(format);
    throw_argument("{}: no format was named, and the suffix stands for none that this version writes ({})", path,
                   known_formats());
  }
  for (const Format& format : kFormats) {
    if (requested == format.name) return std::string(format.name);
  }
  throw_argument("the format {} is not one that this version writes ({})", in_quotes(requested), known_formats());
}

FilePlan encode_layout(std::string_view format, std::span<const TensorSpec> specs, const Metadata& metadata,
                       const EncodeOptions& options) {
  for (const Format& known : kFormats) {
    if (known.name == format) return known.encode(specs, metadata, options);
  }
  throw_argument("the format {} is not one that this version writes ({})", in_quotes(format), known_formats());
}

bool has_own_checksums(std::string_view format) noexcept {
  return format == torch::kZipFormat;
}

bool has_metadata(std::string_view format) noexcept {
  return !has_pickle(format);
}

bool has_pickle(std::string_view format) noexcept {
  return format == torch::kZipFormat || format == torch::kLegacyFormat;
}

bool is_replaced_when_saved(std::string_view format) noexcept {
  return !has_pickle(format);
}

std::span<const std::string_view> data_suffixes() noexcept {
  return kDataSuffixes;
}

}  // namespace penstock
