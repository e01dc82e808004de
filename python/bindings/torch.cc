// The tree of a torch checkpoint as Python objects. What only torch or NumPy can make, they make: this knows neither.
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "bindings.h"

namespace penstock::python {
namespace {

using Path = std::filesystem::path;

constexpr unsigned kMaxDepth = 1000;

// Text whose characters stand for bytes.
nb::object narrow(std::string_view text) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr))
      .attr("encode")("latin1");
}

// Python has strings with half of a surrogate pair.
nb::object text_object(std::string_view text) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass"));
}

nb::object bytes_object(const TorchValue& value) {
  if (value.integer != 0) return narrow(value.text);
  return nb::bytes(value.text.data(), value.text.size());
}

class Builder {
 public:
  // `tensors`: what stands for each. `make`: functions by the name of what they make.
  Builder(const TorchCheckpoint& checkpoint, nb::list tensors, nb::dict make)
      : checkpoint_(checkpoint), tensors_(std::move(tensors)), make_(std::move(make)) {}

  nb::object build(std::uint32_t number) {
    if (const auto known = made_.find(number); known != made_.end()) return known->second;
    if (++depth_ > kMaxDepth) fail(number, "values are nested deeper than " + std::to_string(kMaxDepth));
    const TorchValue value = checkpoint_.value(number);
    nb::object object = make_or_refuse(number, value);
    made_.insert_or_assign(number, object);
    if (value.attributes != TorchValue::kNoValue) set_attributes(object, value.attributes);
    --depth_;
    return object;
  }

 private:
  [[noreturn]] void fail(std::uint32_t number, const std::string& message) const {
    throw Error(ErrorKind::kFormat, checkpoint_.place(number) + ": " + message);
  }

  // Python has rules of its own for what may be in a set, or what is a device.
  nb::object make_or_refuse(std::uint32_t number, const TorchValue& value) {
    try {
      return make(number, value);
    } catch (const nb::python_error& problem) {
      const nb::object ours = nb::module_::import_("penstock.errors").attr("Error");
      // torch's own functions meet arguments of any kind.
      const bool by_torch =
          value.kind == TorchKind::kRebuilt && problem.matches(PyExc_Exception) && !problem.matches(PyExc_MemoryError);
      const bool refused = by_torch || problem.matches(PyExc_TypeError) || problem.matches(PyExc_ValueError) ||
                           problem.matches(PyExc_RuntimeError);
      if (!refused || problem.matches(ours) || problem.matches(PyExc_RecursionError)) throw;
      fail(number, first_line(problem));
    }
  }

  static std::string first_line(const nb::python_error& problem) {
    const std::string text = nb::str(problem.value()).c_str();
    return text.substr(0, text.find('\n'));
  }

  nb::object make(std::uint32_t number, const TorchValue& value) {
    switch (value.kind) {
      case TorchKind::kNone:
        return nb::none();
      case TorchKind::kBool:
        return nb::bool_(value.integer != 0);
      case TorchKind::kInteger:
        return nb::int_(value.integer);
      case TorchKind::kBigInteger:
        return call("big_integer", nb::bytes(value.text.data(), value.text.size()));
      case TorchKind::kFloat:
        return nb::float_(value.number);
      case TorchKind::kComplex:
        return call("complex", nb::float_(value.number), nb::float_(value.imaginary));
      case TorchKind::kString:
        return text_object(value.text);
      case TorchKind::kBytes:
        return bytes_object(value);
      case TorchKind::kByteArray:
        return call("bytearray", bytes_object(value));
      case TorchKind::kList:
        return make_list(number, value);
      case TorchKind::kTuple:
        return nb::tuple(items(value));
      case TorchKind::kDict:
        return fill(number, nb::dict(), value);
      case TorchKind::kOrderedDict:
        return fill(number, call("ordered_dict"), value);
      case TorchKind::kSet:
        return call("set", hashed(number, items(value)));
      case TorchKind::kFrozenSet:
        return call("frozenset", hashed(number, items(value)));
      case TorchKind::kSize:
        return call("size", items(value));
      case TorchKind::kDevice:
        return call("device", items(value));
      case TorchKind::kDType:
        return call("dtype", nb::str(value.text.data(), value.text.size()));
      case TorchKind::kTensor:
        return tensors_[static_cast<std::size_t>(value.integer)];
      case TorchKind::kStorage:
        return call("storage", value.part.storage, nb::str(value.part.dtype.data(), value.part.dtype.size()),
                    value.part.offset, value.part.count);
      case TorchKind::kNumpyScalar:
        return call("numpy_scalar", value.name, bytes_object(value), place_object(number));
      case TorchKind::kNumpyArray:
        return call("numpy_array", value.name, bytes_object(value), build(value.items[0]), value.column_major);
      case TorchKind::kCounter:
        return fill(number, call("counter"), value);
      case TorchKind::kLayout:
        return call("layout", text_object(value.text));
      case TorchKind::kScheme:
        return call("scheme", text_object(value.text));
      case TorchKind::kRebuilt:
        return call("rebuilt", value.name, items(value));
      case TorchKind::kOpaque:
        return make_opaque(number, value);
    }
    return nb::none();
  }

  // A path need not be UTF-8.
  nb::object place_object(std::uint32_t number) const {
    const std::string place = checkpoint_.place(number);
    return nb::steal(PyUnicode_DecodeUTF8(place.data(), static_cast<Py_ssize_t>(place.size()), "surrogateescape"));
  }

  template <typename... Args>
  nb::object call(const char* name, Args&&... args) {
    return nb::object(make_[name])(std::forward<Args>(args)...);
  }

  nb::list items(const TorchValue& value) {
    nb::list list;
    for (const std::uint32_t item : value.items) list.append(build(item));
    return list;
  }

  // Known before it is filled: it may contain itself.
  nb::object make_list(std::uint32_t number, const TorchValue& value) {
    nb::list list;
    made_.emplace(number, list);
    for (const std::uint32_t item : value.items) list.append(build(item));
    return list;
  }

  nb::object fill(std::uint32_t number, nb::object dict, const TorchValue& value) {
    made_.emplace(number, dict);
    nb::list keys;
    for (const auto& [key, entry] : value.entries) keys.append(build(key));
    hashed(number, keys);
    for (std::size_t i = 0; i < value.entries.size(); ++i) {
      const nb::object entry_object = build(value.entries[i].second);
      if (PyObject_SetItem(dict.ptr(), nb::object(keys[i]).ptr(), entry_object.ptr()) != 0) throw nb::python_error();
    }
    return dict;
  }

  // Anybody can make numbers, and tuples of them, that have one hash: what Python does with n of them takes n^2 steps.
  nb::list hashed(std::uint32_t number, nb::list keys) const {
    constexpr std::size_t kMostOfOneHash = 1000;
    if (keys.size() <= kMostOfOneHash) return keys;
    std::vector<Py_hash_t> hashes;
    hashes.reserve(keys.size());
    for (const nb::handle key : keys) {
      hashes.push_back(PyObject_Hash(key.ptr()));
      if (hashes.back() == -1) throw nb::python_error();
    }
    std::sort(hashes.begin(), hashes.end());
    for (std::size_t i = kMostOfOneHash; i < hashes.size(); ++i) {
      if (hashes[i] == hashes[i - kMostOfOneHash]) fail(number, "more than 1000 keys have the same hash");
    }
    return keys;
  }

  // Known before its parts are: it may contain itself.
  nb::object make_opaque(std::uint32_t number, const TorchValue& value) {
    // Many objects have one name, which is kept once.
    const nb::object name = text_object(value.name);
    nb::object opaque = call("opaque", nb::borrow(PyDict_SetDefault(names_.ptr(), name.ptr(), name.ptr())));
    made_.emplace(number, opaque);
    const bool is_called = value.opaque.arguments != TorchValue::kNoValue;
    nb::list states;
    for (const std::uint32_t state : value.opaque.states) states.append(build(state));
    nb::list appended;
    for (const std::uint32_t item : value.opaque.items) appended.append(build(item));
    nb::list entries;
    for (const auto& [key, entry] : value.opaque.entries) entries.append(nb::make_tuple(build(key), build(entry)));
    call("fill_opaque", opaque, is_called ? build(value.opaque.arguments) : nb::object(nb::none()), states, appended,
         entries);
    return opaque;
  }

  void set_attributes(const nb::object& object, std::uint32_t number) {
    call("set_attributes", object, build(number), place_object(number));
  }

  const TorchCheckpoint& checkpoint_;
  nb::list tensors_;
  nb::dict make_;
  std::unordered_map<std::uint32_t, nb::object> made_;
  nb::dict names_;  // of opaque values
  unsigned depth_ = 0;
};

nb::list storages(const TorchCheckpoint& checkpoint) {
  nb::list list;
  for (const TorchStorage& storage : checkpoint.storages()) {
    list.append(nb::make_tuple(storage.key, storage.location, dtype_object(storage.dtype), storage.count));
  }
  return list;
}

// Row-major from the first byte of its storage to the last.
bool covers_storage(const TorchTensor& tensor, const TorchStorage& storage) {
  std::int64_t expected = 1;
  for (std::size_t i = tensor.shape.size(); i > 0; --i) {
    if (tensor.shape[i - 1] != 1 && tensor.strides[i - 1] != expected) return false;
    expected *= tensor.shape[i - 1];
  }
  return tensor.offset == 0 && tensor.dtype == storage.dtype && static_cast<std::uint64_t>(expected) == storage.count;
}

// The last field says that the tensor is all there is of its storage, and no other tensor has it.
nb::list tensors(const TorchCheckpoint& checkpoint) {
  std::vector<std::uint32_t> users(checkpoint.storages().size());
  for (const TorchTensor& tensor : checkpoint.tensors()) ++users[tensor.storage];
  nb::list list;
  for (const TorchTensor& tensor : checkpoint.tensors()) {
    const bool alone = users[tensor.storage] == 1 && covers_storage(tensor, checkpoint.storages()[tensor.storage]);
    list.append(nb::make_tuple(tensor.storage, dtype_object(tensor.dtype), tensor.offset, shape_tuple(tensor.shape),
                               shape_tuple(tensor.strides), tensor.requires_grad, tensor.is_parameter, alone,
                               tensor.conjugated, tensor.negated));
  }
  return list;
}

nb::object build(const TorchCheckpoint& checkpoint, nb::list made_tensors, nb::dict make) {
  return Builder(checkpoint, std::move(made_tensors), std::move(make)).build(checkpoint.root());
}

}  // namespace

void bind_torch(nb::module_& module) {
  nb::class_<TorchCheckpoint>(module, "TorchCheckpoint", "What a file of torch.save holds, as data.")
      .def(
          "__init__",
          [](TorchCheckpoint* self, const Path& path, std::string_view opaque) {
            const auto choice = choice_from<OpaqueValues>("opaque", opaque);
            GilRelease release;
            new (self) TorchCheckpoint(path, choice);
          },
          nb::arg("path"), nb::arg("opaque") = "refuse",
          nb::sig("def __init__(self, path: str | os.PathLike[str], opaque: str = 'refuse') -> None"))
      .def("storages", &storages, nb::sig("def storages(self) -> list[tuple[str, str, str, int]]"))
      .def("tensors", &tensors,
           nb::sig("def tensors(self) -> list[tuple[int, str, int, tuple[int, ...], tuple[int, ...], bool, bool, "
                   "bool, bool, bool]]"))
      .def("needs_data", &TorchCheckpoint::needs_data)
      .def("open_storages", &TorchCheckpoint::open_storages)
      .def("build", &build, nb::arg("tensors"), nb::arg("make"),
           nb::sig("def build(self, tensors: list[typing.Any], make: dict[str, collections.abc.Callable[..., "
                   "typing.Any]]) -> typing.Any"));
}

}  // namespace penstock::python
