// verify(): reads a checkpoint once and looks at what passes by.
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>

#include "api/files/chunk_directory.h"
#include "api/load/damage.h"
#include "api/load/reading.h"
#include "api/load/views.h"
#include "base/cast.h"
#include "base/error.h"
#include "penstock/convert.h"

namespace penstock {
namespace {

bool can_be_not_finite(DType dtype) {
  return dtype == DType::kC32 || dtype == DType::kC64 || dtype == DType::kC128 ||
         (dtype_is_floating(dtype) && dtype_bits(dtype) >= 8);
}

class FileCheck {
 public:
  FileCheck(const Reader::State& state, const VerifyOptions& options)
      : state_(state), options_(options), expected_(state.expected_checksums()), not_finite_(state.tensors.size()) {
    for (const TensorInfo& tensor : state.tensors) tensors_.push_back(&tensor);
    if (options.checksums == Verify::kOff) return;
    proofs_ = std::make_shared<const Proofs>(state, options.checksums);
    for (std::uint32_t i = 0; i < state.files.size(); ++i) {
      const bool insists = options.checksums != Verify::kAny;
      if (insists && proofs_->files[i].against == Against::kNothing) proofs_->refuse(*state.files[i]);
    }
    verification_.emplace(state, proofs_, tensors_, Verification::Scope{/*everything=*/true});
  }

  VerifyReport run() {
    const Stopwatch watch;
    VerifyReport report;
    for (const FileInfo& file : state_.infos) {
      report.opaque.insert(report.opaque.end(), file.opaque.begin(), file.opaque.end());
    }
    for (const TensorInfo& tensor : state_.tensors) report.bytes += tensor.nbytes;
    for (const auto& checksum : expected_) report.had_checksums = report.had_checksums || checksum.has_value();
    if (verification_) report.had_checksums = report.had_checksums || verification_->has_checksums();
    check_whole_files(report);
    report.bytes_read = read();
    if (options_.finite) look_at_views();
    judge(report);
    report.seconds = watch.seconds();
    return report;
  }

 private:
  void check_whole_files(VerifyReport& report) {
    if (!proofs_) return;
    std::set<std::string_view> against;
    for (const FileProof& proof : proofs_->files) {
      if (proof.against != Against::kNothing) against.insert(to_text(proof.against));
      report.had_checksums = report.had_checksums || proof.against == Against::kDigest;
    }
    report.against = fmt::format("{}", fmt::join(against, ", "));
    for (std::string& problem : find_problems_of_whole_files(state_, *proofs_, tensors_, options_.progress)) {
      report.ok = false;
      report.problems.push_back(std::move(problem));
    }
  }

  bool wants_finite(std::size_t i) const {
    return options_.finite && can_be_not_finite(state_.tensors[i].dtype) && state_.tensors[i].byte_strides.empty();
  }
  bool wants(std::size_t i) const {
    return options_.compute || wants_finite(i) || (verification_ && verification_->looks_at(i));
  }

  // Everything that is looked at, once. Returns the bytes read.
  std::uint64_t read() {
    const Stopwatch watch;
    std::vector<WantedBytes> wanted;
    for (std::uint32_t file = 0; file < state_.files.size(); ++file) wanted.push_back({file, segments_of(file), {}});
    std::uint64_t nbytes = 0;
    for (const WantedBytes& each : wanted) {
      for (const Segment& segment : each.segments) nbytes += segment.nbytes;
    }
    if (nbytes == 0) return 0;
    ReadSession session(decide_settings(options_.io, nbytes), host_pool(nullptr));
    DeviceUse no_devices;
    std::vector<FileRead> reads = route_reads(state_, std::move(wanted), {.cache = CachePolicy::kCopy}, {}, nbytes,
                                              session.settings().block_size, nullptr, no_devices);
    for (FileRead& read : reads) {
      read.route.landing = ReadLanding::kStaged;  // it goes nowhere
      read.destination = std::make_shared<NoDestination>();
    }
    const auto batch =
        session.start(std::move(reads), [this](const Piece& piece, const std::byte* bytes) { look(piece, bytes); });
    ReadSession::wait(*batch, options_.progress, nbytes, watch);
    return nbytes;
  }

  std::vector<Segment> segments_of(std::uint32_t file) const {
    std::vector<Segment> segments;
    if (verification_) segments = verification_->further_segments(file);
    for (std::size_t i = 0; i < state_.tensors.size(); ++i) {
      const TensorInfo& tensor = state_.tensors[i];
      if (tensor.file != file || !wants(i)) continue;
      Segment segment{tensor.offset, tensor.extent(), kNowhere, static_cast<std::uint32_t>(i),
                      tensor.dtype,  tensor.dtype};
      segment.whole_elements = wants_finite(i);
      segment.straight = false;
      segments.push_back(segment);
    }
    std::stable_sort(segments.begin(), segments.end(),
                     [](const Segment& a, const Segment& b) { return a.offset < b.offset; });
    return segments;
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

  void look(const Piece& piece, const std::byte* bytes) {
    if (verification_) verification_->look(piece, bytes);
    if (piece.owner >= state_.tensors.size()) return;
    if (options_.compute) {
      collector_.add(ChecksumKind::kCrc32c, piece.owner, piece.offset, bytes, piece.nbytes);
    }
    if (wants_finite(piece.owner)) {
      not_finite_[piece.owner] += count_not_finite(piece.from, bytes, piece.nbytes / (dtype_bits(piece.from) / 8));
    }
  }

  void judge(VerifyReport& report) {
    const std::vector<std::uint32_t> computed = collector_.finish(state_.tensors.size());
    for (std::size_t i = 0; i < state_.tensors.size(); ++i) {
      VerifiedTensor verified{state_.tensors[i].name, {}, expected_[i], not_finite_[i], true};
      if (options_.compute) verified.crc32c = computed[i];
      report.tensors.push_back(std::move(verified));
    }
    if (verification_) judge_checksums(report);
    for (std::size_t i = 0; i < state_.tensors.size(); ++i) judge_elements(i, report);
    for (const VerifiedTensor& tensor : report.tensors) report.ok = report.ok && tensor.ok;
  }

  void judge_checksums(VerifyReport& report) {
    for (const Verification::Problem& problem : verification_->find_problems()) {
      report.ok = false;
      report.problems.push_back(problem.text);
      for (const std::uint32_t tensor : problem.tensors) report.tensors[tensor].ok = false;
    }
    for (std::size_t i = 0; i < report.tensors.size(); ++i) {
      if (!report.tensors[i].crc32c) report.tensors[i].crc32c = verification_->found_crc32c(i);
    }
  }

  void judge_elements(std::size_t i, VerifyReport& report) {
    VerifiedTensor& verified = report.tensors[i];
    if (verified.not_finite == 0) return;
    verified.ok = false;
    report.problems.push_back(fmt::format("{}: tensor {} has {} {} NaN or infinite",
                                          state_.files[state_.tensors[i].file]->path(), in_quotes(verified.name),
                                          verified.not_finite,
                                          verified.not_finite == 1 ? "element that is" : "elements that are"));
  }

  const Reader::State& state_;
  const VerifyOptions& options_;
  const std::vector<std::optional<std::uint32_t>> expected_;
  std::vector<const TensorInfo*> tensors_;
  std::shared_ptr<const Proofs> proofs_;
  std::optional<Verification> verification_;
  ChecksumCollector collector_;
  std::vector<std::atomic<std::uint64_t>> not_finite_;
};

// What a seal says of a file that can't even be opened, or nothing: there is none, or it is no single file.
std::vector<std::string> find_sealed_damage(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return {};
  try {
    const File file = File::open(path);
    const auto seal = find_seal(file);
    if (!seal) return {};
    std::string problem = find_problem(file, *seal);
    return problem.empty() ? std::vector<std::string>() : std::vector{std::move(problem)};
  } catch (const Error&) {
    return {};  // what is wrong with the file is known
  }
}

}  // namespace

VerifyReport verify(const std::filesystem::path& path, const VerifyOptions& options) {
  if (const auto chunks = find_chunks(std::span(&path, 1))) return FileCheck(*open_chunk_files(*chunks), options).run();
  std::optional<Reader> reader;
  try {
    reader.emplace(path);
  } catch (const Error& error) {
    if (options.checksums == Verify::kOff) throw;
    std::vector<std::string> damage = find_sealed_damage(path);
    if (damage.empty()) throw;
    throw Error(ErrorKind::kFormat, fmt::format("{} ({})", damage.front(), error.what()));
  }
  return FileCheck(ReaderAccess::state(*reader), options).run();
}

}  // namespace penstock
