#include "format/torch_globals.h"

#include <algorithm>
#include <array>

namespace penstock::torch {
namespace {

using namespace std::string_view_literals;

constexpr std::array kStorageClasses = {
    StorageClass{"DoubleStorage", DType::kF64, "float64"},
    StorageClass{"FloatStorage", DType::kF32, "float32"},
    StorageClass{"HalfStorage", DType::kF16, "float16"},
    StorageClass{"BFloat16Storage", DType::kBF16, "bfloat16"},
    StorageClass{"LongStorage", DType::kI64, "int64"},
    StorageClass{"IntStorage", DType::kI32, "int32"},
    StorageClass{"ShortStorage", DType::kI16, "int16"},
    StorageClass{"CharStorage", DType::kI8, "int8"},
    StorageClass{"ByteStorage", DType::kU8, "uint8"},
    StorageClass{"BoolStorage", DType::kBool, "bool"},
    StorageClass{"ComplexDoubleStorage", DType::kC128, "complex128"},
    StorageClass{"ComplexFloatStorage", DType::kC64, "complex64"},
    StorageClass{"UntypedStorage", DType::kU8, "uint8"},
    StorageClass{"QInt8Storage", DType::kI8, "qint8", true},
    StorageClass{"QUInt8Storage", DType::kU8, "quint8", true},
    StorageClass{"QInt32Storage", DType::kI32, "qint32", true},
    StorageClass{"QUInt4x2Storage", DType::kU8, "quint4x2", true},
    StorageClass{"QUInt2x4Storage", DType::kU8, "quint2x4", true},
};

// Beside those that are known by tables of their own.
constexpr std::array kDataGlobals = {
    "collections OrderedDict"sv,
    "collections Counter"sv,
    kRebuildOld,
    kRebuildTensor,
    kRebuildTyped,
    kRebuildParameter,
    kRebuildParameterWithState,
    kRebuildFromType,
    kRebuildOnDevice,
    kParameterClass,
    kTensorClass,
    "torch Size"sv,
    "torch device"sv,
    "torch.serialization _get_layout"sv,
    "_codecs encode"sv,
    "builtins complex"sv,
    "builtins set"sv,
    "builtins frozenset"sv,
    "builtins bytearray"sv,
    "builtins bytes"sv,
    "__builtin__ complex"sv,
    "__builtin__ set"sv,
    "__builtin__ frozenset"sv,
    "__builtin__ bytearray"sv,
    "__builtin__ bytes"sv,
    "numpy dtype"sv,
    "numpy ndarray"sv,
    "numpy.core.multiarray scalar"sv,
    "numpy._core.multiarray scalar"sv,
    "numpy.core.multiarray _reconstruct"sv,
    "numpy._core.multiarray _reconstruct"sv,
    "numpy.core.numeric _frombuffer"sv,
    "numpy._core.numeric _frombuffer"sv,
};

constexpr std::array kSpecialRebuilds = {
    "torch._utils _rebuild_qtensor"sv,
    "torch._utils _rebuild_sparse_tensor"sv,
    "torch._utils _rebuild_nested_tensor"sv,
    "torch._utils _rebuild_meta_tensor_no_storage"sv,
    "torch._utils _rebuild_device_tensor_from_numpy"sv,
};

// Types that torch has and that no tensor here is of.
constexpr std::array kOtherDtypes = {
    "quint8"sv, "qint8"sv,  "qint32"sv,  "quint4x2"sv, "quint2x4"sv,
    "bits8"sv,  "bits16"sv, "bits1x8"sv, "bits2x4"sv,  "bits4x2"sv,
    "uint1"sv,  "uint2"sv,  "uint3"sv,   "uint4"sv,    "uint5"sv,
    "uint6"sv,  "uint7"sv,  "int1"sv,    "int2"sv,     "int3"sv,
    "int4"sv,   "int5"sv,   "int6"sv,    "int7"sv,     "float4_e2m1fn_x2"sv,
};

constexpr std::array kSchemes = {
    "per_tensor_affine"sv,
    "per_tensor_symmetric"sv,
    "per_channel_affine"sv,
    "per_channel_symmetric"sv,
    "per_channel_affine_float_qparams"sv,
};

constexpr std::array kOldTensorClasses = {
    "DoubleTensor"sv, "FloatTensor"sv, "HalfTensor"sv, "BFloat16Tensor"sv, "LongTensor"sv,
    "IntTensor"sv,    "ShortTensor"sv, "CharTensor"sv, "ByteTensor"sv,     "BoolTensor"sv,
};

template <typename Table>
bool contains(const Table& table, std::string_view name) {
  return std::find(table.begin(), table.end(), name) != table.end();
}

// What follows the module; empty for another one.
std::string_view name_in(std::string_view global, std::string_view module) {
  if (!global.starts_with(module) || global.size() <= module.size() || global[module.size()] != ' ') return {};
  return global.substr(module.size() + 1);
}

}  // namespace

const StorageClass* find_storage_class(std::string_view global) {
  for (const std::string_view module : {"torch"sv, "torch.storage"sv, "torch.cuda"sv}) {
    const std::string_view name = name_in(global, module);
    for (const StorageClass& known : kStorageClasses) {
      if (name == known.name) return &known;
    }
  }
  return global == "torch storage.UntypedStorage" ? find_storage_class("torch UntypedStorage") : nullptr;
}

std::optional<DType> global_dtype(std::string_view global) {
  const auto dtype = parse_torch_dtype(name_in(global, "torch"));
  return dtype && dtype_bits(*dtype) >= 8 ? dtype : std::nullopt;
}

bool is_dtype_global(std::string_view global) {
  return global_dtype(global).has_value() || contains(kOtherDtypes, name_in(global, "torch"));
}

bool is_scheme_global(std::string_view global) {
  return contains(kSchemes, name_in(global, "torch"));
}

bool is_old_tensor_class(std::string_view global) {
  return global == kTensorClass || contains(kOldTensorClasses, name_in(global, "torch")) ||
         contains(kOldTensorClasses, name_in(global, "torch.cuda"));
}

bool is_special_rebuild(std::string_view global) {
  return contains(kSpecialRebuilds, global);
}

bool knows_global(std::string_view global) {
  return contains(kDataGlobals, global) || find_storage_class(global) != nullptr || is_dtype_global(global) ||
         is_scheme_global(global) || is_old_tensor_class(global) || is_special_rebuild(global);
}

}  // namespace penstock::torch
