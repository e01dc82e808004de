#include "api/convert/notes.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "format/detect.h"

namespace penstock {
namespace {

constexpr std::size_t kMostNames = 3;

std::string text_of_key(const pickle::Graph& graph, pickle::NodeId key) {
  switch (graph.kind(key)) {
    case pickle::Kind::kString:
      return std::string(graph.text(key));
    case pickle::Kind::kInteger:
      return std::to_string(graph.node(key).integer);
    default:
      return "?";
  }
}

}  // namespace

void ConversionNotes::Names::add(std::string text) {
  if (++count <= kMostNames) first.push_back(std::move(text));
}

void ConversionNotes::Names::add_quoted(std::string_view name) {
  add(in_quotes(name));
}

std::string ConversionNotes::Names::text() const {
  const std::string names = fmt::format("{}", fmt::join(first, ", "));
  return count > first.size() ? fmt::format("{} and {} more", names, count - first.size()) : names;
}

// Goes through dicts, lists and tuples; whatever else is no tensor is a value. Each container is met once, so that a
// graph that contains itself comes to an end.
class ConversionNotes::TreeWalk {
 public:
  TreeWalk(const torch::Tree& tree, ConversionNotes& notes)
      : tree_(tree), graph_(tree.graph()), notes_(notes), seen_(graph_.nodes.size()) {}

  void run() { visit(graph_.root, "", 0); }

 private:
  void visit(pickle::NodeId id, const std::string& name, unsigned depth) {
    if (tree_.tensor_at(id) >= 0 || tree_.array_at(id) >= 0) {
      if (depth > 1) notes_.nested_.add_quoted(name);
    } else if (tree_.is_opaque(id)) {
      notes_.opaque_.add(fmt::format("{} ({})", name.empty() ? "all of it" : in_quotes(name), tree_.opaque_name(id)));
    } else if (!is_container(id)) {
      notes_.values_.add_quoted(name);
    } else if (!seen_[id] && depth <= pickle::kMaxDepth) {
      seen_[id] = true;
      visit_contents(id, name, depth + 1);
    }
  }

  void visit_contents(pickle::NodeId id, const std::string& name, unsigned depth) {
    if (is_sequence(id)) {
      std::size_t number = 0;
      for (const pickle::NodeId item : graph_.items(id)) visit(item, join(name, std::to_string(number++)), depth);
    } else {
      for (const auto& [key, value] : graph_.entries(id)) visit(value, join(name, text_of_key(graph_, key)), depth);
    }
  }

  bool is_sequence(pickle::NodeId id) const {
    return graph_.kind(id) == pickle::Kind::kList || graph_.kind(id) == pickle::Kind::kTuple;
  }

  bool is_container(pickle::NodeId id) const {
    return is_sequence(id) || graph_.kind(id) == pickle::Kind::kDict || graph_.calls(id, "collections OrderedDict");
  }

  // As tensors are named.
  static std::string join(const std::string& parent, const std::string& name) {
    return parent.empty() ? name : parent + "/" + name;
  }

  const torch::Tree& tree_;
  const pickle::Graph& graph_;
  ConversionNotes& notes_;
  std::vector<bool> seen_;
};

void ConversionNotes::see_tensor(const TensorInfo& tensor) {
  if (tensor.nbytes > 0) places_.push_back({tensor.file, tensor.offset, tensor.offset + tensor.extent(), tensor.name});
}

void ConversionNotes::see_tree(const torch::Tree& tree) {
  TreeWalk(tree, *this).run();
}

void ConversionNotes::see_conflict(std::string_view key) {
  conflicts_.add_quoted(key);
}

void ConversionNotes::fit(SaveOptions& save, bool source_has_checksums) {
  becomes_flat_dict_ = has_pickle(save.format);
  if (has_metadata(save.format)) {
    if (source_has_checksums && !save.checksums) {
      notes_.emplace_back("the checksums of the source are left out; checksums=True (--checksums) writes new ones");
    }
    return;
  }
  if (!save.metadata.empty()) {
    Names keys;
    for (const auto& [key, value] : std::exchange(save.metadata, {})) keys.add_quoted(key);
    notes_.push_back(fmt::format("metadata is left out, because a torch file holds none: {}", keys.text()));
  }
  if (std::exchange(save.checksums, false) || source_has_checksums) {
    notes_.push_back(fmt::format("CRC-32Cs of tensors are left out, because a torch file holds none{}",
                                 has_own_checksums(save.format) ? "; the zip has checksums of its own" : ""));
  }
}

std::string ConversionNotes::shared_bytes() {
  std::sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) {
    return std::tie(a.file, a.begin, a.name) < std::tie(b.file, b.begin, b.name);
  });
  Names names;
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const bool same_file = i > 0 && places_[i].file == places_[i - 1].file;
    if (same_file && places_[i].begin < end) names.add_quoted(places_[i].name);
    end = same_file ? std::max(end, places_[i].end) : places_[i].end;
  }
  if (names.count == 0) return "";
  return fmt::format("tensors that share bytes with others are written in full: {}", names.text());
}

std::vector<std::string> ConversionNotes::take() {
  if (values_.count > 0) notes_.push_back(fmt::format("values that are no tensors are left out: {}", values_.text()));
  if (opaque_.count > 0) {
    notes_.push_back(fmt::format("objects are left out, but for the tensors in them: {}", opaque_.text()));
  }
  if (becomes_flat_dict_ && nested_.count > 0) {
    notes_.push_back(fmt::format("the tree becomes one dict of tensors by their paths: {}", nested_.text()));
  }
  if (conflicts_.count > 0) {
    notes_.push_back(fmt::format("files disagree about metadata, the first one counts: {}", conflicts_.text()));
  }
  if (std::string shared = shared_bytes(); !shared.empty()) notes_.push_back(std::move(shared));
  return std::move(notes_);
}

}  // namespace penstock
