#include "plan/route.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/tuning.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr std::uint64_t kLarge = 100 * kMiB;
constexpr std::uint64_t kBlock = 2 * kMiB;

// A file that would be mapped: cached, local, of a format that is replaced and not rewritten.
FileFacts cached(std::uint64_t resident = kLarge) {
  FileFacts file;
  file.wanted = kLarge;
  file.resident = resident;
  file.mappable = true;
  file.local = true;
  file.direct = true;
  return file;
}

MapReason map_reason(const ReadRequest& request, std::vector<FileFacts> files) {
  return decide_mapping(request, files).reason;
}

TEST(DecideMapping, a_cached_file_is_mapped) {
  const FileFacts file = cached();
  const MapDecision decision = decide_mapping({}, {&file, 1});
  EXPECT_TRUE(decision.map);
  EXPECT_EQ(decision.reason, MapReason::kAllCached);
}

TEST(DecideMapping, half_is_enough_and_less_is_not) {
  const FileFacts half = cached(kLarge / 2);
  EXPECT_TRUE(decide_mapping({}, {&half, 1}).map);
  EXPECT_EQ(describe(decide_mapping({}, {&half, 1})),
            "the page cache holds 50% of it: the rest is read into it, and nothing is copied");
  EXPECT_EQ(map_reason({}, {cached(kLarge / 2 - kMiB)}), MapReason::kMostlyCold);
  EXPECT_EQ(map_reason({}, {cached(0)}), MapReason::kNothingCached);
}

TEST(DecideMapping, files_are_judged_together) {
  EXPECT_EQ(map_reason({}, {cached(), cached(0)}), MapReason::kPartlyCached);
  EXPECT_EQ(map_reason({}, {cached(), cached(0), cached(0)}), MapReason::kMostlyCold);
}

TEST(DecideMapping, one_file_that_can_not_be_mapped_is_enough) {
  const auto with = [](bool FileFacts::*fact, bool value) {
    FileFacts file = cached();
    file.*fact = value;
    return std::vector{cached(), file};
  };
  EXPECT_EQ(map_reason({}, with(&FileFacts::has_misaligned, true)), MapReason::kMisaligned);
  EXPECT_EQ(map_reason({}, with(&FileFacts::local, false)), MapReason::kNotLocal);
  EXPECT_EQ(map_reason({}, with(&FileFacts::mappable, false)), MapReason::kRewrittenFormat);
  EXPECT_EQ(map_reason({}, with(&FileFacts::open_for_writing, true)), MapReason::kOpenForWriting);
}

TEST(DecideMapping, what_is_asked_for_comes_first) {
  for (const CachePolicy cache : {CachePolicy::kCopy, CachePolicy::kDirect, CachePolicy::kBuffered}) {
    const FileFacts file = cached();
    EXPECT_FALSE(decide_mapping({.cache = cache}, {&file, 1}).map);
  }
  EXPECT_EQ(map_reason({.converts = true}, {cached()}), MapReason::kConverted);
  EXPECT_EQ(map_reason({.verifies = true}, {cached()}), MapReason::kConverted);
  EXPECT_EQ(map_reason({.landing = Landing::kStaged}, {cached()}), MapReason::kLandingAsked);
  EXPECT_EQ(map_reason({.cache = CachePolicy::kMap}, {FileFacts{}}), MapReason::kMapAsked);
  EXPECT_THROW(map_reason({.cache = CachePolicy::kMap, .converts = true}, {}), Error);
  EXPECT_THROW(map_reason({.cache = CachePolicy::kMap, .verifies = true}, {}), Error);
}

TEST(DecideRead, the_path_follows_residency_and_policy) {
  const auto path = [](CachePolicy cache, const FileFacts& file) {
    return decide_read({.cache = cache}, file, {}, kLarge, kBlock).path;
  };
  for (const CachePolicy cache : {CachePolicy::kAuto, CachePolicy::kCopy}) {
    EXPECT_EQ(path(cache, cached()), ReadPath::kCached);
    EXPECT_EQ(path(cache, cached(kMiB)), ReadPath::kByBlock);
    EXPECT_EQ(path(cache, cached(0)), ReadPath::kDirect);
  }
  EXPECT_EQ(path(CachePolicy::kDirect, cached()), ReadPath::kDirect);
  EXPECT_EQ(path(CachePolicy::kBuffered, cached(0)), ReadPath::kBuffered);
  FileFacts refusing = cached(0);
  refusing.direct = false;
  EXPECT_EQ(path(CachePolicy::kAuto, refusing), ReadPath::kDropBehind);
  EXPECT_EQ(path(CachePolicy::kDirect, refusing), ReadPath::kDropBehind);
}

TEST(DecideRead, the_landing_follows_memory_and_drive) {
  const auto landing = [](MemoryFacts memory, bool on_virtual_drive, std::uint64_t nbytes = kLarge,
                          std::uint64_t block_size = kBlock) {
    FileFacts file = cached(0);
    file.on_virtual_drive = on_virtual_drive;
    return decide_read({}, file, memory, nbytes, block_size);
  };
  EXPECT_EQ(landing({}, false).landing, ReadLanding::kStaged);
  EXPECT_EQ(landing({}, false).reason, LandingReason::kFreshMemory);
  EXPECT_EQ(landing({.reused = true}, false).reason, LandingReason::kReusedMemory);
  EXPECT_EQ(landing({.reused = true}, true).reason, LandingReason::kVirtualDrive);
  EXPECT_EQ(landing({.may_have_huge_pages = true}, true).landing, ReadLanding::kByPage);
  EXPECT_EQ(landing({.may_have_huge_pages = true}, true, kLarge, kMiB).landing, ReadLanding::kStaged);
  EXPECT_EQ(landing({}, true, tuning::kSmallTransfer).reason, LandingReason::kSmall);
}

TEST(DecideRead, a_landing_that_is_asked_for_is_taken) {
  const MemoryFacts huge{.may_have_huge_pages = true};
  EXPECT_EQ(decide_read({.landing = Landing::kInPlace}, cached(0), huge, kLarge, kBlock).landing,
            ReadLanding::kInPlace);
  EXPECT_EQ(decide_read({.landing = Landing::kStaged}, cached(0), huge, kMiB, kBlock).landing, ReadLanding::kStaged);
}

TEST(DecideWrite, the_route_follows_size_drive_and_request) {
  const WriteFacts real{kLarge, true, false, false};
  const WriteFacts hypervisor{kLarge, true, true, false};
  const WriteFacts image{kLarge, true, true, true};
  EXPECT_TRUE(decide_write({}, real).straight);
  EXPECT_TRUE(decide_write({}, real).direct);
  EXPECT_FALSE(decide_write({}, hypervisor).straight);
  EXPECT_TRUE(decide_write({}, image).straight);
  EXPECT_FALSE(decide_write({.landing = Landing::kStaged}, image).straight);
  EXPECT_TRUE(decide_write({.landing = Landing::kInPlace}, hypervisor).straight);
  EXPECT_EQ(decide_write({}, {1000, true, false, false}).reason, WriteReason::kSmall);
  EXPECT_EQ(decide_write({.method = WriteMethod::kDirect}, {1000, true, false, false}).reason, WriteReason::kDirect);
  EXPECT_EQ(decide_write({.method = WriteMethod::kBuffered}, real).reason, WriteReason::kBufferedAsked);
  EXPECT_EQ(decide_write({}, {kLarge, false, false, false}).reason, WriteReason::kDirectRefused);
}

}  // namespace
}  // namespace penstock
