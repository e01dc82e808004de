#include "api/convert/source_check.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace penstock {
namespace {

constexpr std::uint64_t kCheckedAtOnce = 4 * kMiB;

}  // namespace

SourceCheck::SourceCheck(const Reader::State& state, Verify verify, std::vector<const TensorInfo*> wanted,
                         Readers readers)
    : state_(state),
      wanted_(std::move(wanted)),
      readers_(std::move(readers)),
      proofs_(std::make_shared<const Proofs>(state, verify)),
      verification_(make()) {
  // A digest takes a pass of its own: only where it was asked for.
  if (verify == Verify::kAny) return;
  const auto problems = find_problems_of_whole_files(state, *proofs_, wanted_, {});
  if (!problems.empty()) throw Error(ErrorKind::kFormat, problems.front());
}

std::unique_ptr<Verification> SourceCheck::make() const {
  Verification::Scope scope;
  scope.may_have_none = proofs_->wanted == Verify::kAny;
  return std::make_unique<Verification>(state_, proofs_, wanted_, scope);
}

void SourceCheck::look(const TensorInfo& tensor, std::uint64_t offset, std::uint64_t nbytes, const std::byte* bytes) {
  Piece piece;
  piece.offset = offset;
  piece.nbytes = nbytes;
  piece.owner = static_cast<std::uint32_t>(&tensor - state_.tensors.data());
  verification_->look(piece, bytes);
}

void SourceCheck::read(Verification& verification, std::uint32_t file, const Segment& segment) const {
  for (std::uint64_t at = segment.offset; at < segment.end();) {
    Piece piece;
    piece.offset = at;
    piece.nbytes = std::min(kCheckedAtOnce, segment.end() - at);
    piece.owner = segment.owner;
    readers_[file]->read(at, piece.nbytes, [&](const std::byte* bytes) { verification.look(piece, bytes); });
    at += piece.nbytes;
  }
}

void SourceCheck::finish() {
  const auto read_further = [this](Verification& verification) {
    for (std::uint32_t file = 0; file < readers_.size(); ++file) {
      for (const Segment& segment : verification.further_segments(file)) read(verification, file, segment);
    }
  };
  read_further(*verification_);
  if (verification_->find_problems().empty()) return;
  // Before a file is called damaged all is read once more, in order: whatever the writer asked for, that is certain.
  verification_ = make();
  for (const TensorInfo* tensor : wanted_) {
    const auto number = static_cast<std::uint32_t>(tensor - state_.tensors.data());
    if (!verification_->looks_at(number)) continue;
    read(*verification_, tensor->file, {tensor->offset, tensor->nbytes, kNowhere, number});
  }
  read_further(*verification_);
  verification_->check();
}

}  // namespace penstock
