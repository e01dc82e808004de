// ConversionNotes: what a source holds and its copy can't, collected on the way and told in one line each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/torch_tree.h"
#include "penstock/options.h"
#include "penstock/tensor.h"

namespace penstock {

class ConversionNotes {
 public:
  // A tensor that is converted. Those over bytes of others get bytes of their own.
  void see_tensor(const TensorInfo& tensor);
  // A torch file whose tensors are converted: what else is in its tree stays behind.
  void see_tree(const torch::Tree& tree);
  // A value that is no tensor and stays behind.
  void see_value(std::string_view name) { values_.add_quoted(name); }
  // Metadata of one shard that the others contradict.
  void see_conflict(std::string_view key);

  // Takes out of `save`, whose format is known, what that format has no place for.
  void fit(SaveOptions& save, bool source_has_checksums);

  std::vector<std::string> take();

 private:
  // Some names and how many there are: "a", "b", "c" and 4 more.
  struct Names {
    void add(std::string text);
    void add_quoted(std::string_view name);
    std::string text() const;

    std::vector<std::string> first;
    std::uint64_t count = 0;
  };

  struct Place {
    std::uint32_t file = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::string name;
  };

  class TreeWalk;

  std::string shared_bytes();

  std::vector<Place> places_;
  Names values_;
  Names opaque_;
  Names nested_;  // tensors in dicts or lists of the tree's own
  Names conflicts_;
  bool becomes_flat_dict_ = false;
  std::vector<std::string> notes_;
};

}  // namespace penstock
