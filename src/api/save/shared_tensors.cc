// Tensors over the same memory: found by sorting what each one reads.
#include <algorithm>
#include <functional>
#include <tuple>

#include "api/save/writer_state.h"
#include "base/error.h"

namespace penstock {
namespace {

bool is_same_tensor(const AddedTensor& a, const AddedTensor& b) {
  return a.extent == b.extent && a.memory_dtype == b.memory_dtype && a.spec.shape == b.spec.shape &&
         a.byte_strides == b.byte_strides;
}

// By device, and within it by address.
bool comes_before(const AddedTensor* a, const AddedTensor* b) {
  const Lanes* const on_a = a->lanes.get();
  const Lanes* const on_b = b->lanes.get();
  if (on_a != on_b) return std::less<const Lanes*>()(on_a, on_b);
  // Of tensors that are the same, the first by name is the one that stays.
  return std::tie(a->extent, a->spec.name) < std::tie(b->extent, b->spec.name);
}

[[noreturn]] void refuse(const std::filesystem::path& path, const AddedTensor& a, const AddedTensor& b, bool partly) {
  throw Error(ErrorKind::kSharedMemory,
              fmt::format("{}: tensors {} and {} {}share memory; {}shared=\"duplicate\" writes each in full",
                          path.native(), in_quotes(a.spec.name), in_quotes(b.spec.name), partly ? "partly " : "",
                          partly ? "" : "shared=\"deduplicate\" stores them once, "));
}

}  // namespace

void resolve_shared(Writer::State& state) {
  if (state.options.shared == SharedTensors::kDuplicate) return;
  std::vector<AddedTensor*> order;
  for (AddedTensor& tensor : state.tensors) {
    if (tensor.extent.first != tensor.extent.second) order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), comes_before);
  std::vector<bool> dropped(state.tensors.size());
  const AddedTensor* widest = nullptr;  // the tensor that reaches furthest so far
  for (const AddedTensor* tensor : order) {
    if (widest != nullptr && widest->lanes != tensor->lanes) widest = nullptr;
    if (widest != nullptr && tensor->extent.first < widest->extent.second) {
      const bool same = is_same_tensor(*widest, *tensor);
      // Two strided tensors may interleave without sharing a byte (the parts of a split last dimension do); both are
      // written in full, which is right either way.
      const bool both_strided = !tensor->byte_strides.empty() && !widest->byte_strides.empty();
      if (!same && both_strided) {
        if (tensor->extent.second > widest->extent.second) widest = tensor;
        continue;
      }
      if (state.options.shared == SharedTensors::kRefuse || !same) refuse(state.path, *widest, *tensor, !same);
      state.options.metadata[tensor->spec.name] = widest->spec.name;
      dropped[static_cast<std::size_t>(tensor - state.tensors.data())] = true;
      state.nbytes -= tensor->spec.nbytes;
      continue;
    }
    if (widest == nullptr || tensor->extent.second > widest->extent.second) widest = tensor;
  }
  std::size_t number = 0;
  std::erase_if(state.tensors, [&](const AddedTensor&) { return dropped[number++]; });
}

}  // namespace penstock
