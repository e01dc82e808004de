// The paths of a tree's tensors, and what in it is opaque.
#include <algorithm>
#include <unordered_set>

#include "base/bytes.h"
#include "base/error.h"
#include "base/json.h"
#include "base/name_hash.h"
#include "format/torch_globals.h"
#include "format/torch_tree.h"

namespace penstock::torch {
namespace {

using pickle::Kind;
using pickle::NodeId;

// Walks a tree by its containers.
class Namer {
 public:
  Namer(const Tree& tree, std::string_view path, const WalkLimits& limits)
      : tree_(tree), graph_(tree.graph()), path_(path), limits_(limits) {}

  Tree::Listing run() {
    visit(graph_.root, "", 0);
    return std::move(listing_);
  }

 private:
  static constexpr std::size_t kLeavesPerStep = 4;

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> message, Args&&... args) const {
    throw_format(path_, "{}: {}", graph_.what, fmt::format(message, std::forward<Args>(args)...));
  }

  void visit(NodeId id, const std::string& name, unsigned depth) {
    if (++steps_ > limits_.steps) fail("the tree has more than {} values", limits_.steps);
    if (depth > pickle::kMaxDepth) fail("values are nested deeper than {}", pickle::kMaxDepth);
    if (add_tensor(id, depth == 0 ? "tensor" : name)) return;
    const Kind kind = graph_.kind(id);
    if (kind == Kind::kList || kind == Kind::kTuple || kind == Kind::kSet || kind == Kind::kFrozenSet) {
      visit_items(graph_.items(id), name, depth);
    } else if (tree_.is_opaque(id)) {
      visit_opaque(id, name, depth);
    } else if (kind == Kind::kDict || kind == Kind::kCall) {
      for (const auto& [key, value] : graph_.entries(id)) enter(value, name, key_text(key), depth);
      if (is_set(id)) visit_arguments(id, name, depth);
    }
  }

  bool add_tensor(NodeId id, const std::string& name) {
    const std::int32_t tensor = tree_.tensor_at(id);
    const std::int32_t array = tree_.array_at(id);
    if (tensor < 0 && array < 0) return false;
    const std::size_t known = tree_.tensors().size() + tree_.arrays().size();
    if (listing_.tensors.size() >= limits_.names) {
      fail("{} tensors are repeated more than {} times", known, listing_.tensors.size());
    }
    const std::size_t number =
        tensor >= 0 ? static_cast<std::size_t>(tensor) : tree_.tensors().size() + static_cast<std::size_t>(array);
    std::string shown = name;
    // An object may have an attribute and an entry of one name.
    if (opaque_depth_ > 0) {
      const auto [first, fresh] = in_objects_.emplace(shown, number);
      if (!fresh && first->second == number) return true;
      if (!fresh) shown += fmt::format("#{}", listing_.tensors.size());
    }
    if (tensor >= 0 && is_marked(tree_.tensors()[number])) {
      listing_.opaque.push_back({shown, "a tensor that is marked as conjugated or negated"});
    } else {
      listing_.tensors.emplace_back(shown, static_cast<std::uint32_t>(number));
    }
    return true;
  }

  // Its bytes are not its elements.
  static bool is_marked(const TensorReference& tensor) { return tensor.conjugated || tensor.negated; }

  void visit_items(std::span<const NodeId> items, const std::string& name, unsigned depth) {
    std::size_t number = 0;
    for (const NodeId item : items) {
      if (!is_leaf(item)) enter(item, name, std::to_string(number), depth);
      ++number;
    }
  }

  // An object's attributes and entries go by their names, what it was appended by its number, its arguments below a
  // name of their own.
  void visit_opaque(NodeId id, const std::string& name, unsigned depth) {
    if (opaque_depth_ == 0) {
      listing_.opaque.push_back({name, tree_.opaque_name(id)});
      count_name(listing_.opaque.back().name);
    }
    if (graph_.kind(id) != Kind::kCall) return;
    // Objects refer to each other at will: each is looked into where it is met first.
    if (!seen_.insert(id).second) return;
    ++opaque_depth_;
    const auto items = graph_.items(id);
    for (const NodeId state : items.subspan(2)) visit_state(state, name, depth);
    for (const auto& [key, value] : graph_.entries(id)) enter(value, name, key_text(key), depth);
    visit_items(graph_.appended(id), name, depth);
    enter(items[1], name, "args", depth);
    --opaque_depth_;
  }

  // A dict of attributes, or that and a dict of slots, or whatever the class understands.
  void visit_state(NodeId state, const std::string& name, unsigned depth) {
    if (graph_.kind(state) == Kind::kDict) {
      for (const auto& [key, value] : graph_.entries(state)) enter(value, name, key_text(key), depth);
    } else {
      enter(state, name, "state", depth);
    }
  }

  // Protocols before 4 make a set out of a list.
  bool is_set(NodeId id) const {
    for (const std::string_view global :
         {"builtins set", "builtins frozenset", "__builtin__ set", "__builtin__ frozenset"}) {
      if (graph_.calls(id, global)) return true;
    }
    return false;
  }

  void visit_arguments(NodeId call, const std::string& name, unsigned depth) {
    for (const NodeId argument : graph_.items(graph_.items(call)[1])) visit(argument, name, depth + 1);
  }

  // Values without parts are many; a list that is met again and again has them again and again.
  bool is_leaf(NodeId id) {
    const Kind kind = graph_.kind(id);
    const bool leaf =
        kind < Kind::kList || kind == Kind::kPersistent || (kind == Kind::kGlobal && !tree_.is_opaque(id));
    if (leaf && ++leaves_ > kLeavesPerStep * limits_.steps) {
      fail("the tree has more than {} values", kLeavesPerStep * limits_.steps);
    }
    return leaf;
  }

  // Only what can have tensors in it, or is opaque, needs a name.
  void enter(NodeId id, const std::string& parent, const std::string& name, unsigned depth) {
    if (is_leaf(id)) return;
    const std::string joined = parent.empty() ? name : parent + "/" + name;
    count_name(joined);
    visit(id, joined, depth + 1);
  }

  void count_name(std::string_view name) {
    name_bytes_ += name.size();
    if (name_bytes_ > limits_.name_bytes) {
      fail("the paths of its tensors take more than {} bytes", limits_.name_bytes);
    }
  }

  std::string key_text(NodeId key) const {
    switch (graph_.kind(key)) {
      case Kind::kString:
        // Half of a surrogate pair can't be part of a name.
        return find_invalid_utf8(graph_.text(key)) ? fmt::format("key{}", key) : std::string(graph_.text(key));
      case Kind::kInteger:
        return std::to_string(graph_.node(key).integer);
      case Kind::kBool:
        return graph_.node(key).integer != 0 ? "True" : "False";
      case Kind::kNone:
        return "None";
      default:
        return fmt::format("key{}", key);
    }
  }

  const Tree& tree_;
  const pickle::Graph& graph_;
  std::string_view path_;
  WalkLimits limits_;
  std::size_t steps_ = 0;
  std::size_t leaves_ = 0;
  std::size_t name_bytes_ = 0;
  unsigned opaque_depth_ = 0;
  NameMap<std::size_t, std::string> in_objects_;  // paths of tensors in opaque values, and their numbers
  std::unordered_set<NodeId> seen_;               // opaque values that were visited
  Tree::Listing listing_;
};

}  // namespace

bool Tree::is_opaque(NodeId id) const {
  const pickle::Node& node = graph_.node(id);
  if (node.kind == Kind::kGlobal) return node.foreign;
  if (node.kind != Kind::kCall || tensor_at(id) >= 0 || array_at(id) >= 0) return false;
  const NodeId callee = graph_.items(id)[0];
  if (graph_.kind(callee) != Kind::kGlobal || graph_.node(callee).foreign) return true;
  const std::string_view global = graph_.text(callee);
  // What would make a tensor or an array, and has not.
  return is_special_rebuild(global) || is_old_tensor_class(global) || global.starts_with("torch._utils ") ||
         global == kRebuildFromType || global == kParameterClass || global.ends_with(" _reconstruct") ||
         global.ends_with(" _frombuffer");
}

std::string Tree::opaque_name(NodeId id) const {
  // A chain of calls is named by what is called first.
  for (unsigned steps = 0; graph_.kind(id) != Kind::kGlobal && steps < pickle::kMaxDepth; ++steps) {
    if (graph_.kind(id) == Kind::kPersistent) {  // ('module', class, ...)
      const NodeId tuple = graph_.items(id)[0];
      if (graph_.kind(tuple) != Kind::kTuple || graph_.items(tuple).size() < 2) break;
      id = graph_.items(tuple)[1];
      continue;
    }
    if (graph_.kind(id) != Kind::kCall) break;
    const auto arguments = graph_.items(graph_.items(id)[1]);
    id = graph_.items(id)[0];
    // These call a class that they are given.
    const bool indirect = graph_.kind(id) == Kind::kGlobal &&
                          (graph_.text(id).starts_with("copyreg ") || graph_.text(id).starts_with("copy_reg ") ||
                           graph_.text(id).ends_with(" _reconstruct"));
    if (indirect && !arguments.empty() && graph_.kind(arguments[0]) == Kind::kGlobal) id = arguments[0];
  }
  if (graph_.kind(id) != Kind::kGlobal) return "an object without a name";
  std::string name(graph_.text(id));
  std::replace(name.begin(), name.end(), ' ', '.');
  return name;
}

Tree::Listing Tree::list() const {
  return Namer(*this, path_, limits_).run();
}

}  // namespace penstock::torch
