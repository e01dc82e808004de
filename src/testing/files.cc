#include "testing/files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <stdexcept>

#include "base/unique_fd.h"

namespace penstock::testing {

namespace fs = std::filesystem;

TempDir::TempDir() : TempDir(fs::temp_directory_path()) {}

TempDir::TempDir(const fs::path& parent) {
  std::string pattern = (parent / "penstock-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr)
    throw std::runtime_error("cannot make a temporary directory in " + parent.string());
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  fs::permissions(path_, fs::perms::owner_all, ignored);
  fs::remove_all(path_, ignored);
}

std::vector<std::string> TempDir::names() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path_)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::byte> random_bytes(std::size_t count, std::uint32_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() >> 32);
  return bytes;
}

void write_file(const fs::path& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

void write_file(const fs::path& path, std::string_view text) {
  write_file(path, std::as_bytes(std::span(text)));
}

std::vector<std::byte> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  // In one piece: byte by byte, under a sanitizer, it took longer than what the tests are about.
  std::vector<std::byte> bytes(static_cast<std::size_t>(fs::file_size(path)));
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return bytes;
}

void flip_bit(const std::filesystem::path& path, std::uint64_t offset) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 4));
}

void write_safetensors(const fs::path& path, std::string_view header, std::span<const std::byte> data) {
  std::string text(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(header.size() >> (8 * i));
  text += header;
  text.append(reinterpret_cast<const char*>(data.data()), data.size());
  write_file(path, text);
}

std::size_t open_descriptors() {
  const fs::directory_iterator listing("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(fs::begin(listing), fs::end(listing)));
}

std::vector<NamedFactory> all_backends() {
  std::vector<NamedFactory> backends;
  if (uring_is_available()) {
    backends.push_back({"uring", make_uring_engine});
  } else {
    std::cerr << "io_uring is not available to this process: its tests are skipped\n";
  }
  backends.push_back({"threads", make_threads_engine});
  backends.push_back({"inline", [](unsigned) { return make_inline_engine(); }});
  return backends;
}

void fill_page_cache(const std::filesystem::path& path, std::uint64_t offset, std::uint64_t nbytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM);  // nothing ahead
  std::vector<std::byte> bytes(nbytes);
  if (::pread(fd.get(), bytes.data(), nbytes, static_cast<off_t>(offset)) != static_cast<ssize_t>(nbytes))
    throw std::runtime_error("cannot read " + path.string());
}

}  // namespace penstock::testing
