// One suite for every backend.
#include "io/engine.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <map>

#include "base/unique_fd.h"
#include "testing/files.h"
#include "testing/limits.h"

namespace penstock {
namespace {

using testing::NamedFactory;
using testing::TempDir;

class EngineTest : public ::testing::TestWithParam<NamedFactory> {
 protected:
  std::unique_ptr<Engine> make(unsigned depth = 4) { return GetParam().make(depth); }

  // Runs all requests and returns the result of each tag.
  std::map<std::uint64_t, std::int64_t> run(Engine& engine, std::span<const IoRequest> requests) {
    std::map<std::uint64_t, std::int64_t> results;
    for (const IoRequest& request : requests) EXPECT_EQ(engine.submit(request), 0);
    std::vector<IoCompletion> completions(requests.size());
    while (results.size() < requests.size()) {
      const int count = engine.wait(completions);
      EXPECT_GT(count, 0);
      for (int i = 0; i < count; ++i)
        results[completions[static_cast<std::size_t>(i)].tag] = completions[static_cast<std::size_t>(i)].result;
    }
    return results;
  }

  TempDir directory_;
};

IoRequest read_request(int fd, std::span<std::byte> bytes, std::uint64_t offset, std::uint64_t tag) {
  return {IoRequest::Operation::kRead, fd, bytes.data(), static_cast<std::uint32_t>(bytes.size()), offset, 0, -1, tag};
}

TEST_P(EngineTest, reads_several_ranges_at_once) {
  const auto content = testing::random_bytes(100'000);
  testing::write_file(directory_ / "file", content);
  const UniqueFd fd(::open((directory_ / "file").c_str(), O_RDONLY));
  std::vector<std::byte> out(content.size());
  std::vector<IoRequest> requests;
  for (std::uint64_t i = 0; i < 4; ++i) {
    requests.push_back(read_request(fd.get(), std::span(out).subspan(i * 25'000, 25'000), i * 25'000, i));
  }
  const auto engine = make();
  for (const auto& [tag, result] : run(*engine, requests)) EXPECT_EQ(result, 25'000) << tag;
  EXPECT_EQ(out, content);
}

TEST_P(EngineTest, writes_what_it_is_given) {
  auto content = testing::random_bytes(50'000);
  const UniqueFd fd(::open((directory_ / "file").c_str(), O_RDWR | O_CREAT, 0600));
  const auto engine = make();
  const IoRequest request{IoRequest::Operation::kWrite, fd.get(), content.data(), 50'000, 0, 0, -1, 7};
  EXPECT_EQ(run(*engine, std::span(&request, 1))[7], 50'000);
  EXPECT_EQ(testing::read_file(directory_ / "file"), content);
}

TEST_P(EngineTest, a_read_over_the_end_is_short) {
  testing::write_file(directory_ / "file", testing::random_bytes(1000));
  const UniqueFd fd(::open((directory_ / "file").c_str(), O_RDONLY));
  std::vector<std::byte> out(600);
  const auto engine = make();
  const IoRequest requests[] = {read_request(fd.get(), out, 900, 0), read_request(fd.get(), out, 1000, 1)};
  auto results = run(*engine, std::span(requests, 1));
  EXPECT_EQ(results[0], 100);
  results = run(*engine, std::span(requests + 1, 1));
  EXPECT_EQ(results[1], 0);
}

TEST_P(EngineTest, a_bad_descriptor_is_a_result_and_not_an_exception) {
  std::vector<std::byte> out(10);
  const auto engine = make();
  const IoRequest request = read_request(-1, out, 0, 3);
  EXPECT_EQ(run(*engine, std::span(&request, 1))[3], -EBADF);
}

TEST_P(EngineTest, registered_buffers_are_used_or_refused_without_harm) {
  const auto content = testing::random_bytes(8192);
  testing::write_file(directory_ / "file", content);
  const UniqueFd fd(::open((directory_ / "file").c_str(), O_RDONLY));
  std::vector<std::byte> out(8192);
  const auto engine = make();
  const iovec buffer{out.data(), out.size()};
  IoRequest request = read_request(fd.get(), out, 0, 0);
  request.buffer_index = engine->register_buffers({&buffer, 1}) ? 0 : -1;
  EXPECT_EQ(run(*engine, std::span(&request, 1))[0], 8192);
  EXPECT_EQ(out, content);
}

TEST_P(EngineTest, is_destroyed_with_nothing_in_flight_left_behind) {
  testing::write_file(directory_ / "file", testing::random_bytes(4096));
  const std::size_t before = testing::open_descriptors();
  make().reset();
  EXPECT_EQ(testing::open_descriptors(), before);
}

INSTANTIATE_TEST_SUITE_P(backends, EngineTest, ::testing::ValuesIn(testing::all_backends()),
                         [](const auto& param_info) { return param_info.param.name; });

TEST(ThreadsEngineTest, works_where_no_thread_can_be_started) {
  const auto content = testing::random_bytes(100'000);
  const TempDir directory;
  testing::write_file(directory / "file", content);
  const UniqueFd fd(::open((directory / "file").c_str(), O_RDONLY));
  const auto code = testing::run_without_threads([&] {
    const auto engine = make_threads_engine(4);
    std::vector<std::byte> out(content.size());
    IoCompletion completions[4];
    for (std::uint64_t i = 0; i < 4; ++i) {
      if (engine->submit(read_request(fd.get(), std::span(out).subspan(i * 25'000, 25'000), i * 25'000, i)) != 0)
        return 1;
    }
    if (engine->wait(completions) != 4) return 2;
    for (std::uint64_t i = 0; i < 4; ++i) {
      if (completions[i].tag != i || completions[i].result != 25'000) return 3;
    }
    return out == content ? 0 : 4;
  });
  if (!code) GTEST_SKIP() << "this process can't be kept from starting threads";
  EXPECT_EQ(*code, 0);
}

TEST(EngineFactoryTest, auto_gives_a_working_backend) {
  EXPECT_NE(engine_factory(Backend::kAuto)(4), nullptr);
  EXPECT_EQ(engine_factory(Backend::kThreads)(4)->name(), "threads");
}

}  // namespace
}  // namespace penstock
