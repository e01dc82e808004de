#include "format/torch_tree.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/bytes.h"
#include "base/error.h"

namespace penstock::torch {
namespace {

using pickle::Graph;
using pickle::Kind;
using pickle::NodeId;

constexpr std::string_view kRebuildTensor = "torch._utils _rebuild_tensor_v2";
constexpr std::string_view kRebuildTyped = "torch._utils _rebuild_tensor_v3";
constexpr std::string_view kRebuildParameter = "torch._utils _rebuild_parameter";
constexpr std::string_view kRebuildParameterWithState = "torch._utils _rebuild_parameter_with_state";

// More than torch computes with. Without a limit, many tensors that name one long shape would take any amount of
// memory.
constexpr std::size_t kMostDimensions = 64;

struct StorageClass {
  std::string_view name;
  DType dtype;
};
constexpr std::array kStorageClasses = {
    StorageClass{"DoubleStorage", DType::kF64},
    StorageClass{"FloatStorage", DType::kF32},
    StorageClass{"HalfStorage", DType::kF16},
    StorageClass{"BFloat16Storage", DType::kBF16},
    StorageClass{"LongStorage", DType::kI64},
    StorageClass{"IntStorage", DType::kI32},
    StorageClass{"ShortStorage", DType::kI16},
    StorageClass{"CharStorage", DType::kI8},
    StorageClass{"ByteStorage", DType::kU8},
    StorageClass{"BoolStorage", DType::kBool},
    StorageClass{"ComplexDoubleStorage", DType::kC128},
    StorageClass{"ComplexFloatStorage", DType::kC64},
    StorageClass{"UntypedStorage", DType::kU8},
};

// What data is made of, beside the classes and types of torch that are known by their own tables.
constexpr std::array<std::string_view, 25> kGlobals = {
    "collections OrderedDict",
    kRebuildTensor,
    kRebuildTyped,
    kRebuildParameter,
    kRebuildParameterWithState,
    "torch Size",
    "torch device",
    "torch.serialization _get_layout",
    "torch storage.UntypedStorage",
    "_codecs encode",
    "builtins complex",
    "builtins set",
    "builtins frozenset",
    "builtins bytearray",
    "builtins bytes",
    "builtins slice",
    "__builtin__ complex",
    "__builtin__ set",
    "__builtin__ frozenset",
    "__builtin__ bytearray",
    "__builtin__ bytes",
    "numpy.core.multiarray scalar",
    "numpy._core.multiarray scalar",
    "numpy dtype",
    "torch.storage UntypedStorage",
};

std::optional<DType> storage_dtype(std::string_view global) {
  for (const std::string_view module : {"torch ", "torch.storage ", "torch.cuda "}) {
    if (!global.starts_with(module)) continue;
    for (const StorageClass& known : kStorageClasses) {
      if (global.substr(module.size()) == known.name) return known.dtype;
    }
  }
  return std::nullopt;
}

std::optional<DType> global_dtype(std::string_view global) {
  constexpr std::string_view kModule = "torch ";
  if (!global.starts_with(kModule)) return std::nullopt;
  const auto dtype = parse_torch_dtype(global.substr(kModule.size()));
  return dtype && dtype_bits(*dtype) >= 8 ? dtype : std::nullopt;
}

}  // namespace

bool allows_global(std::string_view global) {
  return std::find(kGlobals.begin(), kGlobals.end(), global) != kGlobals.end() || storage_dtype(global) ||
         global_dtype(global);
}

class TreeBuilder {
 public:
  explicit TreeBuilder(Tree& tree) : tree_(tree), graph_(tree.graph_) {}

  // A node comes after everything that it was made of.
  void build() {
    const auto count = graph_.nodes.size();
    tree_.tensor_of_node_.assign(count, -1);
    tree_.storage_of_node_.assign(count, -1);
    for (NodeId id = 0; id < count; ++id) {
      current_ = id;
      if (graph_.kind(id) == Kind::kPersistent) add_storage(id);
      if (graph_.kind(id) == Kind::kCall) add_tensor(id);
    }
  }

 private:
  // The place is that of the storage or tensor that is being taken.
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> message, Args&&... args) const {
    throw_format(tree_.path_, "{}: {}", graph_.place(current_), fmt::format(message, std::forward<Args>(args)...));
  }

  template <typename... Args>
  [[noreturn]] void fail_unsupported(fmt::format_string<Args...> message, Args&&... args) const {
    throw_unsupported(tree_.path_, "{}: {}", graph_.place(current_), fmt::format(message, std::forward<Args>(args)...));
  }

  std::int64_t integer(NodeId id, std::string_view what) const {
    if (graph_.kind(id) != Kind::kInteger) fail("{} is not an integer", what);
    return graph_.node(id).integer;
  }

  std::uint64_t count(NodeId id, std::string_view what) const {
    const std::int64_t value = integer(id, what);
    if (value < 0) fail("{} is {}, less than 0", what, value);
    return static_cast<std::uint64_t>(value);
  }

  std::string_view string(NodeId id, std::string_view what) const {
    if (graph_.kind(id) != Kind::kString) fail("{} is not a string", what);
    return graph_.text(id);
  }

  // ('storage', class, key, location, count), and in the legacy format a view that is None.
  void add_storage(NodeId id) {
    const NodeId tuple = graph_.items(id)[0];
    if (graph_.kind(tuple) != Kind::kTuple) fail("a persistent id is not a tuple");
    const auto items = graph_.items(tuple);
    if (items.size() < 5 || items.size() > 6 || string(items[0], "the kind of a persistent id") != "storage") {
      fail_unsupported("a persistent id that is not a storage's");
    }
    if (items.size() == 6 && graph_.kind(items[5]) != Kind::kNone)
      fail_unsupported("a storage that is a view of another");
    const auto dtype = graph_.kind(items[1]) == Kind::kGlobal ? storage_dtype(graph_.text(items[1])) : std::nullopt;
    if (!dtype) fail("a storage whose class is unknown");
    Storage storage;
    storage.key = string(items[2], "the key of a storage");
    storage.location = string(items[3], "the location of a storage");
    storage.dtype = *dtype;
    storage.count = count(items[4], "the size of a storage");
    if (!checked_multiply(storage.count, dtype_bits(*dtype) / 8))
      fail("storage {} is too large", in_quotes(storage.key));
    tree_.storage_of_node_[id] = static_cast<std::int32_t>(find_or_add(std::move(storage)));
  }

  std::uint32_t find_or_add(Storage storage) {
    const auto [known, fresh] = numbers_.emplace(storage.key, static_cast<std::uint32_t>(tree_.storages_.size()));
    if (fresh) {
      tree_.storages_.push_back(std::move(storage));
    } else if (tree_.storages_[known->second].nbytes() != storage.nbytes()) {
      fail("storage {} has two sizes: {} and {} bytes", in_quotes(storage.key), tree_.storages_[known->second].nbytes(),
           storage.nbytes());
    }
    return known->second;
  }

  void add_tensor(NodeId id) {
    const bool typed = graph_.calls(id, kRebuildTyped);
    if (typed || graph_.calls(id, kRebuildTensor)) return add_rebuilt(id, typed);
    if (graph_.calls(id, kRebuildParameter) || graph_.calls(id, kRebuildParameterWithState)) add_parameter(id);
  }

  // What comes after the call could make another tensor of it.
  void refuse_changes(NodeId id) const {
    if (graph_.items(id).size() > 2 || !graph_.entries(id).empty() || !graph_.appended(id).empty()) {
      fail_unsupported("a tensor that is changed after it was made");
    }
  }

  bool boolean(NodeId id, std::string_view what) const {
    if (graph_.kind(id) != Kind::kBool) fail("{} is not a bool", what);
    return graph_.node(id).integer != 0;
  }

  void add_parameter(NodeId id) {
    refuse_changes(id);
    const auto arguments = graph_.items(graph_.items(id)[1]);
    const std::size_t expected = graph_.calls(id, kRebuildParameter) ? 3 : 4;
    if (arguments.size() != expected) fail("a parameter with {} arguments, expected {}", arguments.size(), expected);
    const std::int32_t data = tree_.tensor_of_node_[arguments[0]];
    if (data < 0) fail("a parameter of what is not a tensor");
    TensorReference tensor = tree_.tensors_[static_cast<std::size_t>(data)];
    tensor.is_parameter = true;
    tensor.requires_grad = boolean(arguments[1], "whether a parameter requires a gradient");
    add(id, std::move(tensor));
  }

  // (storage, offset, shape, strides, requires_grad, hooks[, dtype][, metadata])
  void add_rebuilt(NodeId id, bool typed) {
    refuse_changes(id);
    const auto arguments = graph_.items(graph_.items(id)[1]);
    const std::size_t expected = typed ? 7 : 6;
    if (arguments.size() != expected && arguments.size() != expected + 1) {
      fail("a tensor with {} arguments", arguments.size());
    }
    if (arguments.size() > expected) check_metadata(arguments[expected]);
    const std::int32_t number = tree_.storage_of_node_[arguments[0]];
    if (number < 0) fail("a tensor without a storage");
    TensorReference tensor;
    tensor.storage = static_cast<std::uint32_t>(number);
    tensor.dtype = tree_.storages_[tensor.storage].dtype;
    if (typed) {
      const auto dtype =
          graph_.kind(arguments[6]) == Kind::kGlobal ? global_dtype(graph_.text(arguments[6])) : std::nullopt;
      if (!dtype) fail("a tensor whose dtype is unknown");
      tensor.dtype = *dtype;
    }
    const std::uint64_t offset = count(arguments[1], "the offset of a tensor");
    tensor.shape = sizes(arguments[2], "a dimension");
    tensor.strides = sizes(arguments[3], "a stride");
    tensor.requires_grad = boolean(arguments[4], "whether a tensor requires a gradient");
    if (tensor.shape.size() != tensor.strides.size()) {
      fail("a tensor with {} dimensions and {} strides", tensor.shape.size(), tensor.strides.size());
    }
    check_extent(tensor, offset);
    tensor.offset = offset * (dtype_bits(tensor.dtype) / 8);
    add(id, std::move(tensor));
  }

  // It holds bits that give the stored bytes another meaning: conjugated, negated.
  void check_metadata(NodeId id) const {
    if (graph_.kind(id) == Kind::kNone) return;
    if (graph_.kind(id) != Kind::kDict) fail("a tensor whose metadata is not a dict");
    for (const auto& [key, value] : graph_.entries(id)) {
      if (graph_.kind(value) == Kind::kBool && graph_.node(value).integer == 0) continue;
      fail_unsupported("a tensor that is marked {}, which can't be read", in_quotes(string(key, "a mark of a tensor")));
    }
  }

  Shape sizes(NodeId id, std::string_view what) const {
    // torch.Size is a tuple too.
    const NodeId tuple = graph_.calls(id, "torch Size") ? first_argument(id) : id;
    if (tuple == pickle::kNoNode || graph_.kind(tuple) != Kind::kTuple) fail("a shape that is not a tuple");
    if (graph_.items(tuple).size() > kMostDimensions) {
      fail("a tensor with {} dimensions, more than {}", graph_.items(tuple).size(), kMostDimensions);
    }
    Shape result;
    for (const NodeId item : graph_.items(tuple)) result.push_back(static_cast<std::int64_t>(count(item, what)));
    return result;
  }

  NodeId first_argument(NodeId call) const {
    const auto arguments = graph_.items(graph_.items(call)[1]);
    return arguments.empty() ? pickle::kNoNode : arguments[0];
  }

  // The last element that the strides reach lies in the storage.
  void check_extent(const TensorReference& tensor, std::uint64_t offset) const {
    const Storage& storage = tree_.storages_[tensor.storage];
    const std::uint64_t available = storage.nbytes() / (dtype_bits(tensor.dtype) / 8);
    if (const NbytesResult result = try_tensor_nbytes(tensor.dtype, tensor.shape); result.problem != nullptr) {
      fail("a tensor of {} {} {}", dtype_name(tensor.dtype), shape_text(tensor.shape), result.problem);
    }
    std::uint64_t last = offset;
    bool empty = false;
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      empty = empty || tensor.shape[i] == 0;
      if (tensor.shape[i] == 0) continue;
      const auto reach = checked_multiply(static_cast<std::uint64_t>(tensor.shape[i] - 1),
                                          static_cast<std::uint64_t>(tensor.strides[i]));
      const auto sum = reach ? checked_add(last, *reach) : std::nullopt;
      if (!sum) fail("a tensor's strides reach beyond 2^64");
      last = *sum;
    }
    if (empty ? offset > available : last >= available) {
      fail("a tensor of {} with offset {} needs element {} of storage {}, which has {}", shape_text(tensor.shape),
           offset, last, in_quotes(storage.key), available);
    }
  }

  void add(NodeId id, TensorReference tensor) {
    tree_.tensor_of_node_[id] = static_cast<std::int32_t>(tree_.tensors_.size());
    tree_.tensors_.push_back(std::move(tensor));
  }

  Tree& tree_;
  const Graph& graph_;
  NodeId current_ = 0;
  std::unordered_map<std::string, std::uint32_t> numbers_;  // of storages, by key
};

namespace {

// Walks a tree by its containers.
class Namer {
 public:
  Namer(const Tree& tree, std::string_view path, WalkLimits limits)
      : tree_(tree), graph_(tree.graph()), path_(path), limits_(limits) {}

  std::vector<std::pair<std::string, std::uint32_t>> run() {
    visit(graph_.root, "", 0);
    return std::move(named_);
  }

 private:
  static constexpr std::size_t kMostNameBytes = 512 * kMiB;

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> message, Args&&... args) const {
    throw_format(path_, "{}: {}", graph_.what, fmt::format(message, std::forward<Args>(args)...));
  }

  void visit(NodeId id, const std::string& name, unsigned depth) {
    if (++steps_ > limits_.steps) fail("the tree has more than {} values", limits_.steps);
    if (depth > pickle::kMaxDepth) fail("values are nested deeper than {}", pickle::kMaxDepth);
    if (const std::int32_t tensor = tree_.tensor_at(id); tensor >= 0) {
      if (named_.size() >= std::max(limits_.names, 4 * tree_.tensors().size())) {
        fail("{} tensors are repeated more than {} times", tree_.tensors().size(), named_.size());
      }
      named_.emplace_back(name.empty() ? "tensor" : name, static_cast<std::uint32_t>(tensor));
      return;
    }
    const Kind kind = graph_.kind(id);
    if (kind == Kind::kList || kind == Kind::kTuple || kind == Kind::kSet || kind == Kind::kFrozenSet) {
      std::size_t number = 0;
      for (const NodeId item : graph_.items(id)) enter(item, name, std::to_string(number++), depth);
    } else if (kind == Kind::kDict || kind == Kind::kCall) {
      for (const auto& [key, value] : graph_.entries(id)) enter(value, name, key_text(key), depth);
      if (is_set(id)) visit_arguments(id, name, depth);
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

  // Only what can have tensors in it needs a name.
  void enter(NodeId id, const std::string& parent, const std::string& name, unsigned depth) {
    const Kind kind = graph_.kind(id);
    const bool leaf = kind < Kind::kList || kind == Kind::kGlobal || kind == Kind::kPersistent;
    if (leaf) return;
    const std::string joined = parent.empty() ? name : parent + "/" + name;
    name_bytes_ += joined.size();
    if (name_bytes_ > kMostNameBytes) {
      fail("the paths of its tensors take more than {} bytes", kMostNameBytes);
    }
    visit(id, joined, depth + 1);
  }

  std::string key_text(NodeId key) const {
    switch (graph_.kind(key)) {
      case Kind::kString:
        return std::string(graph_.text(key));
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
  const Graph& graph_;
  std::string_view path_;
  WalkLimits limits_;
  std::size_t steps_ = 0;
  std::size_t name_bytes_ = 0;
  std::vector<std::pair<std::string, std::uint32_t>> named_;
};

}  // namespace

Tree::Tree(pickle::Graph graph, std::string_view path, WalkLimits limits)
    : graph_(std::move(graph)), path_(path), limits_(limits) {
  TreeBuilder(*this).build();
}

std::vector<std::pair<std::string, std::uint32_t>> Tree::named_tensors() const {
  return Namer(*this, path_, limits_).run();
}

}  // namespace penstock::torch
