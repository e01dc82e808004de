// NumPy arrays that lie in a pickle, by value. Numbers only: what arrays of objects, strings or records hold is no
// tensor.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "format/pickle.h"
#include "penstock/tensor.h"

namespace penstock::numpy {

// The letter and size that NumPy calls a type of numbers or text by ("f4"), and whether its bytes are the other way
// round than here.
struct TypeName {
  std::string_view name;
  bool big_endian = false;
};

struct Array {
  DType dtype = DType::kU8;
  TypeName type;
  Shape shape;
  bool column_major = false;
  pickle::NodeId shape_node = pickle::kNoNode;
  pickle::NodeId data = pickle::kNoNode;  // see find_bytes
  std::uint64_t nbytes = 0;
};

// Nothing for other types and for what is no dtype.
std::optional<TypeName> find_type(const pickle::Graph& graph, pickle::NodeId id);

// The array that a call makes; nothing where it makes none, or one of other things than numbers. Throws Error(kFormat)
// for one whose shape and bytes don't agree.
std::optional<Array> find_array(const pickle::Graph& graph, pickle::NodeId call, std::string_view path);

// Bytes in a pickle: as they are, or (protocol 2 of Python 3) as text of the same code points, or as a string of
// Python 2. `is_text` says that each character of the text, which is UTF-8, stands for a byte.
struct Bytes {
  std::string_view text;
  bool is_text = false;
};
std::optional<Bytes> find_bytes(const pickle::Graph& graph, pickle::NodeId id);

// The bytes of an array, in the byte order of this machine.
std::vector<std::byte> take_bytes(const pickle::Graph& graph, const Array& array);

}  // namespace penstock::numpy
