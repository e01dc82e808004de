// The pipeline to a device, and the mistakes that it could make: each is planted, and the simulated device tells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/bytes.h"
#include "device/device.h"
#include "penstock/error.h"
#include "testing/fault_engine.h"
#include "testing/files.h"
#include "testing/simulated_context.h"
#include "transfer/device_use.h"
#include "transfer/session.h"

namespace penstock {
namespace {

using testing::SimulatedDevices;
using testing::TempDir;

constexpr std::uint64_t kFileSize = 12 * kMiB + 777;

enum class Mistake { kNone, kNoEventWait, kNoFinalWait, kWrongContext };

// A lane that makes one mistake.
class MistakenLane final : public Lane {
 public:
  MistakenLane(std::unique_ptr<Lane> lane, Mistake mistake) : lane_(std::move(lane)), mistake_(mistake) {}

  void wait_for(std::shared_ptr<const Moment> moment) override { lane_->wait_for(std::move(moment)); }
  void to_device(std::uint64_t address, const std::byte* from, std::uint64_t nbytes) override {
    if (mistake_ != Mistake::kWrongContext) return lane_->to_device(address, from, nbytes);
    // As a thread does that has not been told which device it works for.
    const cuda::Api api = testing::simulated_driver();
    const cuda::Result result = api.copy_to_device(address, from, nbytes, nullptr);
    if (result != cuda::kSuccess) throw Error(ErrorKind::kDevice, "cuMemcpyHtoDAsync failed");
  }
  void to_host(std::byte* to, std::uint64_t address, std::uint64_t nbytes) override {
    lane_->to_host(to, address, nbytes);
  }
  void within_device(std::uint64_t to, std::uint64_t from, std::uint64_t nbytes) override {
    lane_->within_device(to, from, nbytes);
  }
  Ticket mark() override { return lane_->mark(); }
  bool passed(Ticket ticket) noexcept override {
    return mistake_ == Mistake::kNoEventWait || mistake_ == Mistake::kNoFinalWait || lane_->passed(ticket);
  }
  void wait(Ticket ticket) noexcept override {
    if (mistake_ == Mistake::kNone || mistake_ == Mistake::kWrongContext) lane_->wait(ticket);
  }
  void drain() noexcept override { lane_->drain(); }
  void check() const override { lane_->check(); }

 private:
  const std::unique_ptr<Lane> lane_;
  const Mistake mistake_;
};

// A device whose lanes make it.
class MistakenDevice final : public Device {
 public:
  MistakenDevice(std::shared_ptr<Device> device, Mistake mistake) : device_(std::move(device)), mistake_(mistake) {}

  const DeviceInfo& info() const noexcept override { return device_->info(); }
  std::unique_ptr<Lane> make_lane() override { return std::make_unique<MistakenLane>(device_->make_lane(), mistake_); }
  std::shared_ptr<const Moment> moment(void* stream) override { return device_->moment(stream); }
  Free memory() override { return device_->memory(); }
  std::shared_ptr<void> allocate(std::uint64_t nbytes) override { return device_->allocate(nbytes); }
  bool pin(std::byte* data, std::size_t nbytes, std::string& reason) noexcept override {
    return device_->pin(data, nbytes, reason);
  }
  void unpin(std::byte* data) noexcept override { device_->unpin(data); }
  std::byte* allocate_pinned(std::size_t nbytes, std::string& reason) noexcept override {
    return device_->allocate_pinned(nbytes, reason);
  }
  void free_pinned(std::byte* data) noexcept override { device_->free_pinned(data); }
  bool start_files(std::string& reason) override { return device_->start_files(reason); }
  std::unique_ptr<DeviceFile> open_file(int fd, const std::string& path) override {
    return device_->open_file(fd, path);
  }
  std::shared_ptr<void> register_for_files(std::uint64_t address, std::uint64_t nbytes, std::string& reason) override {
    return device_->register_for_files(address, nbytes, reason);
  }

 private:
  const std::shared_ptr<Device> device_;
  const Mistake mistake_;
};

class DeviceTransferTest : public ::testing::Test {
 protected:
  DeviceTransferTest() { testing::write_file(directory_ / "file", content_); }

  // Reads the file to a device whose lanes make the mistake. True when the bytes are right.
  bool read(Mistake mistake, int device_number = 0, bool free_early = false) {
    const auto device = std::make_shared<MistakenDevice>(open_device(device_number), mistake);
    const auto lanes = std::make_shared<Lanes>(device);
    std::shared_ptr<void> memory = device->allocate(kFileSize);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.get());
    const auto file = std::make_shared<const File>(File::open(directory_ / "file"));
    Settings settings{testing::all_backends().front().make, 64 * kKiB, 8, 2};
    const std::shared_ptr<PinnedPool::Share> share = pool_.join(device, settings.block_size);
    ReadSession session(settings, pinned_staging(share));
    const auto destination =
        std::make_shared<DeviceDestination>(lanes, free_early ? nullptr : memory, settings.block_size);
    const ReadRoute route{ReadPath::kDirect, ReadLanding::kStaged};
    const Stopwatch watch;
    const auto batch = session.start({{file, {{0, kFileSize, address, 0}}, route, destination}});
    if (free_early) {
      while (sim_.counters().copies_queued == 0) std::this_thread::yield();
      memory.reset();
    }
    try {
      ReadSession::wait(*batch, {}, kFileSize, watch);
    } catch (const Error& error) {
      last_error_ = error.what();
      return false;
    }
    if (free_early) return true;
    return sim_.peek(address, kFileSize) == content_;
  }

  SimulatedDevices sim_;
  TempDir directory_;
  std::vector<std::byte> content_ = testing::random_bytes(kFileSize);
  PinnedPool pool_{512 * kKiB};
  std::string last_error_;
};

TEST_F(DeviceTransferTest, without_a_mistake_nothing_is_found) {
  EXPECT_TRUE(read(Mistake::kNone));
  EXPECT_TRUE(read(Mistake::kNone, 1));
  EXPECT_EQ(sim_.counters().pageable_copies, 0);
}

TEST_F(DeviceTransferTest, a_block_that_is_used_again_before_its_copy_is_over_is_found) {
  sim_.set("delay", 3000);
  read(Mistake::kNoEventWait);
  EXPECT_THAT(sim_.take_violations(), ::testing::Contains(::testing::HasSubstr("source changed")));
}

TEST_F(DeviceTransferTest, a_load_that_does_not_wait_for_its_last_copies_is_found) {
  sim_.set("link", 30'000'000);
  EXPECT_FALSE(read(Mistake::kNoFinalWait));
  sim_.take_violations();  // blocks were used again, too
}

TEST_F(DeviceTransferTest, memory_that_is_freed_before_its_copies_are_over_is_found) {
  sim_.set("link", 30'000'000);
  read(Mistake::kNone, 0, /*free_early=*/true);
  EXPECT_THAT(sim_.take_violations(), ::testing::Contains(::testing::HasSubstr("freed")));
}

TEST_F(DeviceTransferTest, a_thread_without_the_devices_context_is_found) {
  EXPECT_FALSE(read(Mistake::kWrongContext, 1));
  EXPECT_THAT(sim_.take_violations(), ::testing::Contains(::testing::HasSubstr("context")));
}

TEST_F(DeviceTransferTest, reads_land_right_however_rough_the_way) {
  const testing::Faults rough{.short_transfer = 0.3, .interrupted = 0.1, .try_again = 0.05, .held_back = 0.3};
  for (const testing::NamedFactory& backend : testing::all_backends()) {
    DeviceUse devices;
    const std::shared_ptr<Device> device = open_device(0);
    const auto lanes = devices.lanes(device);
    const std::shared_ptr<void> memory = device->allocate(kFileSize);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.get());
    const auto file = std::make_shared<const File>(File::open(directory_ / "file"));
    for (const ReadPath path :
         {ReadPath::kDirect, ReadPath::kCached, ReadPath::kByBlock, ReadPath::kBuffered, ReadPath::kDropBehind}) {
      Settings settings{testing::with_faults(backend.make, rough), 64 * kKiB, 8, 2};
      StagingFactory staging = devices.staging(settings, nullptr);
      ReadSession session(settings, std::move(staging));
      const auto destination = std::make_shared<DeviceDestination>(lanes, memory, settings.block_size);
      const Stopwatch watch;
      // Two segments with a hole between them.
      const std::vector<Segment> segments{{0, kMiB, address, 0},
                                          {kMiB + 100, kFileSize - kMiB - 100, address + kMiB + 100, 1}};
      const auto batch = session.start({{file, segments, {path, ReadLanding::kStaged}, destination}});
      ReadSession::wait(*batch, {}, kFileSize, watch);
      std::vector<std::byte> found = sim_.peek(address, kFileSize);
      std::copy_n(content_.begin() + kMiB, 100, found.begin() + kMiB);
      EXPECT_TRUE(found == content_) << backend.name;
    }
  }
}

}  // namespace
}  // namespace penstock
