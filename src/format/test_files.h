// For the tests of the formats: files made of a header's text and some data, and what parsing them says.
#pragma once

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "format/flashpack.h"
#include "format/flashpack_tail.h"
#include "format/memory_source.h"
#include "format/safetensors.h"

namespace penstock::test {

// Eight bytes, the lowest first.
inline std::string u64le(std::uint64_t value) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

// `u64le length | text | data`.
inline std::string safetensors_file(std::string_view header, std::string_view data = {}) {
  std::string file = u64le(header.size());
  file += header;
  file += data;
  return file;
}

inline Layout parse_safetensors(const std::string& file) {
  return safetensors::parse(MemorySource(file, "f"));
}

// `payload | text | u64le length | mark`.
inline std::string flashpack_file(std::string_view footer, std::string_view payload = {}) {
  std::string file(payload);
  file += footer;
  file += u64le(footer.size());
  file += flashpack::kMagic;
  return file;
}

inline flashpack::Footer parse_flashpack(const std::string& file) {
  return flashpack::parse_footer(MemorySource(file, "f"));
}

// A spec of the right size.
inline TensorSpec make_spec(std::string name, DType dtype, Shape shape) {
  const std::uint64_t nbytes = tensor_nbytes(dtype, shape, "spec", name);
  return {std::move(name), dtype, std::move(shape), nbytes};
}

// The message of the Error(kFormat) that `action` throws, or "no error".
template <typename Action>
std::string format_error(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kFormat ? error.what() : std::string("another kind: ") + error.what();
  }
  return "no error";
}

// The same for Error(kUnsupportedFormat).
template <typename Action>
std::string unsupported_error(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kUnsupportedFormat ? error.what() : std::string("another kind: ") + error.what();
  }
  return "no error";
}

// The same for Error(kArgument).
template <typename Action>
std::string argument_error(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kArgument ? error.what() : std::string("another kind: ") + error.what();
  }
  return "no error";
}

// A file of tests/data.
inline std::string golden_file(const std::string& name) {
  std::ifstream stream(std::string(PENSTOCK_TEST_DATA) + "/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace penstock::test
