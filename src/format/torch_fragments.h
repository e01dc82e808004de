// FastPersist's fragments: what its data-parallel writers leave of a legacy file that none of them wrote whole.
//
// Each of N writers saves the same object. Writer R makes PATH-R.N: the five pickles of a legacy file, all of them, and
// the R-th of N equal parts of what follows (counts and storages, cut at any byte). The writers are processes of their
// own: storages that are the same have other keys in each, since a key is an address, and may even come in another
// order. So what belongs together is found by the place in the object, and what no writer wrote is found missing. The
// counts that they wrote are passed over: DeepSpeed 0.19 takes them from memory that it has freed, and the pickle says
// what they are. See docs/formats/torch.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "format/layout.h"
#include "format/torch_legacy.h"

namespace penstock::torch {

struct FragmentName {
  std::string stem;  // the name of the file that was to be
  std::uint32_t rank = 0;
  std::uint32_t count = 0;
};

// "model.pt-1.4" is the fragment 1 of 4 of "model.pt". Nothing for a name that is none.
std::optional<FragmentName> parse_fragment_name(std::string_view name);
std::string fragment_name(std::string_view stem, std::uint32_t rank, std::uint32_t count);

// The share of writer `rank` of `nbytes` bytes: equal parts, the first ones a byte longer where they can't be equal.
ByteRange fragment_share(std::uint64_t nbytes, std::uint32_t rank, std::uint32_t count);

// True for a legacy file of a size that is that of the fragment that its name speaks of, and not that of a whole file.
bool is_fragment(std::uint64_t size, const LegacyHead& head, const FragmentName& name);
bool is_fragment(const ByteSource& source, const FragmentName& name);

// Where a stretch of the merged file comes from.
struct FragmentPiece {
  std::uint64_t at = 0;  // in the merged file
  std::uint64_t nbytes = 0;
  std::uint32_t fragment = 0;
  std::uint64_t offset = 0;  // in that one
};

// The legacy file that the fragments are parts of, as a file that can be read. Borrows the fragments. Safe from several
// threads where they are.
class MergedFragments final : public ByteSource {
 public:
  // `fragments`: by rank, all of them. `path`: of the merged file, for messages. Throws Error(kFormat) that names the
  // fragment for one that does not belong to the others, has another size than its share, or is a whole file; and for
  // bytes that are in none of them.
  MergedFragments(std::vector<const ByteSource*> fragments, std::string path);

  std::uint64_t size() const override { return size_; }
  const std::string& path() const override { return path_; }
  void read(std::uint64_t offset, std::span<std::byte> bytes) const override;

  // Where the bytes of each storage are in the merged file, by its number.
  std::vector<std::uint64_t> storage_offsets() const;

  // Calls use(piece) for each stretch of [offset, offset + nbytes), in order, cut to it. Pickles and counts are in
  // none.
  template <typename Use>
  void for_each_piece(std::uint64_t offset, std::uint64_t nbytes, const Use& use) const {
    const std::uint64_t end = offset + nbytes;
    for (std::size_t i = piece_at(offset); i < pieces_.size() && pieces_[i].at < end; ++i) {
      const FragmentPiece& piece = pieces_[i];
      if (piece.at + piece.nbytes <= offset) continue;
      const std::uint64_t begin = piece.at < offset ? offset : piece.at;
      const std::uint64_t last = piece.at + piece.nbytes < end ? piece.at + piece.nbytes : end;
      use(FragmentPiece{begin, last - begin, piece.fragment, piece.offset + (begin - piece.at)});
    }
  }

  // The pickles, which are those of the first fragment.
  const LegacyHead& head() const { return head_; }

 private:
  void check_same(const LegacyHead& other, const ByteSource& fragment) const;
  void add_pieces(const LegacyHead& head, std::uint32_t fragment);
  void sort_pieces();
  void check_coverage() const;
  void read_counts(std::uint64_t offset, std::span<std::byte> bytes) const;
  std::size_t piece_at(std::uint64_t offset) const;

  std::vector<const ByteSource*> fragments_;
  std::string path_;
  LegacyHead head_;
  std::vector<std::uint64_t> places_;  // of each storage's count in the merged file, by its number
  std::uint64_t size_ = 0;
  std::vector<FragmentPiece> pieces_;  // by `at`
};

}  // namespace penstock::torch
