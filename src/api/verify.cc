// verify(): reads a checkpoint once and looks at what passes by.
#include <atomic>

#include "api/loading.h"
#include "base/cast.h"
#include "base/error.h"
#include "penstock/convert.h"

namespace penstock {
namespace {

bool can_be_not_finite(DType dtype) {
  return dtype == DType::kC32 || dtype == DType::kC64 || dtype == DType::kC128 ||
         (dtype_is_floating(dtype) && dtype_bits(dtype) >= 8);
}

class Verification {
 public:
  Verification(const Reader::State& state, const VerifyOptions& options)
      : state_(state), options_(options), expected_(state.expected_checksums()), not_finite_(state.tensors.size()) {}

  VerifyReport run() {
    const Stopwatch watch;
    VerifyReport report;
    for (const TensorInfo& tensor : state_.tensors) report.bytes += tensor.nbytes;
    for (const auto& checksum : expected_) report.had_checksums = report.had_checksums || checksum.has_value();
    const std::uint64_t wanted = read();
    report.bytes_read = wanted;
    judge(report);
    report.seconds = watch.seconds();
    return report;
  }

 private:
  bool wants_checksum(std::size_t i) const { return options_.compute || (options_.checksums && expected_[i]); }
  bool wants_finite(std::size_t i) const { return options_.finite && can_be_not_finite(state_.tensors[i].dtype); }

  // Returns the bytes read.
  std::uint64_t read() {
    const Stopwatch watch;
    std::vector<FileWants> wants(state_.files.size());
    for (std::size_t i = 0; i < wants.size(); ++i) wants[i].file = state_.files[i];
    std::uint64_t nbytes = 0;
    for (std::size_t i = 0; i < state_.tensors.size(); ++i) {
      const TensorInfo& tensor = state_.tensors[i];
      if (!wants_checksum(i) && !wants_finite(i)) continue;
      Segment segment{tensor.offset, tensor.extent(), 0, static_cast<std::uint32_t>(i), tensor.dtype, tensor.dtype};
      segment.whole_elements = wants_finite(i);
      segment.straight = false;
      wants[tensor.file].segments.push_back(segment);
      nbytes += tensor.extent();
    }
    if (nbytes == 0) return 0;
    const Settings settings = decide_settings(options_.io, nbytes);
    auto batch = std::make_shared<ReadBatch>();
    batch->discard = true;
    batch->observe = [this](const Piece& piece, const std::byte* bytes) { look(piece, bytes); };
    for (const FileWants& file : wants) {
      batch->tasks.push_back(plan_file(file, {CachePolicy::kAuto, false, true}, settings.block_size));
    }
    Crew crew(settings, host_pool(nullptr));
    start_reading(crew, batch);
    wait_with_progress(*batch, options_.progress, nbytes, watch);
    check_unchanged(batch->tasks);
    return nbytes;
  }

  void look(const Piece& piece, const std::byte* bytes) {
    if (wants_checksum(piece.owner)) collector_.add(piece.owner, piece.offset, bytes, piece.nbytes);
    if (wants_finite(piece.owner)) {
      not_finite_[piece.owner] += count_not_finite(piece.from, bytes, piece.nbytes / (dtype_bits(piece.from) / 8));
    }
  }

  void judge(VerifyReport& report) {
    const std::vector<std::uint32_t> found = collector_.finish(state_.tensors.size());
    for (std::size_t i = 0; i < state_.tensors.size(); ++i) {
      const TensorInfo& tensor = state_.tensors[i];
      VerifiedTensor verified{tensor.name, {}, expected_[i], not_finite_[i], true};
      if (wants_checksum(i)) verified.crc32c = found[i];
      const std::string& path = state_.files[tensor.file]->path();
      if (options_.checksums && expected_[i] && *expected_[i] != found[i]) {
        verified.ok = false;
        report.problems.push_back(fmt::format("{}: tensor {} is corrupt: its CRC-32C is {:08x}, the file says {:08x}",
                                              path, in_quotes(tensor.name), found[i], *expected_[i]));
      }
      if (verified.not_finite > 0) {
        verified.ok = false;
        report.problems.push_back(fmt::format("{}: tensor {} has {} {} NaN or infinite", path, in_quotes(tensor.name),
                                              verified.not_finite,
                                              verified.not_finite == 1 ? "element that is" : "elements that are"));
      }
      report.ok = report.ok && verified.ok;
      report.tensors.push_back(std::move(verified));
    }
  }

  const Reader::State& state_;
  const VerifyOptions& options_;
  const std::vector<std::optional<std::uint32_t>> expected_;
  ChecksumCollector collector_;
  std::vector<std::atomic<std::uint64_t>> not_finite_;
};

}  // namespace

VerifyReport verify(const std::filesystem::path& path, const VerifyOptions& options) {
  const Reader reader(path);
  return Verification(ReaderAccess::state(reader), options).run();
}

}  // namespace penstock
