#include "format/torch_fragments.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/bytes.h"
#include "base/error.h"
#include "format/torch_file.h"

namespace penstock::torch {
namespace {

// All of `text` as a number without a sign or leading zeros.
std::optional<std::uint32_t> parse_number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if (text.size() > 1 && text.front() == '0') return std::nullopt;
  return value;
}

// Of everything that follows the pickles: what the writers share out.
std::uint64_t stream_nbytes(const LegacyHead& head, std::string_view path) {
  std::uint64_t total = head.nbytes();
  for (const Storage& storage : head.tree->storages()) {
    const auto sum = checked_add(total, storage.nbytes());
    const auto with_count = sum ? checked_add(*sum, kLegacyCountBytes) : std::nullopt;
    if (!with_count) throw_format(path, "its storages take more than 2^64 bytes");
    total = *with_count;
  }
  return total - head.nbytes();
}

bool same_tensor(const TensorReference& a, const TensorReference& b) {
  return a.storage == b.storage && a.dtype == b.dtype && a.offset == b.offset && a.shape == b.shape &&
         a.strides == b.strides;
}

}  // namespace

std::optional<FragmentName> parse_fragment_name(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  const std::size_t dash = dot == std::string_view::npos ? dot : name.rfind('-', dot);
  if (dash == std::string_view::npos || dash == 0) return std::nullopt;
  const auto rank = parse_number(name.substr(dash + 1, dot - dash - 1));
  const auto count = parse_number(name.substr(dot + 1));
  if (!rank || !count || *rank >= *count) return std::nullopt;
  return FragmentName{std::string(name.substr(0, dash)), *rank, *count};
}

std::string fragment_name(std::string_view stem, std::uint32_t rank, std::uint32_t count) {
  return fmt::format("{}-{}.{}", stem, rank, count);
}

ByteRange fragment_share(std::uint64_t nbytes, std::uint32_t rank, std::uint32_t count) {
  const std::uint64_t part = nbytes / count;
  const std::uint64_t longer = nbytes % count;
  const std::uint64_t begin = part * rank + std::min<std::uint64_t>(rank, longer);
  return {begin, begin + part + (rank < longer ? 1 : 0)};
}

bool is_fragment(std::uint64_t size, const LegacyHead& head, const FragmentName& name) {
  const std::uint64_t total = stream_nbytes(head, name.stem);
  return name.count > 1 && total > 0 && size == head.nbytes() + fragment_share(total, name.rank, name.count).size();
}

bool is_fragment(const ByteSource& source, const FragmentName& name) {
  return looks_like_legacy(source) && is_fragment(source.size(), read_legacy_head(source), name);
}

MergedFragments::MergedFragments(std::vector<const ByteSource*> fragments, std::string path)
    : fragments_(std::move(fragments)), path_(std::move(path)) {
  for (const ByteSource* fragment : fragments_) {
    if (!looks_like_legacy(*fragment)) {
      throw_format(fragment->path(), "not a fragment of a legacy torch file{}",
                   looks_like_zip(*fragment) ? ": it is a zip, which every writer writes whole; convert it alone" : "");
    }
  }
  head_ = read_legacy_head(*fragments_.front());
  size_ = head_.nbytes();
  places_.resize(head_.tree->storages().size());
  stream_nbytes(head_, fragments_.front()->path());
  for (const std::uint32_t number : head_.order) {
    places_[number] = size_;
    size_ += kLegacyCountBytes + head_.tree->storages()[number].nbytes();
  }
  add_pieces(head_, 0);
  for (std::uint32_t i = 1; i < fragments_.size(); ++i) {
    const LegacyHead head = read_legacy_head(*fragments_[i]);
    check_same(head, *fragments_[i]);
    add_pieces(head, i);
  }
  sort_pieces();
  check_coverage();
}

// Keys and locations are each writer's own. What is no tensor may differ: that of the first counts.
void MergedFragments::check_same(const LegacyHead& other, const ByteSource& fragment) const {
  const auto ours = head_.tree->storages();
  const auto theirs = other.tree->storages();
  const std::string& first = fragments_.front()->path();
  if (ours.size() != theirs.size()) {
    throw_format(fragment.path(), "it has {} storages, and {} has {}: they are not of one save", theirs.size(), first,
                 ours.size());
  }
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (ours[i].dtype == theirs[i].dtype && ours[i].count == theirs[i].count) continue;
    throw_format(fragment.path(), "its storage {} has {} elements of {}, and {} has {} of {}: they are not of one save",
                 i, theirs[i].count, dtype_name(theirs[i].dtype), first, ours[i].count, dtype_name(ours[i].dtype));
  }
  const auto a = head_.tree->tensors();
  const auto b = other.tree->tensors();
  if (!std::equal(a.begin(), a.end(), b.begin(), b.end(), same_tensor) ||
      head_.tree->list().tensors != other.tree->list().tensors) {
    throw_format(fragment.path(), "its tensors are not those of {}: they are not of one save", first);
  }
}

void MergedFragments::add_pieces(const LegacyHead& head, std::uint32_t fragment) {
  const ByteSource& source = *fragments_[fragment];
  const std::uint64_t total = stream_nbytes(head, source.path());
  const ByteRange share = fragment_share(total, fragment, static_cast<std::uint32_t>(fragments_.size()));
  if (source.size() != head.nbytes() + share.size()) {
    if (source.size() == head.nbytes() + total) {
      throw_format(source.path(), "not a fragment, but a whole file; convert it alone");
    }
    throw_format(source.path(), "it has {} bytes, and fragment {} of {} of this save has {}", source.size(), fragment,
                 fragments_.size(), head.nbytes() + share.size());
  }
  std::uint64_t at = 0;  // in what the writers share
  for (const std::uint32_t number : head.order) {
    at += kLegacyCountBytes;
    const std::uint64_t nbytes = head.tree->storages()[number].nbytes();
    const std::uint64_t begin = std::max(at, share.begin);
    const std::uint64_t end = std::min(at + nbytes, share.end);
    if (begin < end) {
      const std::uint64_t place = places_[number] + kLegacyCountBytes + (begin - at);
      pieces_.push_back({place, end - begin, fragment, head.nbytes() + (begin - share.begin)});
    }
    at += nbytes;
  }
}

// By their places; what two fragments have is taken from one.
void MergedFragments::sort_pieces() {
  std::sort(pieces_.begin(), pieces_.end(), [](const FragmentPiece& a, const FragmentPiece& b) { return a.at < b.at; });
  std::vector<FragmentPiece> kept;
  std::uint64_t next = 0;
  for (const FragmentPiece& piece : pieces_) {
    const std::uint64_t known = next > piece.at ? std::min(next - piece.at, piece.nbytes) : 0;
    if (known == piece.nbytes) continue;
    kept.push_back({piece.at + known, piece.nbytes - known, piece.fragment, piece.offset + known});
    next = piece.at + piece.nbytes;
  }
  pieces_ = std::move(kept);
}

// Every byte of every storage is in some fragment.
void MergedFragments::check_coverage() const {
  for (const std::uint32_t number : head_.order) {
    const Storage& storage = head_.tree->storages()[number];
    std::uint64_t found = 0;
    for_each_piece(places_[number] + kLegacyCountBytes, storage.nbytes(),
                   [&](const FragmentPiece& piece) { found += piece.nbytes; });
    if (found == storage.nbytes()) continue;
    throw_format(path_,
                 "{} of the {} bytes of storage {} are in none of the {} fragments: their writers had the storages in "
                 "different orders, and what none of them wrote is lost",
                 storage.nbytes() - found, storage.nbytes(), in_quotes(storage.key), fragments_.size());
  }
}

std::vector<std::uint64_t> MergedFragments::storage_offsets() const {
  std::vector<std::uint64_t> offsets = places_;
  for (std::uint64_t& offset : offsets) offset += kLegacyCountBytes;
  return offsets;
}

std::size_t MergedFragments::piece_at(std::uint64_t offset) const {
  const auto after = std::upper_bound(pieces_.begin(), pieces_.end(), offset,
                                      [](std::uint64_t value, const FragmentPiece& piece) { return value < piece.at; });
  return after == pieces_.begin() ? 0 : static_cast<std::size_t>(after - pieces_.begin()) - 1;
}

void MergedFragments::read(std::uint64_t offset, std::span<std::byte> bytes) const {
  if (offset > size_ || bytes.size() > size_ - offset) {
    throw_format(path_, "{} bytes at {} are beyond its {} bytes", bytes.size(), offset, size_);
  }
  if (offset < head_.nbytes()) {
    const std::size_t length = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), head_.nbytes() - offset));
    std::memcpy(bytes.data(), head_.text->data() + offset, length);
    bytes = bytes.subspan(length);
    offset += length;
  }
  if (bytes.empty()) return;
  read_counts(offset, bytes);
  for_each_piece(offset, bytes.size(), [&](const FragmentPiece& piece) {
    fragments_[piece.fragment]->read(piece.offset,
                                     bytes.subspan(static_cast<std::size_t>(piece.at - offset), piece.nbytes));
  });
}

// Those that lie in the range, or partly.
void MergedFragments::read_counts(std::uint64_t offset, std::span<std::byte> bytes) const {
  const auto places_end = [&](std::uint32_t number) { return places_[number] + kLegacyCountBytes; };
  auto number = std::partition_point(head_.order.begin(), head_.order.end(),
                                     [&](std::uint32_t each) { return places_end(each) <= offset; });
  for (; number != head_.order.end() && places_[*number] < offset + bytes.size(); ++number) {
    const std::uint64_t count = head_.tree->storages()[*number].count;
    const auto count_bytes = std::as_bytes(std::span(&count, 1));
    const std::uint64_t begin = std::max(offset, places_[*number]);
    const std::uint64_t end = std::min(offset + bytes.size(), places_end(*number));
    std::memcpy(bytes.data() + (begin - offset), count_bytes.data() + (begin - places_[*number]), end - begin);
  }
}

}  // namespace penstock::torch
