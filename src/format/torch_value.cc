#include "format/torch_value.h"

#include <algorithm>

#include "base/error.h"
#include "format/torch_globals.h"

namespace penstock::torch {
namespace {

using pickle::Graph;
using pickle::Kind;
using pickle::NodeId;

class Resolver {
 public:
  Resolver(const Tree& tree, NodeId id, std::string_view path)
      : tree_(tree), graph_(tree.graph()), id_(id), path_(path) {}

  // Throws for what is more than data.
  TorchValue run() {
    if (tree_.tensor_at(id_) >= 0) return resolve_tensor();
    if (tree_.array_at(id_) >= 0) return resolve_array();
    if (const StorageUse* use = tree_.storage_at(id_)) {
      value_.kind = TorchKind::kStorage;
      value_.part = {use->storage, use->torch_dtype, use->offset, use->count};
      return std::move(value_);
    }
    const pickle::Node& node = graph_.node(id_);
    if (node.kind == Kind::kPersistent) refuse_named("a class by its persistent id");
    if (node.kind == Kind::kOldString) {
      throw_unsupported(path_, "{}: a string of Python 2 is not valid UTF-8", graph_.place(id_));
    }
    value_.text = node.text();
    if (node.kind == Kind::kFloat) value_.number = node.number();
    if (node.kind == Kind::kInteger || node.kind == Kind::kBool) value_.integer = node.integer;
    value_.kind = kind_of(node.kind);
    if (node.kind == Kind::kCall) {
      resolve_call();
    } else if (node.kind == Kind::kGlobal) {
      resolve_global(node.text());
    } else if (is_container(node.kind)) {
      value_.items.assign(graph_.items(id_).begin(), graph_.items(id_).end());
      value_.entries.assign(graph_.entries(id_).begin(), graph_.entries(id_).end());
    }
    return std::move(value_);
  }

  // What would have been made.
  TorchValue keep() {
    value_ = {};
    value_.kind = TorchKind::kOpaque;
    value_.name = tree_.opaque_name(id_);
    if (graph_.kind(id_) != Kind::kCall) return std::move(value_);
    const auto items = graph_.items(id_);
    value_.opaque.arguments = items[1];
    value_.opaque.states.assign(items.begin() + 2, items.end());
    value_.opaque.items.assign(graph_.appended(id_).begin(), graph_.appended(id_).end());
    value_.opaque.entries.assign(graph_.entries(id_).begin(), graph_.entries(id_).end());
    return std::move(value_);
  }

 private:
  static bool is_container(Kind kind) {
    return kind == Kind::kList || kind == Kind::kTuple || kind == Kind::kDict || kind == Kind::kSet ||
           kind == Kind::kFrozenSet;
  }

  TorchKind kind_of(Kind kind) const {
    switch (kind) {
      case Kind::kNone:
        return TorchKind::kNone;
      case Kind::kBool:
        return TorchKind::kBool;
      case Kind::kInteger:
        return TorchKind::kInteger;
      case Kind::kBigInteger:
        return TorchKind::kBigInteger;
      case Kind::kFloat:
        return TorchKind::kFloat;
      case Kind::kString:
        return TorchKind::kString;
      case Kind::kBytes:
        return TorchKind::kBytes;
      case Kind::kByteArray:
        return TorchKind::kByteArray;
      case Kind::kList:
        return TorchKind::kList;
      case Kind::kTuple:
        return TorchKind::kTuple;
      case Kind::kDict:
        return TorchKind::kDict;
      case Kind::kSet:
        return TorchKind::kSet;
      case Kind::kFrozenSet:
        return TorchKind::kFrozenSet;
      default:
        return TorchKind::kNone;  // calls and globals decide for themselves
    }
  }

  [[noreturn]] void refuse(std::string_view global) const {
    std::string name(global);
    std::replace(name.begin(), name.end(), ' ', '.');
    refuse_named(in_quotes(name));
  }

  [[noreturn]] void refuse_named(std::string_view name) const {
    throw_unsupported(path_, "{}: {} is used in a way that data does not need ({})", graph_.place(id_), name,
                      kKeepHint);
  }

  TorchValue resolve_tensor() {
    value_.kind = TorchKind::kTensor;
    value_.integer = tree_.tensor_at(id_);
    value_.attributes = tree_.tensors()[static_cast<std::size_t>(value_.integer)].attributes;
    return std::move(value_);
  }

  TorchValue resolve_array() {
    const numpy::Array& array = tree_.arrays()[static_cast<std::size_t>(tree_.array_at(id_))];
    value_.kind = TorchKind::kNumpyArray;
    value_.column_major = array.column_major;
    take_type(array.type);
    take_bytes(array.data);
    value_.items = {array.shape_node};
    return std::move(value_);
  }

  void resolve_global(std::string_view global) {
    const std::string_view name = global.substr(global.find(' ') + 1);
    if (is_dtype_global(global)) {
      const auto dtype = parse_torch_dtype(name);
      value_.kind = TorchKind::kDType;
      value_.text = dtype ? dtype_torch_name(*dtype) : name;
    } else if (is_scheme_global(global)) {
      value_.kind = TorchKind::kScheme;
      value_.text = name;
    } else {
      refuse(global);
    }
  }

  void resolve_call() {
    const auto items = graph_.items(id_);
    if (graph_.kind(items[0]) != Kind::kGlobal) refuse_named("a call of what is not a global");
    const std::string_view global = graph_.text(items[0]);
    if (graph_.node(items[0]).foreign) refuse(global);
    const auto arguments = graph_.items(items[1]);
    const std::string_view name = global.substr(global.find(' ') + 1);
    if (global == "collections OrderedDict") return resolve_dict(TorchKind::kOrderedDict, items, arguments);
    if (global == "collections Counter") return resolve_dict(TorchKind::kCounter, items, arguments);
    if (items.size() > 2 || !graph_.entries(id_).empty() || !graph_.appended(id_).empty()) refuse(global);
    if (global == "torch Size") return resolve_sequence(TorchKind::kSize, global, arguments);
    if (global == "torch device") return resolve_device(global, arguments);
    if (global == "torch.serialization _get_layout") return resolve_layout(global, arguments);
    if (global == "_codecs encode") return resolve_encoded(global);
    if (name == "scalar") return resolve_numpy_scalar(global, arguments);
    if (global.starts_with("builtins ") || global.starts_with("__builtin__ "))
      return resolve_builtin(global, name, arguments);
    if (is_special_rebuild(global) || (is_parameter(global) && !arguments.empty() && is_rebuilt(arguments[0])))
      return resolve_rebuilt(name, arguments);
    refuse(global);
  }

  static bool is_parameter(std::string_view global) {
    return global == kRebuildParameter || global == kRebuildParameterWithState;
  }

  bool is_rebuilt(NodeId id) const {
    return graph_.kind(id) == Kind::kCall && graph_.kind(graph_.items(id)[0]) == Kind::kGlobal &&
           is_special_rebuild(graph_.text(graph_.items(id)[0]));
  }

  // A tensor that only torch can put together.
  void resolve_rebuilt(std::string_view name, std::span<const NodeId> arguments) {
    value_.kind = TorchKind::kRebuilt;
    value_.name = name;
    value_.items.assign(arguments.begin(), arguments.end());
  }

  void resolve_layout(std::string_view global, std::span<const NodeId> arguments) {
    if (arguments.size() != 1 || graph_.kind(arguments[0]) != Kind::kString) refuse(global);
    value_.kind = TorchKind::kLayout;
    value_.text = graph_.text(arguments[0]);
  }

  // What was given to it is among its entries already; module.state_dict() sets an attribute on it.
  void resolve_dict(TorchKind kind, std::span<const NodeId> items, std::span<const NodeId> arguments) {
    value_.kind = kind;
    if (arguments.size() > 1 || !graph_.appended(id_).empty() || items.size() > 3) refuse(graph_.text(items[0]));
    value_.entries.assign(graph_.entries(id_).begin(), graph_.entries(id_).end());
    if (items.size() == 3) value_.attributes = items[2];
  }

  void resolve_sequence(TorchKind kind, std::string_view global, std::span<const NodeId> arguments) {
    value_.kind = kind;
    if (arguments.empty()) return;
    const Kind found = graph_.kind(arguments[0]);
    if (arguments.size() > 1 || (found != Kind::kTuple && found != Kind::kList)) refuse(global);
    const auto items = graph_.items(arguments[0]);
    // What a tensor holds may not be there yet.
    const auto is_integer = [this](NodeId item) { return graph_.kind(item) == Kind::kInteger; };
    if (kind == TorchKind::kSize && !std::all_of(items.begin(), items.end(), is_integer)) refuse(global);
    value_.items.assign(items.begin(), items.end());
  }

  void resolve_device(std::string_view global, std::span<const NodeId> arguments) {
    if (arguments.empty() || arguments.size() > 2 || graph_.kind(arguments[0]) != Kind::kString ||
        (arguments.size() == 2 && graph_.kind(arguments[1]) != Kind::kInteger)) {
      refuse(global);
    }
    value_.kind = TorchKind::kDevice;
    value_.items.assign(arguments.begin(), arguments.end());
  }

  // How protocol 2 writes bytes: as text of the same code points.
  void resolve_encoded(std::string_view global) {
    if (!take_bytes(id_)) refuse(global);
    value_.kind = TorchKind::kBytes;
  }

  void resolve_builtin(std::string_view global, std::string_view name, std::span<const NodeId> arguments) {
    if (name == "set") return resolve_sequence(TorchKind::kSet, global, arguments);
    if (name == "frozenset") return resolve_sequence(TorchKind::kFrozenSet, global, arguments);
    if (name == "complex") return resolve_complex(global, arguments);
    if (name == "bytearray" || name == "bytes") return resolve_bytes(global, name, arguments);
    refuse(global);
  }

  void resolve_complex(std::string_view global, std::span<const NodeId> arguments) {
    if (arguments.size() != 2) refuse(global);
    value_.kind = TorchKind::kComplex;
    value_.number = real_number(global, arguments[0]);
    value_.imaginary = real_number(global, arguments[1]);
  }

  double real_number(std::string_view global, NodeId id) const {
    const pickle::Node& node = graph_.node(id);
    if (node.kind != Kind::kFloat && node.kind != Kind::kInteger) refuse(global);
    return node.kind == Kind::kFloat ? node.number() : static_cast<double>(node.integer);
  }

  // bytearray(bytes), or of older Pythons bytearray(text, 'latin-1')
  void resolve_bytes(std::string_view global, std::string_view name, std::span<const NodeId> arguments) {
    value_.kind = name == "bytes" ? TorchKind::kBytes : TorchKind::kByteArray;
    if (arguments.empty()) return;
    const bool is_text = arguments.size() == 2 && graph_.kind(arguments[0]) == Kind::kString &&
                         graph_.kind(arguments[1]) == Kind::kString && graph_.text(arguments[1]) == "latin-1";
    if (is_text) {
      value_.text = graph_.text(arguments[0]);
      value_.integer = kIsText;
    } else if (arguments.size() != 1 || !take_bytes(arguments[0])) {
      refuse(global);
    }
  }

  bool take_bytes(NodeId id) {
    const auto bytes = numpy::find_bytes(graph_, id);
    if (!bytes) return false;
    value_.text = bytes->text;
    value_.integer = bytes->is_text ? kIsText : 0;
    return true;
  }

  void take_type(const numpy::TypeName& type) { value_.name = (type.big_endian ? ">" : "<") + std::string(type.name); }

  // scalar(dtype(name, ...), bytes)
  void resolve_numpy_scalar(std::string_view global, std::span<const NodeId> arguments) {
    const auto type = arguments.size() == 2 ? numpy::find_type(graph_, arguments[0]) : std::nullopt;
    if (!type || !take_bytes(arguments[1])) refuse(global);
    value_.kind = TorchKind::kNumpyScalar;
    take_type(*type);
  }

  static constexpr std::int64_t kIsText = 1;  // of bytes: still UTF-8, and each character is a byte

  const Tree& tree_;
  const Graph& graph_;
  const NodeId id_;
  std::string_view path_;
  TorchValue value_;
};

// An object of somebody's class, or the class.
bool is_foreign(const Graph& graph, NodeId id) {
  if (graph.kind(id) == Kind::kCall) id = graph.items(id)[0];
  return graph.kind(id) == Kind::kGlobal && graph.node(id).foreign;
}

}  // namespace

TorchValue resolve(const Tree& tree, pickle::NodeId id, OpaqueValues opaque, std::string_view path) {
  if (opaque == OpaqueValues::kRefuse) return Resolver(tree, id, path).run();
  if (tree.graph().kind(id) == Kind::kOldString) {
    TorchValue bytes;
    bytes.kind = TorchKind::kBytes;
    bytes.text = tree.graph().text(id);
    return bytes;
  }
  const Kind kind = tree.graph().kind(id);
  const bool is_object = kind == Kind::kCall || kind == Kind::kGlobal || kind == Kind::kPersistent;
  // A file may have a million of them: none is worth an exception.
  if (is_foreign(tree.graph(), id)) return Resolver(tree, id, path).keep();
  try {
    return Resolver(tree, id, path).run();
  } catch (const Error& problem) {
    if (!is_object || problem.kind() != ErrorKind::kUnsupportedFormat) throw;
    return Resolver(tree, id, path).keep();
  }
}

}  // namespace penstock::torch
