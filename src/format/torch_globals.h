// The names that a checkpoint's pickle may have in it and mean data: classes of storages, types, functions that put
// tensors together. They are all that torch's own weights-only unpickler takes, of every version, and what of NumPy is
// data. Each is a text, "module name"; nothing is imported.
#pragma once

#include <optional>
#include <string_view>

#include "penstock/dtype.h"

namespace penstock::torch {

inline constexpr std::string_view kRebuildOld = "torch._utils _rebuild_tensor";  // before torch 0.4
inline constexpr std::string_view kRebuildTensor = "torch._utils _rebuild_tensor_v2";
inline constexpr std::string_view kRebuildTyped = "torch._utils _rebuild_tensor_v3";
inline constexpr std::string_view kRebuildParameter = "torch._utils _rebuild_parameter";
inline constexpr std::string_view kRebuildParameterWithState = "torch._utils _rebuild_parameter_with_state";
inline constexpr std::string_view kRebuildFromType = "torch._tensor _rebuild_from_type_v2";
inline constexpr std::string_view kRebuildOnDevice = "torch._utils _rebuild_device_tensor_from_cpu_tensor";
inline constexpr std::string_view kParameterClass = "torch.nn.parameter Parameter";
inline constexpr std::string_view kTensorClass = "torch Tensor";

// What a class of storages says of its elements.
struct StorageClass {
  std::string_view name;
  DType dtype = DType::kU8;
  std::string_view torch_dtype;
  bool quantized = false;
};

// By the global of the class, of the CPU or of CUDA; nullptr for what is none.
const StorageClass* find_storage_class(std::string_view global);

// The type that a global is ("torch float32"), where it is one of ours of whole bytes.
std::optional<DType> global_dtype(std::string_view global);

// Whether a global is a torch.dtype, of any kind; a quantization scheme.
bool is_dtype_global(std::string_view global);
bool is_scheme_global(std::string_view global);

// The classes of torch before 0.4, whose instances were made empty and then set.
bool is_old_tensor_class(std::string_view global);

// Functions that make tensors which are more than a view of a storage: sparse, quantized, nested.
bool is_special_rebuild(std::string_view global);

// Whether a global may be in a pickle that is nothing but data.
bool knows_global(std::string_view global);

}  // namespace penstock::torch
