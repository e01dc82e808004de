// Files that the caller lays out and that appear together.
#include "penstock/file_set.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <string>

#include "api/save/file_set_state.h"
#include "base/bytes.h"
#include "penstock/reader.h"
#include "testing/device_tensors.h"
#include "testing/errors.h"
#include "testing/files.h"
#include "testing/simulated_context.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TempDir;

// The header of a file of one U8 tensor.
std::string header_of(const std::string& name, std::size_t nbytes) {
  const std::string count = std::to_string(nbytes);
  std::string text =
      R"({")" + name + R"(":{"dtype":"U8","shape":[)" + count + R"(],"data_offsets":[0,)" + count + "]}}";
  text.resize(align_up(text.size(), 8), ' ');
  std::string length(8, '\0');
  const std::uint64_t size = text.size();
  std::memcpy(length.data(), &size, 8);
  return length + text;
}

FileSetFile file_of(const fs::path& path, const std::string& name, std::size_t nbytes) {
  FileSetFile file{path, header_of(name, nbytes), 0, {}};
  file.tensors.push_back({name, file.header.size(), nbytes});
  file.size = file.header.size() + nbytes;
  return file;
}

// A checkpoint of `count` files with a tensor each, all of whose bytes are `value`; the last file is empty.
struct Content {
  int value = 1;
  int count = 3;
  std::size_t nbytes = 5000;
};

std::vector<FileSetFile> files_of(const fs::path& directory, const Content& content) {
  std::vector<FileSetFile> files;
  const std::string of = "-of-0000" + std::to_string(content.count + 1) + ".safetensors";
  for (int i = 0; i < content.count; ++i) {
    const std::string number = std::to_string(i);
    files.push_back(file_of(directory / ("model-0000" + std::to_string(i + 1) + of), "t" + number, content.nbytes));
  }
  const std::string nothing = std::string("\x02\0\0\0\0\0\0\0{}", 10);
  files.push_back({directory / ("model-0000" + std::to_string(content.count + 1) + of), nothing, 10, {}});
  return files;
}

FileSet make_set(const fs::path& directory, const Content& content, const std::vector<std::byte>& bytes,
                 SaveOptions options = {}, std::uint64_t min_free = 0) {
  Writer writer(directory / "model.safetensors", options);
  for (int i = 0; i < content.count; ++i) {
    writer.add("t" + std::to_string(i), DType::kU8, {static_cast<std::int64_t>(content.nbytes)}, bytes.data());
  }
  return FileSet(std::move(writer), files_of(directory, content), min_free);
}

std::vector<fs::path> save(const fs::path& directory, const Content& content,
                           const std::function<void(std::string_view)>& after_step = {}) {
  const std::vector<std::byte> bytes(content.nbytes, static_cast<std::byte>(content.value));
  FileSet set = make_set(directory, content, bytes);
  FileSetAccess::state(set).after_step = after_step;
  set.write();
  return set.publish_set();
}

// The one value of all bytes of the checkpoint there; 0 for none.
int value_in(const fs::path& directory, int count) {
  try {
    const Reader reader(directory);
    EXPECT_EQ(reader.tensors().size(), static_cast<std::size_t>(count));
    int value = -1;
    for (const TensorInfo& tensor : reader.tensors()) {
      const auto loaded = reader.load_slice(tensor.name, {});
      for (std::uint64_t i = 0; i < tensor.nbytes; ++i) {
        const int byte = loaded.data<std::uint8_t>()[i];
        if (value < 0) value = byte;
        if (byte != value) return -1;
      }
    }
    return value;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotFound) << error.what();
    return 0;
  }
}

TEST(FileSetTest, files_hold_their_header_and_their_tensors) {
  for (const std::size_t nbytes : {std::size_t{5000}, std::size_t{9'000'001}}) {
    const TempDir directory;
    const std::vector<std::byte> bytes = testing::random_bytes(nbytes);
    FileSet set = make_set(directory.path(), {.count = 2, .nbytes = nbytes}, bytes);
    EXPECT_THAT(directory.names(), ElementsAre());
    set.write();
    EXPECT_THAT(directory.names(), ElementsAre());
    const std::vector<fs::path> paths = set.publish_set();
    EXPECT_THAT(directory.names(), ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                               "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
    EXPECT_THAT(paths, ElementsAre(directory / "model-00001-of-00003.safetensors",
                                   directory / "model-00002-of-00003.safetensors",
                                   directory / "model-00003-of-00003.safetensors"));
    const std::string header = header_of("t1", nbytes);
    std::vector<std::byte> expected(header.size());
    std::memcpy(expected.data(), header.data(), header.size());
    expected.insert(expected.end(), bytes.begin(), bytes.end());
    EXPECT_EQ(testing::read_file(paths[1]), expected);
    EXPECT_EQ(Reader(directory / "model.safetensors.index.json").tensors().size(), 2U);
  }
}

TEST(FileSetTest, tensors_of_devices_are_fetched_on_the_way) {
  const testing::SimulatedDevices sim;
  const TempDir directory;
  testing::DeviceTensors tensors;
  tensors.add("large", DType::kBF16, {3 * kMiB}, {}, 0);
  tensors.add("turned", DType::kF32, {100, 200}, {4, 400}, 1);
  tensors.add("host", DType::kU8, {70'001}, {}, testing::DeviceTensors::kHost);
  std::vector<std::vector<std::byte>> contents;
  for (const bool on_devices : {true, false}) {
    Writer writer(directory / "model.safetensors");
    on_devices ? tensors.add_to(writer) : tensors.add_from_host(writer);
    FileSetFile one{
        directory / "one", "head", 6 * kMiB + 80'009, {{"large", 4, 6 * kMiB}, {"turned", 6 * kMiB + 9, 80'000}}};
    FileSetFile two{directory / "two", "", 70'001, {{"host", 0, 70'001}}};
    FileSet set(std::move(writer), {std::move(one), std::move(two)});
    set.write();
    set.publish_each();
    contents.push_back(testing::read_file(directory / "one"));
    contents.push_back(testing::read_file(directory / "two"));
  }
  EXPECT_TRUE(contents[0] == contents[2]);
  EXPECT_TRUE(contents[1] == contents[3]);
  EXPECT_EQ(sim.counters().pageable_copies, 0U);
}

TEST(FileSetTest, what_no_tensor_covers_is_zeros) {
  const TempDir directory;
  const std::vector<std::byte> bytes(7, std::byte{0xAB});
  Writer writer(directory / "model.safetensors");
  writer.add("b", DType::kU8, {7}, bytes.data());
  writer.add("a", DType::kU8, {3}, bytes.data());
  FileSet set(std::move(writer), {{directory / "one", "head", 30, {{"b", 20, 7}, {"a", 6, 3}}}});
  set.write();
  set.publish_each();
  const std::string expected =
      std::string("head\0\0\xAB\xAB\xAB", 9) + std::string(11, '\0') + std::string(7, '\xAB') + std::string(3, '\0');
  const std::vector<std::byte> found = testing::read_file(directory / "one");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(found.data()), found.size()), expected);
  EXPECT_THAT(directory.names(), ElementsAre("one"));
}

TEST(FileSetTest, files_can_be_filled_through_mappings) {
  const TempDir directory;
  const Content content{.count = 2, .nbytes = 100'000};
  FileSet set(Writer(directory / "model.safetensors"), files_of(directory.path(), content));
  for (std::size_t i = 0; i < 3; ++i) {
    const FileSetFile file = files_of(directory.path(), content)[i];
    const int fd = set.descriptor(i);
    struct stat status {};
    ASSERT_EQ(::fstat(fd, &status), 0);
    EXPECT_EQ(static_cast<std::uint64_t>(status.st_size), file.size);
    EXPECT_GE(static_cast<std::uint64_t>(status.st_blocks) * 512, file.size) << "a hole: a full disk would be a signal";
    void* memory = ::mmap(nullptr, file.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ASSERT_NE(memory, MAP_FAILED);
    for (const FileSetTensor& tensor : file.tensors) {
      std::memset(static_cast<char*>(memory) + tensor.offset, 9, tensor.nbytes);
    }
    ::munmap(memory, file.size);
  }
  set.publish_set();
  EXPECT_EQ(value_in(directory.path(), 2), 9);
}

TEST(FileSetTest, a_set_takes_the_place_of_one_with_empty_shards_and_of_files_without_an_index) {
  const TempDir directory;
  save(directory.path(), {.value = 1, .count = 3});
  save(directory.path(), {.value = 2, .count = 2});
  EXPECT_THAT(directory.names(),
              ElementsAre("model-g2-00001-of-00003.safetensors", "model-g2-00002-of-00003.safetensors",
                          "model-g2-00003-of-00003.safetensors", "model.safetensors.index.json"));
  EXPECT_EQ(value_in(directory.path(), 2), 2);
  const TempDir others;
  for (const FileSetFile& file : files_of(others.path(), {.count = 2})) testing::write_file(file.path, "other");
  testing::write_file(others / "model-00001-of-00009.safetensors", "a bystander");
  const auto paths = save(others.path(), {.value = 3, .count = 2});
  EXPECT_EQ(paths.front(), others / "model-g2-00001-of-00003.safetensors");
  EXPECT_THAT(others.names(), ElementsAre("model-00001-of-00009.safetensors", "model-g2-00001-of-00003.safetensors",
                                          "model-g2-00002-of-00003.safetensors", "model-g2-00003-of-00003.safetensors",
                                          "model.safetensors.index.json"));
}

TEST(FileSetTest, killed_at_every_step_the_old_set_or_the_new_one_is_there_and_nothing_stays_after_the_next) {
  int committed = 0;
  for (int number = 0;; ++number) {
    const TempDir directory;
    save(directory.path(), {.value = 1, .count = 2});
    const pid_t child = ::fork();
    if (child == 0) {
      int step = 0;
      save(directory.path(), {.value = 2, .count = 2}, [&](std::string_view) {
        if (step++ == number) ::kill(::getpid(), SIGKILL);
      });
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const int value = value_in(directory.path(), 2);
    EXPECT_THAT(value, ::testing::AnyOf(1, 2)) << "step " << number;
    committed += value == 2;
    save(directory.path(), {.value = 3, .count = 1});
    EXPECT_EQ(value_in(directory.path(), 1), 3);
    EXPECT_EQ(directory.names().size(), 3U) << "step " << number;
    if (WIFEXITED(status)) break;
    EXPECT_LT(number, 50);
  }
  EXPECT_GE(committed, 2);
}

TEST(FileSetTest, files_of_any_names_replace_what_is_there_once_all_are_complete) {
  const TempDir directory;
  fs::create_directory(directory / "sub");
  testing::write_file(directory / "a", "old");
  testing::write_file(directory / ".a.0123456789abcdef.tmp", "of a dead saver");
  const std::vector<std::byte> bytes(10, std::byte{5});
  Writer writer(directory / "a", {.format = "safetensors"});
  writer.add("x", DType::kU8, {10}, bytes.data());
  writer.add("y", DType::kU8, {10}, bytes.data());
  FileSet set(std::move(writer), {file_of(directory / "a", "x", 10), file_of(directory / "sub/b", "y", 10)});
  set.write();
  EXPECT_EQ(testing::read_file(directory / "a").size(), 3U);
  set.publish_each();
  EXPECT_THAT(directory.names(), ElementsAre("a", "sub"));
  EXPECT_EQ(Reader(directory / "a").tensors().front().name, "x");
  EXPECT_EQ(Reader(directory / "sub/b").tensors().front().name, "y");
}

TEST(FileSetTest, a_name_that_can_not_be_given_takes_back_those_that_were) {
  const TempDir directory;
  const std::vector<std::byte> bytes(10, std::byte{5});
  {
    Writer writer(directory / "a", {.format = "safetensors"});
    writer.add("x", DType::kU8, {10}, bytes.data());
    FileSet set(std::move(writer), {file_of(directory / "a", "x", 10), {directory / "b", "head", 4, {}}});
    set.write();
    fs::create_directory(directory / "b");
    EXPECT_THAT(message_of([&] { set.publish_each(); }), HasSubstr((directory / "b").native()));
  }
  EXPECT_THAT(directory.names(), ElementsAre("b"));
}

TEST(FileSetTest, what_is_given_up_leaves_nothing) {
  const TempDir directory;
  const std::vector<std::byte> bytes(5000);
  const std::size_t before = testing::open_descriptors();
  {
    FileSet set = make_set(directory.path(), {}, bytes);
    set.write();
  }
  EXPECT_THAT(directory.names(), ElementsAre());
  SaveOptions options;
  options.progress = [](const Progress&) { return false; };
  FileSet set = make_set(directory.path(), {.nbytes = 5000}, bytes, options);
  EXPECT_EQ(error_of([&] {
              set.write();
              set.publish_set();
            }).kind(),
            ErrorKind::kCancelled);
  set = make_set(directory.path(), {}, bytes);
  set.write();
  set.publish_set();
  EXPECT_EQ(testing::open_descriptors(), before);
}

TEST(FileSetTest, space_that_is_to_stay_free_does) {
  const TempDir directory;
  const std::vector<std::byte> bytes(5000);
  const Error error = error_of([&] { make_set(directory.path(), {}, bytes, {}, std::uint64_t{1} << 62); });
  EXPECT_EQ(error.kind(), ErrorKind::kNoSpace);
  EXPECT_THAT(error.what(), HasSubstr("are to stay free, the filesystem has "));
  EXPECT_THAT(directory.names(), ElementsAre());
}

TEST(FileSetTest, layouts_that_make_no_sense_are_refused) {
  const TempDir directory;
  const std::vector<std::byte> bytes(10);
  const auto refusal = [&](std::vector<FileSetFile> files) {
    return message_of([&] {
      Writer writer(directory / "model.safetensors");
      writer.add("x", DType::kU8, {10}, bytes.data());
      FileSet set(std::move(writer), std::move(files));
      set.write();
      set.publish_set();
    });
  };
  const fs::path a = directory / "a";
  EXPECT_THAT(refusal({}), HasSubstr("a set of no files"));
  EXPECT_THAT(refusal({{a, "", 0, {}}}), HasSubstr("a header of 0 bytes in a file of 0"));
  EXPECT_THAT(refusal({{a, "head", 20, {{"x", 3, 10}}}}), HasSubstr("does not fit between byte 4 and the end, 20"));
  EXPECT_THAT(refusal({{a, "head", 13, {{"x", 4, 10}}}}), HasSubstr("at offset 4 does not fit"));
  EXPECT_THAT(refusal({{a, "head", 13, {{"x", 4, ~std::uint64_t{0}}}}}), HasSubstr("does not fit"));
  EXPECT_THAT(refusal({{a, "head", 30, {{"x", 4, 11}}}}), HasSubstr("has 10 bytes, and its place in the file 11"));
  EXPECT_THAT(refusal({{a, "head", 30, {{"y", 4, 10}}}}), HasSubstr("tensor \"y\" was not added"));
  EXPECT_THAT(refusal({{a, "head", 30, {{"x", 4, 10}, {"x", 14, 10}}}}), HasSubstr("is twice in the set"));
  EXPECT_THAT(refusal({{a, "head", 4, {}}, {directory / "./a", "head", 4, {}}}), HasSubstr("two files of one set"));
  EXPECT_THAT(refusal({{directory / "sub/b", "head", 4, {}}}), HasSubstr("cannot open the directory"));
  fs::create_directory(directory / "sub");
  EXPECT_THAT(refusal({{directory / "sub/b", "head", 4, {}}}), HasSubstr("is not in the directory of its set"));
  EXPECT_THAT(directory.names(), ElementsAre("sub"));
}

TEST(FileSetTest, steps_out_of_order_are_refused) {
  const TempDir directory;
  const std::vector<std::byte> bytes(5000);
  FileSet set = make_set(directory.path(), {}, bytes);
  EXPECT_THAT(message_of([&] { set.publish_set(); }), HasSubstr("nothing was written to it"));
  EXPECT_THAT(message_of([&] { set.descriptor(0); }), HasSubstr("is not for others to fill"));
  set.write();
  set.publish_set();
  EXPECT_THAT(message_of([&] { set.publish_set(); }), HasSubstr("was published before"));
  FileSet mapped(Writer(directory / "other.safetensors"), {{directory / "c", "head", 4, {}}});
  EXPECT_THAT(message_of([&] { mapped.write(); }), HasSubstr("no tensors were added"));
  EXPECT_THAT(message_of([&] { mapped.descriptor(1); }), HasSubstr("file 1 of 1"));
}

}  // namespace
}  // namespace penstock
