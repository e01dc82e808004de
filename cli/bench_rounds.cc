#include "bench_rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "checkpoint.h"
#include "interrupt.h"
#include "penstock/measure.h"
#include "penstock/writer.h"
#include "units.h"

namespace penstock::cli {
namespace {

constexpr std::size_t kPageSize = 4096;

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// A mapped tensor costs nothing until it is looked at: read one byte of every page, as its user would.
void touch_pages(const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors) {
    const volatile std::byte* const bytes = tensor.bytes.data();
    for (std::size_t i = 0; i < tensor.bytes.size(); i += kPageSize) static_cast<void>(bytes[i]);
  }
}

std::string format_throughput_path(const Throughput& throughput) {
  return throughput.method + ", " + throughput.backend;
}

}  // namespace

BenchRounds::BenchRounds(const Reader& reader, std::optional<std::filesystem::path> scratch,
                         std::optional<BenchDevice> device, std::uint64_t max_bytes, StepCallback callback)
    : reader_(reader), scratch_(std::move(scratch)), device_(std::move(device)), callback_(std::move(callback)) {
  choose_tensors(max_bytes);
  MemoryPoolOptions pool_options;
  pool_options.max_kept_bytes = max_bytes;
  pool_ = MemoryPool::create(pool_options);
}

void BenchRounds::choose_tensors(std::uint64_t max_bytes) {
  stretches_.resize(reader_.files().size());
  for (const TensorInfo& tensor : reader_.tensors()) {
    if (tensor.nbytes > max_bytes - bytes_) {
      everything_ = false;
      if (tensors_ > 0) break;
      continue;
    }
    bytes_ += tensor.nbytes;
    ++tensors_;
    chosen_.insert(tensor.name);
    stretch_over(tensor);
  }
}

void BenchRounds::stretch_over(const TensorInfo& tensor) {
  Stretch& stretch = stretches_[tensor.file];
  const std::uint64_t end = tensor.offset + tensor.extent();
  if (stretch.end == 0) stretch.begin = tensor.offset;
  stretch.begin = std::min(stretch.begin, tensor.offset);
  stretch.end = std::max(stretch.end, end);
}

std::uint64_t BenchRounds::stretches_size() const {
  std::uint64_t size = 0;
  for (const Stretch& stretch : stretches_) size += stretch.end - stretch.begin;
  return size;
}

void BenchRounds::run() {
  measure_read_ceiling();
  drop_cache();
  pool_->trim();  // memory that the system has taken back is fresh
  std::vector<Tensor> tensors = measure_load(Step::kColdLoad, CachePolicy::kAuto);
  if (scratch_) {
    measure_write_ceiling();
    measure_save(tensors);
  }
  tensors.clear();  // to the pool: the next load reuses it
  drop_cache();
  tensors = measure_load(Step::kColdLoadReused, CachePolicy::kAuto);
  tensors.clear();
  if (device_) measure_device_load();
  fill_cache();
  tensors = measure_load(Step::kWarmLoadCopied, CachePolicy::kBuffered);
  tensors.clear();
  tensors = measure_load(Step::kWarmLoad, CachePolicy::kAuto);
}

void BenchRounds::begin(Step step) {
  check_interrupt();
  callback_(step, 0);
}

ProgressFunction BenchRounds::progress_of(Step step) const {
  return [this, step](const Progress& progress) {
    const auto total = static_cast<double>(std::max<std::uint64_t>(1, progress.bytes_total));
    callback_(step, static_cast<double>(progress.bytes_done) / total);
    return interrupted_by() == 0;
  };
}

void BenchRounds::record(Step step, std::uint64_t bytes, double seconds, std::string how) {
  StepResult& result = results_[static_cast<std::size_t>(step)];
  result.measurement.add(bytes, seconds);
  result.how = std::move(how);
}

void BenchRounds::measure_read_ceiling() {
  begin(Step::kReadCeiling);
  drop_cache();
  Throughput all;
  std::uint64_t largest = 0;
  std::uint64_t left = bytes_;
  for (const FileInfo& file : reader_.files()) {
    if (left == 0) break;
    const Throughput part = measure_read(file.path, {}, left);
    left -= std::min(left, part.bytes);
    all.bytes += part.bytes;
    all.seconds += part.seconds;
    if (part.bytes < largest) continue;
    // A small last shard is read in another way; the large ones are what counts.
    largest = part.bytes;
    all.method = part.method;
    all.backend = part.backend;
  }
  record(Step::kReadCeiling, all.bytes, all.seconds, format_throughput_path(all));
}

void BenchRounds::measure_write_ceiling() {
  begin(Step::kWriteCeiling);
  const Throughput written = measure_write(*scratch_, {}, WriteMethod::kAuto, bytes_);
  record(Step::kWriteCeiling, written.bytes, written.seconds, format_throughput_path(written));
}

void BenchRounds::measure_save(const std::vector<Tensor>& tensors) {
  begin(Step::kSave);
  const std::filesystem::path path = *scratch_ / "saved";
  SaveOptions options;
  options.format = format_of(reader_);
  options.progress = progress_of(Step::kSave);
  Writer writer(path, std::move(options));
  for (const Tensor& tensor : tensors) writer.add(tensor.name, tensor.dtype, tensor.shape, tensor.bytes.data());
  const Stopwatch watch;
  const Stats stats = writer.commit();
  record(Step::kSave, stats.bytes, watch.seconds(), format_path(stats));
  std::filesystem::remove(path);
}

LoadOptions BenchRounds::options_for(Step step) const {
  LoadOptions options;
  options.progress = progress_of(step);
  if (!everything_) options.select = [this](const TensorInfo& tensor) { return chosen_.contains(tensor.name); };
  return options;
}

std::vector<Tensor> BenchRounds::measure_load(Step step, CachePolicy cache) {
  begin(step);
  LoadOptions options = options_for(step);
  options.cache = cache;
  options.pool = pool_;
  const Stopwatch watch;
  LoadResult loaded = reader_.load(options);
  touch_pages(loaded.tensors);
  record(step, loaded.stats.bytes, watch.seconds(), format_path(loaded.stats));
  return std::move(loaded.tensors);
}

void BenchRounds::measure_device_load() {
  drop_cache();
  begin(Step::kDeviceLoad);
  LoadOptions options = options_for(Step::kDeviceLoad);
  options.allocate = device_->allocate;
  const Stopwatch watch;
  device_stats_ = reader_.load(options).stats;
  record(Step::kDeviceLoad, device_stats_.bytes, watch.seconds(), format_path(device_stats_));
}

void BenchRounds::drop_cache() {
  for (const FileInfo& file : reader_.files()) drop_page_cache(file.path);
  could_drop_cache_ = could_drop_cache_ && reader_.resident_bytes() <= stretches_size() / 100;
}

void BenchRounds::fill_cache() {
  std::vector<char> buffer(4 * kMiB);
  for (std::size_t i = 0; i < stretches_.size(); ++i) {
    std::ifstream stream(reader_.files()[i].path, std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(stretches_[i].begin));
    for (std::uint64_t left = stretches_[i].end - stretches_[i].begin; left > 0 && stream;) {
      const std::uint64_t part = std::min<std::uint64_t>(left, buffer.size());
      stream.read(buffer.data(), static_cast<std::streamsize>(part));
      left -= part;
      check_interrupt();
    }
  }
  could_fill_cache_ = could_fill_cache_ && reader_.resident_bytes() >= stretches_size() - stretches_size() / 100;
}

}  // namespace penstock::cli
