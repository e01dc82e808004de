#include "sweep.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "units.h"

namespace penstock::cli {
namespace {

constexpr std::uint64_t kMostInFlight = 48 * kMiB;  // what the library allows itself on top of a payload
constexpr std::size_t kKeepOneIn = 3;

Setting default_setting() {
  Setting setting;
  setting.is_default = true;
  return setting;
}

void add_sizes_and_depths(std::vector<Setting>& settings, const Setting& base,
                          std::initializer_list<std::size_t> blocks, std::initializer_list<unsigned> depths) {
  for (const std::size_t block_size : blocks) {
    for (const unsigned depth : depths) {
      if (block_size * depth > kMostInFlight) continue;
      Setting setting = base;
      setting.io.block_size = block_size;
      setting.io.queue_depth = depth;
      settings.push_back(setting);
    }
  }
}

}  // namespace

std::vector<Setting> read_settings(const std::vector<Backend>& backends) {
  std::vector<Setting> settings = {default_setting()};
  for (const Backend backend : backends) {
    Setting base;
    base.io.backend = backend;
    add_sizes_and_depths(settings, base, {512 * kKiB, kMiB, 2 * kMiB, 4 * kMiB, 8 * kMiB, 16 * kMiB},
                         {2, 4, 8, 16, 32});
  }
  return settings;
}

std::vector<Setting> write_settings() {
  std::vector<Setting> settings = {default_setting()};
  for (const WriteMethod method : {WriteMethod::kDirect, WriteMethod::kUncached, WriteMethod::kBuffered}) {
    Setting base;
    base.method = method;
    add_sizes_and_depths(settings, base, {kMiB, 2 * kMiB, 4 * kMiB, 8 * kMiB}, {2, 4, 8});
  }
  return settings;
}

Sweep::Sweep(const std::vector<Setting>& settings) : survivors_(settings.size()) {
  for (const Setting& setting : settings) entries_.push_back({setting, {}, {}});
  std::iota(survivors_.begin(), survivors_.end(), std::size_t{0});
  // Mixed, so that a drive that slows down over time doesn't punish the last ones; always alike, so that runs compare.
  std::shuffle(survivors_.begin(), survivors_.end(), std::minstd_rand(1));
}

void Sweep::run(const std::function<void(SweepEntry&)>& measure, const std::function<bool()>& has_time) {
  for (;;) {
    for (const std::size_t index : survivors_) {
      if (!has_time()) return;
      measure(entries_[index]);
    }
    if (survivors_.size() > kFinalists) {
      drop_slow_ones();
    } else if (survivors_.empty() || entries_[survivors_.front()].measurement.count() >= kMeasurements) {
      return;
    }
  }
}

void Sweep::drop_slow_ones() {
  const std::size_t kept = std::max(kFinalists, survivors_.size() / kKeepOneIn);
  std::vector<std::size_t> by_speed = survivors_;
  std::stable_sort(by_speed.begin(), by_speed.end(), [this](std::size_t a, std::size_t b) {
    const SweepEntry& first = entries_[a];
    const SweepEntry& second = entries_[b];
    if (first.setting.is_default != second.setting.is_default) return first.setting.is_default;
    return first.measurement.median() > second.measurement.median();
  });
  by_speed.resize(std::min(kept, by_speed.size()));
  std::erase_if(survivors_, [&](std::size_t index) {
    return std::find(by_speed.begin(), by_speed.end(), index) == by_speed.end();
  });
}

std::vector<SweepEntry> Sweep::ranking() const {
  std::vector<SweepEntry> ranked;
  for (const std::size_t index : survivors_) {
    if (entries_[index].measurement.highest() > 0) ranked.push_back(entries_[index]);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const SweepEntry& a, const SweepEntry& b) {
    return a.measurement.median() > b.measurement.median();
  });
  return ranked;
}

bool Sweep::is_complete() const {
  return std::all_of(entries_.begin(), entries_.end(),
                     [](const SweepEntry& entry) { return entry.measurement.count() > 0; });
}

}  // namespace penstock::cli
