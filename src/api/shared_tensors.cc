// Tensors over the same memory: found by sorting what each one reads.
#include <algorithm>
#include <numeric>

#include "api/writer_state.h"
#include "base/error.h"

namespace penstock {
namespace {

bool is_same_tensor(const Writer::State& state, std::size_t a, std::size_t b) {
  return state.extents[a] == state.extents[b] && state.memory_dtypes[a] == state.memory_dtypes[b] &&
         state.specs[a].shape == state.specs[b].shape && state.strides[a] == state.strides[b];
}

[[noreturn]] void refuse(const Writer::State& state, std::size_t a, std::size_t b, bool partly) {
  throw Error(
      ErrorKind::kSharedMemory,
      fmt::format("{}: tensors {} and {} {}share memory; save copies of them, or ask for shared tensors to be {}",
                  state.path.native(), in_quotes(state.specs[a].name), in_quotes(state.specs[b].name),
                  partly ? "partly " : "", partly ? "duplicated" : "deduplicated or duplicated"));
}

template <typename T>
void erase_marked(std::vector<T>& values, const std::vector<bool>& marked) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!marked[i] && kept++ != i) values[kept - 1] = std::move(values[i]);
  }
  values.resize(kept);
}

}  // namespace

void resolve_shared(Writer::State& state) {
  if (state.options.shared == SharedTensors::kDuplicate) return;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < state.specs.size(); ++i) {
    if (state.extents[i].first != state.extents[i].second) order.push_back(i);
  }
  // Of tensors that are the same, the first by name is the one that stays.
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (state.extents[a] != state.extents[b]) return state.extents[a] < state.extents[b];
    return state.specs[a].name < state.specs[b].name;
  });
  std::vector<bool> dropped(state.specs.size());
  std::size_t widest = 0;  // the tensor that reaches furthest so far
  for (std::size_t k = 0; k < order.size(); ++k) {
    const std::size_t i = order[k];
    if (k > 0 && state.extents[i].first < state.extents[widest].second) {
      const bool same = is_same_tensor(state, widest, i);
      // Two strided tensors may interleave without sharing a byte (the parts of a split last dimension do); both are
      // written in full, which is right either way.
      if (!same && !state.strides[i].empty() && !state.strides[widest].empty()) {
        if (state.extents[i].second > state.extents[widest].second) widest = i;
        continue;
      }
      if (state.options.shared == SharedTensors::kRefuse || !same) refuse(state, widest, i, !same);
      state.options.metadata[state.specs[i].name] = state.specs[widest].name;
      dropped[i] = true;
      state.nbytes -= state.specs[i].nbytes;
      continue;
    }
    if (k == 0 || state.extents[i].second > state.extents[widest].second) widest = i;
  }
  erase_marked(state.specs, dropped);
  erase_marked(state.origins, dropped);
  erase_marked(state.extents, dropped);
  erase_marked(state.strides, dropped);
  erase_marked(state.memory_dtypes, dropped);
}

}  // namespace penstock
