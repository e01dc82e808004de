#include "format/torch_tree.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/error.h"
#include "base/name_hash.h"
#include "format/torch_globals.h"

namespace penstock::torch {
namespace {

using pickle::Graph;
using pickle::Kind;
using pickle::NodeId;

// More than torch computes with. Without a limit, many tensors that name one long shape would take any amount of
// memory.
constexpr std::size_t kMostDimensions = 64;

// Keys and locations are copied for each storage, however often a pickle names one of them.
constexpr std::size_t kLongestName = 1000;

// Dimensions of all tensors together, beside one for each byte of the pickle: what is written takes two or more.
constexpr std::size_t kFreeDimensions = 64 << 10;

// A tensor is made of a tensor at the most a few times over.
constexpr unsigned kMostLayers = 8;

}  // namespace

class TreeBuilder {
 public:
  explicit TreeBuilder(Tree& tree) : tree_(tree), graph_(tree.graph_) {}

  void build() {
    const auto count = graph_.nodes.size();
    tree_.tensor_of_node_.assign(count, -1);
    tree_.array_of_node_.assign(count, -1);
    tree_.use_of_node_.assign(count, -1);
    for_each(Kind::kPersistent, [this](NodeId id) { add_storage(id); });
    for_each(Kind::kCall, [this](NodeId id) { fill_dict(id); });
    for_each(Kind::kCall, [this](NodeId id) {
      if (find_tensor(id, 0) < 0) add_array(id);
    });
  }

 private:
  template <typename Use>
  void for_each(Kind kind, const Use& use) {
    for (NodeId id = 0; id < graph_.nodes.size(); ++id) {
      if (graph_.kind(id) != kind) continue;
      current_ = id;
      use(id);
    }
  }

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

  std::string_view short_string(NodeId id, std::string_view what) const {
    const std::string_view text = string(id, what);
    if (text.size() > kLongestName) fail("{} has {} bytes, more than {}", what, text.size(), kLongestName);
    return text;
  }

  bool boolean(NodeId id, std::string_view what) const {
    if (graph_.kind(id) != Kind::kBool) fail("{} is not a bool", what);
    return graph_.node(id).integer != 0;
  }

  std::string_view global(NodeId id) const { return graph_.kind(id) == Kind::kGlobal ? graph_.text(id) : ""; }

  // --- storages ---

  // ('storage', class, key, location, count), and in the legacy format a view of it. ('module', class, ...) stands for
  // the class.
  void add_storage(NodeId id) {
    const NodeId tuple = graph_.items(id)[0];
    if (graph_.kind(tuple) != Kind::kTuple) fail("a persistent id is not a tuple");
    const auto items = graph_.items(tuple);
    const std::string_view kind = items.empty() ? "" : string(items[0], "the kind of a persistent id");
    if (kind == "module" && items.size() > 1) return;
    if (items.size() < 5 || items.size() > 6 || kind != "storage") {
      fail_unsupported("a persistent id that is not a storage's");
    }
    const StorageClass* known = find_storage_class(global(items[1]));
    if (known == nullptr) fail("a storage whose class is unknown");
    Storage storage;
    storage.key = short_string(items[2], "the key of a storage");
    storage.location = short_string(items[3], "the location of a storage");
    storage.dtype = known->dtype;
    storage.count = count(items[4], "the size of a storage");
    if (!checked_multiply(storage.count, dtype_bits(storage.dtype) / 8))
      fail("storage {} is too large", in_quotes(storage.key));
    StorageUse use{0, known->dtype, known->torch_dtype, known->quantized, 0, storage.count};
    if (items.size() == 6 && graph_.kind(items[5]) != Kind::kNone) narrow(use, items[5], storage);
    use.storage = find_or_add(graph_.text(items[2]), std::move(storage));
    tree_.use_of_node_[id] = static_cast<std::int32_t>(tree_.uses_.size());
    tree_.uses_.push_back(use);
  }

  // (key of the view, offset, count), as torch wrote them before 0.4.
  void narrow(StorageUse& use, NodeId view, const Storage& storage) const {
    if (graph_.kind(view) != Kind::kTuple || graph_.items(view).size() != 3) {
      fail("a view of a storage that is not a tuple of three");
    }
    const std::uint64_t offset = count(graph_.items(view)[1], "the offset of a storage's view");
    use.count = count(graph_.items(view)[2], "the size of a storage's view");
    if (offset > storage.count || use.count > storage.count - offset) {
      fail("a view of elements {} to {} of storage {}, which has {}", offset, offset + use.count,
           in_quotes(storage.key), storage.count);
    }
    use.offset = offset * (dtype_bits(use.dtype) / 8);
  }

  std::uint32_t find_or_add(std::string_view key, Storage storage) {
    const auto [known, fresh] = numbers_.emplace(key, static_cast<std::uint32_t>(tree_.storages_.size()));
    if (fresh) {
      tree_.storages_.push_back(std::move(storage));
    } else if (tree_.storages_[known->second].nbytes() != storage.nbytes()) {
      fail("storage {} has two sizes: {} and {} bytes", in_quotes(storage.key), tree_.storages_[known->second].nbytes(),
           storage.nbytes());
    }
    return known->second;
  }

  // --- dicts that are made with what is in them ---

  // OrderedDict([[key, value], ...]) of Python 2, Counter({key: value}): their entries, as if they had been set.
  void fill_dict(NodeId id) {
    const bool counter = graph_.calls(id, "collections Counter");
    if (!counter && !graph_.calls(id, "collections OrderedDict")) return;
    const auto arguments = graph_.items(graph_.items(id)[1]);
    if (arguments.size() != 1) return;
    std::vector<std::pair<NodeId, NodeId>> entries =
        counter ? entries_of_dict(arguments[0]) : entries_of_pairs(arguments[0]);
    filled_ += entries.size();
    if (filled_ > graph_.nodes.size()) fail("a dict whose entries are used again and again");
    const auto later = graph_.entries(id);
    entries.insert(entries.end(), later.begin(), later.end());
    // Those that were set after it was made replace those before.
    tree_.graph_.added_to(id).entries = std::move(entries);
  }

  std::vector<std::pair<NodeId, NodeId>> entries_of_dict(NodeId id) const {
    if (graph_.kind(id) != Kind::kDict) fail("a Counter of what is not a dict");
    return {graph_.entries(id).begin(), graph_.entries(id).end()};
  }

  std::vector<std::pair<NodeId, NodeId>> entries_of_pairs(NodeId id) const {
    const auto is_sequence = [this](NodeId each) {
      return graph_.kind(each) == Kind::kList || graph_.kind(each) == Kind::kTuple;
    };
    if (graph_.kind(id) == Kind::kDict) return entries_of_dict(id);
    if (!is_sequence(id)) fail("an OrderedDict of what is not a list of pairs");
    std::vector<std::pair<NodeId, NodeId>> entries;
    for (const NodeId pair : graph_.items(id)) {
      if (!is_sequence(pair) || graph_.items(pair).size() != 2) fail("an OrderedDict of what is not a list of pairs");
      entries.emplace_back(graph_.items(pair)[0], graph_.items(pair)[1]);
    }
    return entries;
  }

  // --- tensors ---

  void add_array(NodeId id) {
    auto array = numpy::find_array(graph_, id, tree_.path_);
    if (!array) return;
    // A pickle holds the bytes of each array once; few are shared.
    array_nbytes_ += array->nbytes;
    if (array_nbytes_ / 4 > graph_.consumed) fail("arrays that share their bytes take {} in all", array_nbytes_);
    tree_.array_of_node_[id] = static_cast<std::int32_t>(tree_.arrays_.size());
    tree_.arrays_.push_back(*std::move(array));
  }

  // The number of the tensor that a call makes; -1 for a call that makes none. What it is made of may come later in the
  // pickle: the state of an object does.
  std::int32_t find_tensor(NodeId id, unsigned layers) {
    std::int32_t& number = tree_.tensor_of_node_[id];
    if (number >= 0 || graph_.kind(id) != Kind::kCall) return number;
    if (layers > kMostLayers) fail("a tensor that is made of itself");
    auto tensor = make_instance(id, layers);
    if (!tensor) {
      tensor = make_by_function(global(graph_.items(id)[0]), graph_.items(graph_.items(id)[1]), layers);
      if (tensor) refuse_changes(id);
    }
    if (!tensor) return -1;
    if (tensor->requires_grad && !can_have_gradient(tensor->dtype)) {
      fail("a tensor of {} that requires a gradient", dtype_name(tensor->dtype));
    }
    number = static_cast<std::int32_t>(tree_.tensors_.size());
    tree_.tensors_.push_back(*std::move(tensor));
    return number;
  }

  static bool can_have_gradient(DType dtype) {
    return dtype_is_floating(dtype) || dtype == DType::kC32 || dtype == DType::kC64 || dtype == DType::kC128;
  }

  const TensorReference* find_data(NodeId id, unsigned layers) {
    const std::int32_t number = find_tensor(id, layers + 1);
    return number < 0 ? nullptr : &tree_.tensors_[static_cast<std::size_t>(number)];
  }

  // What comes after the call could make another tensor of it.
  void refuse_changes(NodeId id) const {
    if (graph_.items(id).size() > 2 || !graph_.entries(id).empty() || !graph_.appended(id).empty()) {
      fail_unsupported("a tensor that is changed after it was made");
    }
  }

  // An instance of a class, as torch before 0.4 pickled them: Parameter(data), FloatTensor(), and then their state.
  std::optional<TensorReference> make_instance(NodeId id, unsigned layers) {
    const std::string_view callee = global(graph_.items(id)[0]);
    const bool parameter = callee == kParameterClass;
    if (!parameter && !is_old_tensor_class(callee)) return std::nullopt;
    const auto items = graph_.items(id);
    const auto arguments = graph_.items(items[1]);
    if (items.size() > 3 || !graph_.entries(id).empty() || !graph_.appended(id).empty()) return std::nullopt;
    std::optional<TensorReference> tensor;
    if (parameter && !arguments.empty() && arguments.size() <= 2) {
      if (const TensorReference* data = find_data(arguments[0], layers)) tensor = *data;
      if (tensor) tensor->requires_grad = arguments.size() < 2 || boolean(arguments[1], kRequiresGrad);
    } else if (!arguments.empty()) {
      return std::nullopt;
    }
    if (items.size() == 3) set_state(tensor, items[2], layers);
    if (tensor) tensor->is_parameter = parameter;
    return tensor;
  }

  // Of a tensor (storage, offset, shape, strides); of a variable (requires_grad, volatile, hooks) or, older,
  // (data, gradient, hooks, requires_grad, volatile).
  void set_state(std::optional<TensorReference>& tensor, NodeId id, unsigned layers) {
    if (graph_.kind(id) != Kind::kTuple) fail_unsupported("a tensor whose state is not a tuple");
    const auto state = graph_.items(id);
    if (state.size() == 4) {
      tensor = make_view(state, {});
    } else if (state.size() == 5) {
      const TensorReference* data = find_data(state[0], layers);
      if (data == nullptr) fail("a tensor of what is not a tensor");
      tensor = *data;
      tensor->requires_grad = boolean(state[3], kRequiresGrad);
    } else if (state.size() == 3 && tensor) {
      tensor->requires_grad = boolean(state[0], kRequiresGrad);
    } else {
      fail("a tensor with a state of {} parts", state.size());
    }
  }

  std::optional<TensorReference> make_by_function(std::string_view function, std::span<const NodeId> arguments,
                                                  unsigned layers) {
    if (function == kRebuildOld) {
      if (arguments.size() != 4) fail("a tensor with {} arguments", arguments.size());
      return make_view(arguments, {});
    }
    if (function == kRebuildTensor || function == kRebuildTyped) return make_rebuilt(function, arguments);
    if (function == kRebuildParameter || function == kRebuildParameterWithState) {
      return make_parameter(function, arguments, layers);
    }
    if (function == kRebuildOnDevice) return make_on_device(arguments, layers);
    if (function == kRebuildFromType) return make_from_type(arguments, layers);
    return std::nullopt;
  }

  // (data, requires_grad, hooks[, state]). Of data that is no plain tensor, Python makes the parameter.
  std::optional<TensorReference> make_parameter(std::string_view function, std::span<const NodeId> arguments,
                                                unsigned layers) {
    const std::size_t expected = function == kRebuildParameter ? 3 : 4;
    if (arguments.size() != expected) fail("a parameter with {} arguments, expected {}", arguments.size(), expected);
    const TensorReference* data = find_data(arguments[0], layers);
    if (data == nullptr && graph_.kind(arguments[0]) == Kind::kCall) return std::nullopt;
    if (data == nullptr) fail("a parameter of what is not a tensor");
    TensorReference tensor = *data;
    tensor.is_parameter = true;
    tensor.requires_grad = boolean(arguments[1], kRequiresGrad);
    if (expected == 4) tensor.attributes = arguments[3];
    return tensor;
  }

  // (data, dtype, device, requires_grad): of a device that has no storages of its own kind.
  std::optional<TensorReference> make_on_device(std::span<const NodeId> arguments, unsigned layers) {
    if (arguments.size() != 4) fail("a tensor with {} arguments", arguments.size());
    const TensorReference* data = find_data(arguments[0], layers);
    if (data == nullptr || global_dtype(global(arguments[1])) != data->dtype) return std::nullopt;
    TensorReference tensor = *data;
    tensor.requires_grad = boolean(arguments[3], kRequiresGrad);
    return tensor;
  }

  // (function, class, its arguments, state): a tensor with attributes, or of a class that is derived from torch's.
  std::optional<TensorReference> make_from_type(std::span<const NodeId> arguments, unsigned layers) {
    if (arguments.size() != 4 || graph_.kind(arguments[2]) != Kind::kTuple)
      fail("a tensor of a type without its parts");
    if (layers >= kMostLayers) fail("a tensor that is made of itself");
    auto tensor = make_by_function(global(arguments[0]), graph_.items(arguments[2]), layers + 1);
    if (!tensor) return std::nullopt;
    if (global(arguments[1]) == kParameterClass) tensor->is_parameter = true;
    tensor->attributes = arguments[3];
    return tensor;
  }

  // (storage, offset, shape, strides, requires_grad, hooks[, dtype][, metadata])
  TensorReference make_rebuilt(std::string_view function, std::span<const NodeId> arguments) {
    const bool typed = function == kRebuildTyped;
    const std::size_t expected = typed ? 7 : 6;
    if (arguments.size() != expected && arguments.size() != expected + 1) {
      fail("a tensor with {} arguments", arguments.size());
    }
    std::optional<DType> dtype;
    if (typed) {
      dtype = global_dtype(global(arguments[6]));
      if (!dtype) fail("a tensor whose dtype is unknown");
    }
    TensorReference tensor = make_view(arguments.first(4), dtype);
    tensor.requires_grad = boolean(arguments[4], kRequiresGrad);
    if (arguments.size() > expected) read_metadata(arguments[expected], tensor);
    return tensor;
  }

  // (storage, offset, shape, strides). `dtype`: other than its storage's.
  TensorReference make_view(std::span<const NodeId> parts, std::optional<DType> dtype) {
    const StorageUse* use = tree_.storage_at(parts[0]);
    if (use == nullptr) fail("a tensor without a storage");
    if (use->quantized) fail_unsupported("a tensor of quantized elements without their scale");
    TensorReference tensor;
    tensor.storage = use->storage;
    tensor.dtype = dtype.value_or(use->dtype);
    const std::uint64_t offset = count(parts[1], "the offset of a tensor");
    tensor.shape = sizes(parts[2], "a dimension");
    tensor.strides = sizes(parts[3], "a stride");
    if (tensor.shape.size() != tensor.strides.size()) {
      fail("a tensor with {} dimensions and {} strides", tensor.shape.size(), tensor.strides.size());
    }
    // Before 0.4 there were no scalars: a tensor without dimensions was empty.
    if (tensor.shape.empty() && use->count == 0) tensor.shape = tensor.strides = {0};
    check_extent(tensor, *use, offset);
    if (use->offset % (dtype_bits(tensor.dtype) / 8) != 0) {
      fail("a tensor of {} from byte {} of its storage on", dtype_name(tensor.dtype), use->offset);
    }
    tensor.offset = use->offset + offset * (dtype_bits(tensor.dtype) / 8);
    return tensor;
  }

  // It holds bits that give the stored bytes another meaning.
  void read_metadata(NodeId id, TensorReference& tensor) const {
    if (graph_.kind(id) == Kind::kNone) return;
    if (graph_.kind(id) != Kind::kDict) fail("a tensor whose metadata is not a dict");
    for (const auto& [key, value] : graph_.entries(id)) {
      const std::string_view mark = string(key, "a mark of a tensor");
      const bool is_bool = graph_.kind(value) == Kind::kBool;
      const bool is_set = !is_bool || graph_.node(value).integer != 0;
      if (mark == "conj" && is_bool) {
        tensor.conjugated = is_set;
      } else if (mark == "neg" && is_bool) {
        tensor.negated = is_set;
      } else if (is_set) {
        fail_unsupported("a tensor that is marked {}, which can't be read", in_quotes(mark));
      }
    }
  }

  Shape sizes(NodeId id, std::string_view what) {
    // torch.Size is a tuple too.
    const NodeId tuple = graph_.calls(id, "torch Size") ? first_argument(id) : id;
    if (tuple == pickle::kNoNode || graph_.kind(tuple) != Kind::kTuple) fail("a shape that is not a tuple");
    if (graph_.items(tuple).size() > kMostDimensions) {
      fail("a tensor with {} dimensions, more than {}", graph_.items(tuple).size(), kMostDimensions);
    }
    // Few bytes make another tensor of the same long shape.
    dimensions_ += graph_.items(tuple).size();
    if (dimensions_ > kFreeDimensions + graph_.consumed) fail("tensors that share their shapes have {}", dimensions_);
    Shape result;
    result.reserve(graph_.items(tuple).size());
    for (const NodeId item : graph_.items(tuple)) result.push_back(static_cast<std::int64_t>(count(item, what)));
    return result;
  }

  NodeId first_argument(NodeId call) const {
    const auto arguments = graph_.items(graph_.items(call)[1]);
    return arguments.empty() ? pickle::kNoNode : arguments[0];
  }

  // The last element that the strides reach lies in the storage.
  void check_extent(const TensorReference& tensor, const StorageUse& use, std::uint64_t offset) const {
    const std::uint64_t available = use.nbytes() / (dtype_bits(tensor.dtype) / 8);
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
           offset, last, in_quotes(tree_.storages_[use.storage].key), available);
    }
  }

  static constexpr std::string_view kRequiresGrad = "whether a tensor requires a gradient";

  Tree& tree_;
  const Graph& graph_;
  NodeId current_ = 0;
  std::uint64_t array_nbytes_ = 0;
  std::size_t filled_ = 0;          // entries that dicts were made with
  std::size_t dimensions_ = 0;      // of all shapes
  NameMap<std::uint32_t> numbers_;  // of storages, by key
};

WalkLimits::WalkLimits(const pickle::Graph& graph)
    : steps(kFreeSteps + kPerValue * graph.nodes.size()),
      names(kFreeNames + kPerValue * graph.nodes.size()),
      name_bytes(kFreeNameBytes + kNameBytesPerByte * static_cast<std::size_t>(graph.consumed)) {}

Tree::Tree(pickle::Graph graph, std::string_view path) : graph_(std::move(graph)), path_(path), limits_(graph_) {
  TreeBuilder(*this).build();
}

}  // namespace penstock::torch
