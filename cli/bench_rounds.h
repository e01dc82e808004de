// The rounds of `penstock bench`: each measures the drive and then penstock on it, one after the other, so that a slow
// minute of the machine hits all of them alike.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "measurement.h"
#include "penstock/device.h"
#include "penstock/memory.h"
#include "penstock/options.h"
#include "penstock/reader.h"

namespace penstock::cli {

enum class Step {
  kReadCeiling,
  kColdLoad,
  kColdLoadReused,
  kDeviceLoad,
  kWarmLoad,
  kWarmLoadCopied,
  kWriteCeiling,
  kSave
};
inline constexpr int kStepCount = static_cast<int>(Step::kSave) + 1;

struct StepResult {
  Measurement measurement;
  std::string how;  // "direct, staged, uring 2 MiB x 8"
};

// A device that loads are measured to.
struct BenchDevice {
  DeviceInfo info;
  Allocator allocate;
};

// Called before a step with what it is, and during it with the part of it that is done (0 to 1).
using StepCallback = std::function<void(Step step, double fraction)>;

class BenchRounds {
 public:
  // Loads as much of `reader` as `max_bytes` allows, from its beginning. Saves go to `scratch`; without one they are
  // not measured, and without a device no loads to one.
  BenchRounds(const Reader& reader, std::optional<std::filesystem::path> scratch, std::optional<BenchDevice> device,
              std::uint64_t max_bytes, StepCallback callback);

  // One round. Throws Error, or Interrupted.
  void run();

  const StepResult& result(Step step) const { return results_[static_cast<std::size_t>(step)]; }
  std::uint64_t bytes() const noexcept { return bytes_; }  // that each load moves
  std::uint64_t tensors() const noexcept { return tensors_; }
  bool loads_everything() const noexcept { return everything_; }
  bool could_drop_cache() const noexcept { return could_drop_cache_; }
  bool could_fill_cache() const noexcept { return could_fill_cache_; }
  const Stats& device_stats() const noexcept { return device_stats_; }  // of the last load to a device

 private:
  // A stretch of a file that the chosen tensors lie in.
  struct Stretch {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  void choose_tensors(std::uint64_t max_bytes);
  void stretch_over(const TensorInfo& tensor);
  std::uint64_t stretches_size() const;
  void measure_read_ceiling();
  void measure_write_ceiling();
  void measure_save(const std::vector<Tensor>& tensors);
  std::vector<Tensor> measure_load(Step step, CachePolicy cache);
  void measure_device_load();
  LoadOptions options_for(Step step) const;
  void drop_cache();
  void fill_cache();
  void begin(Step step);
  ProgressFunction progress_of(Step step) const;
  void record(Step step, std::uint64_t bytes, double seconds, std::string how);

  const Reader& reader_;
  std::optional<std::filesystem::path> scratch_;
  std::optional<BenchDevice> device_;
  Stats device_stats_;
  StepCallback callback_;
  std::shared_ptr<MemoryPool> pool_;
  std::unordered_set<std::string> chosen_;  // used unless everything_
  std::vector<Stretch> stretches_;          // one per file
  std::vector<StepResult> results_{kStepCount};
  std::uint64_t bytes_ = 0;
  std::uint64_t tensors_ = 0;
  bool everything_ = true;
  bool could_drop_cache_ = true;
  bool could_fill_cache_ = true;
};

}  // namespace penstock::cli
