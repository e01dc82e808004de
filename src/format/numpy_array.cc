#include "format/numpy_array.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "format/layout.h"

namespace penstock::numpy {
namespace {

using pickle::Graph;
using pickle::Kind;
using pickle::NodeId;

struct Element {
  std::string_view name;
  DType dtype;
};
constexpr std::array kElements = {
    Element{"b1", DType::kBool}, Element{"i1", DType::kI8},    Element{"i2", DType::kI16}, Element{"i4", DType::kI32},
    Element{"i8", DType::kI64},  Element{"u1", DType::kU8},    Element{"u2", DType::kU16}, Element{"u4", DType::kU32},
    Element{"u8", DType::kU64},  Element{"f2", DType::kF16},   Element{"f4", DType::kF32}, Element{"f8", DType::kF64},
    Element{"c8", DType::kC64},  Element{"c16", DType::kC128},
};

constexpr std::size_t kMostDimensions = 64;  // NumPy's own limit

bool is_either(const Graph& graph, NodeId call, std::string_view old_name, std::string_view new_name) {
  return graph.calls(call, old_name) || graph.calls(call, new_name);
}

// The bytes that text stands for; nothing when a character is none.
std::optional<std::uint64_t> count_bytes(std::string_view text) {
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < text.size(); ++i, ++count) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) continue;
    if (lead != 0xC2 && lead != 0xC3) return std::nullopt;
    ++i;  // the text is valid UTF-8
  }
  return count;
}

std::optional<Shape> find_shape(const Graph& graph, NodeId id) {
  if (graph.kind(id) != Kind::kTuple || graph.items(id).size() > kMostDimensions) return std::nullopt;
  Shape shape;
  for (const NodeId item : graph.items(id)) {
    if (graph.kind(item) != Kind::kInteger) return std::nullopt;
    shape.push_back(graph.node(item).integer);
  }
  return shape;
}

// What an array is made of, wherever it stands in the call.
struct Parts {
  NodeId shape;
  NodeId dtype;
  bool column_major;
  NodeId data;
};

// _reconstruct(ndarray, (0,), b'b'), then the state ([version,] shape, dtype, is column-major, data).
std::optional<Parts> find_reconstructed(const Graph& graph, NodeId call) {
  const auto items = graph.items(call);
  const auto arguments = graph.items(items[1]);
  if (items.size() != 3 || arguments.size() != 3 || graph.kind(arguments[0]) != Kind::kGlobal ||
      graph.text(arguments[0]) != "numpy ndarray" || graph.kind(items[2]) != Kind::kTuple) {
    return std::nullopt;
  }
  auto state = graph.items(items[2]);
  if (state.size() == 5) state = state.subspan(1);
  if (state.size() != 4 || graph.kind(state[2]) != Kind::kBool) return std::nullopt;
  return Parts{state[0], state[1], graph.node(state[2]).integer != 0, state[3]};
}

// _frombuffer(bytes, dtype, shape, order)
std::optional<Parts> find_buffered(const Graph& graph, NodeId call) {
  const auto arguments = graph.items(graph.items(call)[1]);
  if (graph.items(call).size() != 2 || arguments.size() != 4 || graph.kind(arguments[3]) != Kind::kString) {
    return std::nullopt;
  }
  return Parts{arguments[2], arguments[1], graph.text(arguments[3]) == "F", arguments[0]};
}

std::optional<Parts> find_parts(const Graph& graph, NodeId call) {
  if (!graph.entries(call).empty() || !graph.appended(call).empty()) return std::nullopt;
  if (is_either(graph, call, "numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")) {
    return find_reconstructed(graph, call);
  }
  if (is_either(graph, call, "numpy.core.numeric _frombuffer", "numpy._core.numeric _frombuffer")) {
    return find_buffered(graph, call);
  }
  return std::nullopt;
}

// A letter and a size, such as "f8".
bool is_plain(std::string_view name) {
  constexpr std::string_view kLetters = "biufcSU";
  constexpr std::size_t kLongest = 10;
  return name.size() >= 2 && name.size() <= kLongest && kLetters.find(name[0]) != std::string_view::npos &&
         std::all_of(name.begin() + 1, name.end(), [](char digit) { return digit >= '0' && digit <= '9'; });
}

}  // namespace

std::optional<TypeName> find_type(const Graph& graph, NodeId id) {
  if (!graph.calls(id, "numpy dtype")) return std::nullopt;
  const auto items = graph.items(id);
  const auto arguments = graph.items(items[1]);
  if (arguments.empty() || graph.kind(arguments[0]) != Kind::kString || !is_plain(graph.text(arguments[0])) ||
      items.size() > 3 || !graph.entries(id).empty() || !graph.appended(id).empty()) {
    return std::nullopt;
  }
  TypeName type{graph.text(arguments[0]), false};
  if (items.size() == 2) return type;
  // Its state is (version, byte order, ...).
  if (graph.kind(items[2]) != Kind::kTuple || graph.items(items[2]).size() < 2) return std::nullopt;
  const NodeId order = graph.items(items[2])[1];
  if (graph.kind(order) != Kind::kString) return std::nullopt;
  type.big_endian = graph.text(order) == ">";
  const bool known = type.big_endian || graph.text(order) == "<" || graph.text(order) == "|";
  return known ? std::optional(type) : std::nullopt;
}

std::optional<Bytes> find_bytes(const Graph& graph, NodeId id) {
  const pickle::Node& node = graph.node(id);
  if (node.kind == Kind::kBytes || node.kind == Kind::kByteArray || node.kind == Kind::kOldString || node.old) {
    return Bytes{node.text(), false};
  }
  if (node.kind != Kind::kCall || graph.items(id).size() != 2) return std::nullopt;
  const auto arguments = graph.items(graph.items(id)[1]);
  // How protocol 2 writes no bytes at all.
  if (is_either(graph, id, "__builtin__ bytes", "builtins bytes") && arguments.empty()) return Bytes{};
  if (!graph.calls(id, "_codecs encode")) return std::nullopt;
  if (arguments.size() != 2 || graph.kind(arguments[0]) != Kind::kString || graph.kind(arguments[1]) != Kind::kString ||
      graph.text(arguments[1]) != "latin1") {
    return std::nullopt;
  }
  return Bytes{graph.text(arguments[0]), true};
}

std::optional<Array> find_array(const Graph& graph, NodeId call, std::string_view path) {
  const auto parts = find_parts(graph, call);
  if (!parts) return std::nullopt;
  const auto type = find_type(graph, parts->dtype);
  const auto element = !type ? kElements.end()
                             : std::find_if(kElements.begin(), kElements.end(),
                                            [&](const Element& known) { return known.name == type->name; });
  const auto shape = find_shape(graph, parts->shape);
  const auto bytes = find_bytes(graph, parts->data);
  if (element == kElements.end() || !shape || !bytes) return std::nullopt;
  const NbytesResult expected = try_tensor_nbytes(element->dtype, *shape);
  const auto found = bytes->is_text ? count_bytes(bytes->text) : std::optional<std::uint64_t>(bytes->text.size());
  if (expected.problem != nullptr || !found || *found != expected.nbytes) {
    throw_format(path, "{}: a NumPy array of {} {} whose bytes are not those of one", graph.place(call),
                 dtype_name(element->dtype), shape_text(*shape));
  }
  return Array{element->dtype, *type, *shape, parts->column_major, parts->shape, parts->data, expected.nbytes};
}

std::vector<std::byte> take_bytes(const Graph& graph, const Array& array) {
  const Bytes found = *find_bytes(graph, array.data);
  std::vector<std::byte> bytes(static_cast<std::size_t>(array.nbytes));
  if (!found.is_text) {
    if (!bytes.empty()) std::memcpy(bytes.data(), found.text.data(), bytes.size());
  } else {
    std::size_t at = 0;
    for (std::byte& byte : bytes) {
      const auto lead = static_cast<unsigned char>(found.text[at++]);
      byte = static_cast<std::byte>(lead < 0x80 ? lead : ((lead & 0x03) << 6) | (found.text[at++] & 0x3F));
    }
  }
  if (array.type.big_endian) {
    // A complex number is two.
    const bool complex = array.dtype == DType::kC64 || array.dtype == DType::kC128;
    const std::size_t width = dtype_bits(array.dtype) / (complex ? 16u : 8u);
    for (std::size_t i = 0; i + width <= bytes.size(); i += width) std::reverse(&bytes[i], &bytes[i] + width);
  }
  return bytes;
}

}  // namespace penstock::numpy
