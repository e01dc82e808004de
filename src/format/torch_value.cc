#include "format/torch_value.h"

#include <algorithm>

#include "base/error.h"

namespace penstock::torch {
namespace {

using pickle::Graph;
using pickle::Kind;
using pickle::NodeId;

class Resolver {
 public:
  Resolver(const Tree& tree, NodeId id, std::string_view path)
      : tree_(tree), graph_(tree.graph()), id_(id), path_(path) {}

  TorchValue run() {
    if (tree_.tensor_at(id_) >= 0) return resolve_tensor();
    if (tree_.storage_at(id_) >= 0) {
      value_.kind = TorchKind::kStorage;
      value_.integer = tree_.storage_at(id_);
      return std::move(value_);
    }
    const pickle::Node& node = graph_.node(id_);
    value_.text = node.text;
    value_.integer = node.integer;
    value_.number = node.number;
    value_.kind = kind_of(node.kind);
    if (node.kind == Kind::kCall) {
      resolve_call();
    } else if (node.kind == Kind::kGlobal) {
      resolve_global(node.text);
    } else if (is_container(node.kind)) {
      value_.items.assign(graph_.items(id_).begin(), graph_.items(id_).end());
      value_.entries.assign(graph_.entries(id_).begin(), graph_.entries(id_).end());
    }
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
    throw_unsupported(path_, "{}: {} is used in a way that data does not need", graph_.place(id_), in_quotes(name));
  }

  TorchValue resolve_tensor() {
    value_.kind = TorchKind::kTensor;
    value_.integer = tree_.tensor_at(id_);
    // _rebuild_parameter_with_state carries what was set on the parameter.
    const auto arguments = graph_.items(graph_.items(id_)[1]);
    if (arguments.size() == 4 && tree_.tensors()[static_cast<std::size_t>(value_.integer)].is_parameter) {
      value_.attributes = arguments[3];
    }
    return std::move(value_);
  }

  void resolve_global(std::string_view global) {
    const auto dtype = parse_torch_dtype(global.substr(global.find(' ') + 1));
    if (!global.starts_with("torch ") || !dtype) refuse(global);
    value_.kind = TorchKind::kDType;
    value_.text = dtype_torch_name(*dtype);
  }

  void resolve_call() {
    const auto items = graph_.items(id_);
    const std::string_view global = graph_.text(items[0]);
    const auto arguments = graph_.items(items[1]);
    const std::string_view name = global.substr(global.find(' ') + 1);
    if (global == "collections OrderedDict") return resolve_ordered_dict(items, arguments);
    if (items.size() > 2 && global != "numpy dtype") refuse(global);
    if (!graph_.entries(id_).empty() || !graph_.appended(id_).empty()) refuse(global);
    if (global == "torch Size") return resolve_sequence(TorchKind::kSize, global, arguments);
    if (global == "torch device") return resolve_device(global, arguments);
    if (global == "_codecs encode") return resolve_encoded(global, arguments);
    if (name == "scalar") return resolve_numpy_scalar(global, arguments);
    if (global.starts_with("builtins ") || global.starts_with("__builtin__ "))
      return resolve_builtin(global, name, arguments);
    refuse(global);
  }

  // Made empty and then filled; module.state_dict() sets an attribute on it.
  void resolve_ordered_dict(std::span<const NodeId> items, std::span<const NodeId> arguments) {
    value_.kind = TorchKind::kOrderedDict;
    if (!arguments.empty() || !graph_.appended(id_).empty() || items.size() > 3) refuse("collections OrderedDict");
    value_.entries.assign(graph_.entries(id_).begin(), graph_.entries(id_).end());
    if (items.size() == 3) value_.attributes = items[2];
  }

  void resolve_sequence(TorchKind kind, std::string_view global, std::span<const NodeId> arguments) {
    value_.kind = kind;
    if (arguments.empty()) return;
    const Kind found = graph_.kind(arguments[0]);
    if (arguments.size() > 1 || (found != Kind::kTuple && found != Kind::kList)) refuse(global);
    const auto items = graph_.items(arguments[0]);
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
  void resolve_encoded(std::string_view global, std::span<const NodeId> arguments) {
    if (arguments.size() != 2 || graph_.kind(arguments[0]) != Kind::kString ||
        graph_.kind(arguments[1]) != Kind::kString || graph_.text(arguments[1]) != "latin1") {
      refuse(global);
    }
    value_.kind = TorchKind::kBytes;
    value_.text = graph_.text(arguments[0]);
    value_.integer = 1;  // still UTF-8: each character is a byte
  }

  void resolve_builtin(std::string_view global, std::string_view name, std::span<const NodeId> arguments) {
    if (name == "set") return resolve_sequence(TorchKind::kSet, global, arguments);
    if (name == "frozenset") return resolve_sequence(TorchKind::kFrozenSet, global, arguments);
    if (name == "complex") return resolve_complex(global, arguments);
    if (name == "bytearray" || name == "bytes") return resolve_bytes(global, name, arguments);
    refuse(global);
  }

  void resolve_complex(std::string_view global, std::span<const NodeId> arguments) {
    if (arguments.size() != 2 || graph_.kind(arguments[0]) != Kind::kFloat ||
        graph_.kind(arguments[1]) != Kind::kFloat) {
      refuse(global);
    }
    value_.kind = TorchKind::kComplex;
    value_.number = graph_.node(arguments[0]).number;
    value_.imaginary = graph_.node(arguments[1]).number;
  }

  void resolve_bytes(std::string_view global, std::string_view name, std::span<const NodeId> arguments) {
    value_.kind = name == "bytes" ? TorchKind::kBytes : TorchKind::kByteArray;
    if (arguments.empty()) return;
    take_bytes(global, arguments[0]);
  }

  // Bytes as they are, or encoded; no deeper, so that nothing can nest.
  void take_bytes(std::string_view global, NodeId id) {
    const bool encoded = graph_.calls(id, "_codecs encode");
    if (!encoded && graph_.kind(id) != Kind::kBytes) refuse(global);
    const TorchValue inner = resolve(tree_, id, path_);
    value_.text = inner.text;
    value_.integer = inner.integer;
  }

  // A number or a string: a letter and a size, such as "f8".
  static bool is_plain(std::string_view name) {
    constexpr std::string_view kLetters = "biufcSU";
    constexpr std::size_t kLongest = 10;
    return name.size() >= 2 && name.size() <= kLongest && kLetters.find(name[0]) != std::string_view::npos &&
           std::all_of(name.begin() + 1, name.end(), [](char digit) { return digit >= '0' && digit <= '9'; });
  }

  // The state of a dtype is (version, byte order, ...).
  bool is_little_endian(NodeId dtype) const {
    const auto states = graph_.items(dtype).subspan(2);
    if (states.size() > 1 || !graph_.entries(dtype).empty() || !graph_.appended(dtype).empty()) return false;
    if (states.empty()) return true;
    if (graph_.kind(states[0]) != Kind::kTuple || graph_.items(states[0]).size() < 2) return false;
    const NodeId order = graph_.items(states[0])[1];
    return graph_.kind(order) == Kind::kString && (graph_.text(order) == "<" || graph_.text(order) == "|");
  }

  // scalar(dtype(name, ...), bytes)
  void resolve_numpy_scalar(std::string_view global, std::span<const NodeId> arguments) {
    if (arguments.size() != 2 || !graph_.calls(arguments[0], "numpy dtype")) refuse(global);
    const auto description = graph_.items(graph_.items(arguments[0])[1]);
    if (description.empty() || graph_.kind(description[0]) != Kind::kString) refuse(global);
    if (!is_plain(graph_.text(description[0])) || !is_little_endian(arguments[0])) refuse(global);
    take_bytes(global, arguments[1]);
    value_.kind = TorchKind::kNumpyScalar;
    value_.items = {description[0]};
  }

  const Tree& tree_;
  const Graph& graph_;
  const NodeId id_;
  std::string_view path_;
  TorchValue value_;
};

}  // namespace

TorchValue resolve(const Tree& tree, pickle::NodeId id, std::string_view path) {
  return Resolver(tree, id, path).run();
}

}  // namespace penstock::torch
