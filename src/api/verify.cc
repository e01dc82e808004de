// verify(): reads a checkpoint once and looks at what passes by.
#include <atomic>

#include "api/loading.h"
#include "api/read_watched.h"
#include "api/verify_records.h"
#include "api/views.h"
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
    report.bytes_read = read();
    if (options_.finite) look_at_views();
    judge(report);
    if (options_.checksums) judge_records(report);
    report.seconds = watch.seconds();
    return report;
  }

 private:
  bool wants_checksum(std::size_t i) const { return options_.compute || (options_.checksums && expected_[i]); }
  bool wants_finite(std::size_t i) const {
    return options_.finite && can_be_not_finite(state_.tensors[i].dtype) && state_.tensors[i].byte_strides.empty();
  }

  // Returns the bytes read.
  std::uint64_t read() {
    std::vector<FileWants> wants(state_.files.size());
    for (std::size_t i = 0; i < wants.size(); ++i) wants[i].file = state_.files[i];
    for (std::size_t i = 0; i < state_.tensors.size(); ++i) {
      const TensorInfo& tensor = state_.tensors[i];
      if (!wants_checksum(i) && !wants_finite(i)) continue;
      Segment segment{tensor.offset, tensor.extent(), 0, static_cast<std::uint32_t>(i), tensor.dtype, tensor.dtype};
      segment.whole_elements = wants_finite(i);
      segment.straight = false;
      wants[tensor.file].segments.push_back(segment);
    }
    return read_watched(wants, options_.io, options_.progress,
                        [this](const Piece& piece, const std::byte* bytes) { look(piece, bytes); });
  }

  // What lies between the elements of a view is not its own.
  void look_at_views() {
    LoadOptions load;
    load.io = options_.io;
    for (std::size_t i = 0; i < state_.tensors.size(); ++i) {
      const TensorInfo& tensor = state_.tensors[i];
      if (tensor.byte_strides.empty() || !can_be_not_finite(tensor.dtype)) continue;
      const Tensor loaded = load_view(state_, tensor, load);
      not_finite_[i] =
          count_not_finite(tensor.dtype, loaded.bytes.data(), tensor.nbytes / (dtype_bits(tensor.dtype) / 8));
    }
  }

  void judge_records(VerifyReport& report) {
    const RecordReport records = verify_records(state_, options_.io, options_.progress);
    report.had_checksums = report.had_checksums || records.had_checksums;
    report.bytes_read += records.bytes_read;
    for (const CorruptRecord& record : records.corrupt) {
      report.ok = false;
      report.problems.push_back(record.problem);
      for (std::size_t i = 0; i < state_.tensors.size(); ++i) {
        const TensorInfo& tensor = state_.tensors[i];
        const bool within = tensor.file == record.file && tensor.offset >= record.offset &&
                            tensor.offset < record.offset + record.nbytes;
        if (within) report.tensors[i].ok = false;
      }
    }
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
