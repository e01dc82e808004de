// Temporary directories, files and bytes for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/engine.h"

namespace penstock::testing {

// A directory of its own, removed with all that is in it.
class TempDir {
 public:
  TempDir();
  // In a directory of the caller's choosing, for tests of a filesystem.
  explicit TempDir(const std::filesystem::path& parent);
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  // Names of all that is in it, hidden ones too, sorted.
  std::vector<std::string> names() const;

 private:
  std::filesystem::path path_;
};

// The same bytes for the same seed.
std::vector<std::byte> random_bytes(std::size_t count, std::uint32_t seed = 1);

void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_file(const std::filesystem::path& path, std::string_view text);
std::vector<std::byte> read_file(const std::filesystem::path& path);
// Changes one bit of the byte at `offset`.
void flip_bit(const std::filesystem::path& path, std::uint64_t offset);

// A safetensors file by hand: the header's text, with its length in front, and the data.
void write_safetensors(const std::filesystem::path& path, std::string_view header, std::span<const std::byte> data);

// Descriptors that this process has open.
std::size_t open_descriptors();

// The backends that this machine has, with the names that tests show.
struct NamedFactory {
  std::string name;
  EngineFactory make;
};
std::vector<NamedFactory> all_backends();
inline void PrintTo(const NamedFactory& factory, std::ostream* out) {
  *out << factory.name;
}

// Has the page cache hold this part of a file, and what shares a page with it, but no more.
void fill_page_cache(const std::filesystem::path& path, std::uint64_t offset, std::uint64_t nbytes);

}  // namespace penstock::testing
