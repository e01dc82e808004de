#include "dlpack.h"

#include <nanobind/ndarray.h>

#include <array>
#include <span>

namespace penstock::python {
namespace {

using nb::dlpack::dtype_code;

constexpr const char* kName = "dltensor";  // a capsule that has been taken has another

// The specification's DLManagedTensor, with what it manages behind it.
struct Managed {
  nb::dlpack::dltensor tensor;
  void* context = nullptr;
  void (*deleter)(Managed*) = nullptr;

  nb::object memory;
  std::array<std::int64_t, 4> few{};
  std::vector<std::int64_t> many;
};

std::optional<dtype_code> code_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return dtype_code::Bool;
    case DType::kI8:
    case DType::kI16:
    case DType::kI32:
    case DType::kI64:
      return dtype_code::Int;
    case DType::kU8:
    case DType::kU16:
    case DType::kU32:
    case DType::kU64:
      return dtype_code::UInt;
    case DType::kF16:
    case DType::kF32:
    case DType::kF64:
      return dtype_code::Float;
    case DType::kBF16:
      return dtype_code::Bfloat;
    case DType::kC32:
    case DType::kC64:
    case DType::kC128:
      return dtype_code::Complex;
    default:
      return std::nullopt;
  }
}

void let_go(Managed* managed) {
  let_go_with_gil([managed] { delete managed; });
}

void let_go_of_untaken(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kName) != 0) let_go(static_cast<Managed*>(PyCapsule_GetPointer(capsule, kName)));
}

std::int64_t* take_shape(Managed& managed, const nb::tuple& shape) {
  const std::size_t count = shape.size();
  if (count > managed.few.size()) managed.many.resize(count);
  std::int64_t* sizes = managed.many.empty() ? managed.few.data() : managed.many.data();
  for (std::size_t i = 0; i < count; ++i) sizes[i] = nb::cast<std::int64_t>(shape[i]);
  return sizes;
}

bool fits(std::span<const std::int64_t> shape, std::uint64_t width, std::uint64_t room) {
  std::uint64_t nbytes = width;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(nbytes, static_cast<std::uint64_t>(size), &nbytes)) return false;
  }
  return nbytes <= room;
}

}  // namespace

nb::object make_capsule(nb::handle_t<Memory> handle, std::string_view dtype_text, const nb::tuple& shape,
                        std::uint64_t offset) {
  const auto& memory = nb::cast<const Memory&>(handle);
  const DType dtype = dtype_from(dtype_text);
  const auto code = code_of(dtype);
  if (!code) throw Error(ErrorKind::kUnsupported, "DLPack has no " + std::string(dtype_text));
  auto managed = std::make_unique<Managed>();
  std::int64_t* sizes = take_shape(*managed, shape);
  const unsigned bits = dtype_bits(dtype);
  if (offset > memory.size() || !fits({sizes, shape.size()}, bits / 8, memory.size() - offset)) {
    throw Error(ErrorKind::kArgument, "the tensor lies outside of its memory");
  }
  managed->tensor = {.data = memory.data() + offset,
                     .device = {.device_type = memory.device().type, .device_id = memory.device().number},
                     .ndim = static_cast<std::int32_t>(shape.size()),
                     .dtype = {static_cast<std::uint8_t>(*code), static_cast<std::uint8_t>(bits), 1},
                     .shape = sizes};
  managed->deleter = let_go;
  managed->memory = nb::borrow(handle);
  nb::object capsule = nb::steal(PyCapsule_New(managed.get(), kName, let_go_of_untaken));
  if (!capsule.is_valid()) throw nb::python_error();
  managed.release();
  return capsule;
}

}  // namespace penstock::python
