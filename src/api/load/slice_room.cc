#include "api/load/slice_room.h"

#include <atomic>

#include "base/tuning.h"
#include "transfer/settings.h"

namespace penstock {
namespace {

struct Room {
  std::atomic<std::int64_t> until_next_look{static_cast<std::int64_t>(tuning::kSmallestBudgeted)};
  std::atomic<bool> is_short{false};
};

Room& room() {
  static Room room;
  return room;
}

}  // namespace

bool is_short_of_memory(std::uint64_t nbytes, const IoOptions& options) {
  if (decide_budget(options, 0).asked) return false;
  const auto taken = static_cast<std::int64_t>(nbytes);
  if (room().until_next_look.fetch_sub(taken) > taken) return room().is_short;
  const std::uint64_t left = decide_budget(options, nbytes + tuning::kSmallestBudgeted).bytes;
  room().until_next_look = static_cast<std::int64_t>(tuning::kSmallestBudgeted);
  room().is_short = left < nbytes + tuning::kSmallestBudgeted + tuning::kMostStaging + tuning::kRoomBesideSlices;
  return room().is_short;
}

}  // namespace penstock
