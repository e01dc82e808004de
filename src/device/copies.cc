// Copies of whole stretches, for those who have one and wait for it: a tensor that was put together on the host.
#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>

#include "base/error.h"
#include "base/tuning.h"
#include "device/pinned_pool.h"

namespace penstock {
namespace {

// A pinned block whose copy is under way.
struct Flight {
  std::byte* block;
  Lane::Ticket ticket;
  std::uint64_t begin;
  std::uint64_t nbytes;
};

// Moves `nbytes` in blocks, a few at a time. `start` begins the copy of one, `land` is told when it is over.
class BlockedCopy {
 public:
  BlockedCopy(std::shared_ptr<Device> device, Lane& lane)
      : share_(PinnedPool::process().join(std::move(device), block_size())), lane_(lane) {}

  ~BlockedCopy() {
    while (!flights_.empty()) finish_oldest([](const Flight&) {});
  }

  template <typename Start, typename Land>
  void run(std::uint64_t nbytes, const Start& start, const Land& land) {
    for (std::uint64_t begin = 0; begin < nbytes;) {
      std::byte* const block = take(land);
      const std::uint64_t step = std::min<std::uint64_t>(share_->block_size(), nbytes - begin);
      try {
        start(lane_, block, begin, step);
        flights_.push_back({block, lane_.mark(), begin, step});
      } catch (...) {
        lane_.drain();  // it may have begun
        share_->give_back(block);
        throw;
      }
      begin += step;
    }
    while (!flights_.empty()) land_oldest(land);
  }

 private:
  static constexpr std::size_t kMostFlights = 4;

  static std::size_t block_size() {
    return std::min(tuning::kDeviceBlock, std::bit_floor(PinnedPool::process().bound()));
  }

  template <typename Land>
  std::byte* take(const Land& land) {
    while (true) {
      std::byte* const block = flights_.size() < kMostFlights ? share_->take() : nullptr;
      if (block != nullptr) return block;
      flights_.empty() ? share_->wait() : land_oldest(land);
    }
  }

  template <typename Land>
  void finish_oldest(const Land& land) {
    const Flight flight = flights_.front();
    flights_.pop_front();
    lane_.wait(flight.ticket);
    land(flight);
    share_->give_back(flight.block);
  }

  template <typename Land>
  void land_oldest(const Land& land) {
    finish_oldest(land);
    lane_.check();
  }

  const std::unique_ptr<PinnedPool::Share> share_;
  Lane& lane_;
  std::deque<Flight> flights_;
};

std::shared_ptr<Device> require_device(const void* address) {
  MemoryPlace place = find_place(address);
  if (place.device == nullptr) throw_argument("the address {} is not memory of a device", address);
  return std::move(place.device);
}

}  // namespace

void Lanes::fill(std::uint64_t address, const std::byte* from, std::uint64_t nbytes) {
  if (nbytes == 0) return;
  BlockedCopy copy(device_, mine());
  copy.run(
      nbytes,
      [&](Lane& lane, std::byte* block, std::uint64_t begin, std::uint64_t step) {
        std::memcpy(block, from + begin, step);
        lane.to_device(address + begin, block, step);
      },
      [](const Flight&) {});
}

void Lanes::fetch(std::byte* to, std::uint64_t address, std::uint64_t nbytes) {
  if (nbytes == 0) return;
  BlockedCopy copy(device_, mine());
  copy.run(
      nbytes,
      [&](Lane& lane, std::byte* block, std::uint64_t begin, std::uint64_t step) {
        lane.to_host(block, address + begin, step);
      },
      [&](const Flight& flight) { std::memcpy(to + flight.begin, flight.block, flight.nbytes); });
}

void copy_to_device(void* device_address, const void* from, std::uint64_t nbytes) {
  if (nbytes == 0) return;
  const auto address = reinterpret_cast<std::uintptr_t>(device_address);
  Lanes(require_device(device_address)).fill(address, static_cast<const std::byte*>(from), nbytes);
}

void copy_to_host(void* to, const void* device_address, std::uint64_t nbytes) {
  if (nbytes == 0) return;
  const auto address = reinterpret_cast<std::uintptr_t>(device_address);
  Lanes(require_device(device_address)).fetch(static_cast<std::byte*>(to), address, nbytes);
}

}  // namespace penstock
