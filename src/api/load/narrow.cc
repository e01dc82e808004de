#include "api/load/narrow.h"

#include <algorithm>
#include <unordered_map>

#include "api/load/views.h"
#include "base/error.h"
#include "base/tuning.h"

namespace penstock {
namespace {

using Replacements = std::unordered_map<const TensorInfo*, const TensorInfo*>;

// The part as a tensor. One that is no single stretch starts where its first run does, and is noted as scattered.
const TensorInfo* narrowed_tensor(const TensorInfo& whole, const Part& part, NarrowedTensors& narrowed) {
  if (!whole.byte_strides.empty()) return &narrowed.tensors.emplace_back(part_of_view(whole, part));
  PartRuns runs(whole, part);
  TensorInfo& tensor = narrowed.tensors.emplace_back(whole);
  tensor.shape = runs.shape();
  tensor.offset = runs.extent().begin;
  tensor.nbytes = runs.nbytes();
  if (runs.count() > 1) narrowed.scattered.emplace(&tensor, std::move(runs));
  return &tensor;
}

bool replace(std::vector<const TensorInfo*>& tensors, const Replacements& replacements) {
  bool replaced = false;
  for (const TensorInfo*& tensor : tensors) {
    const auto found = replacements.find(tensor);
    if (found == replacements.end()) continue;
    tensor = found->second;
    replaced = true;
  }
  return replaced;
}

}  // namespace

void narrow(const Reader::State& state, const LoadOptions& options, Selection& selection, NarrowedTensors& narrowed) {
  if (options.parts.empty()) return;
  if (options.verify != Verify::kOff)
    throw_argument("parts of tensors can't be verified: checksums are of whole tensors");
  Replacements replacements;
  for (const auto& [name, part] : options.parts) {
    const TensorInfo& whole = state.tensors[state.require(name)];
    replacements[&whole] = narrowed_tensor(whole, part, narrowed);
  }
  replace(selection.views, replacements);
  selection.nbytes = 0;
  for (FileSelection& file : selection.files) {
    if (replace(file.tensors, replacements)) {
      file.largest_gap = tuning::kLargestPartGap;
      file.scattered = &narrowed.scattered;
      // Tensors over the same bytes may have changed places.
      std::stable_sort(file.tensors.begin(), file.tensors.end(),
                       [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; });
    }
    selection.nbytes += file.nbytes();
  }
  if (options.cache != CachePolicy::kMap || narrowed.scattered.empty()) return;
  throw_argument("tensor {}: a part whose elements are apart in the file can't be mapped",
                 in_quotes(narrowed.scattered.begin()->first->name));
}

}  // namespace penstock
