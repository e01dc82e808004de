// Parts of tensors in the place of whole ones. A part that lies in the file in one stretch is read, mapped and streamed
// as any whole tensor is; others are read run by run.
#pragma once

#include <deque>

#include "api/load/part.h"
#include "api/load/selection.h"

namespace penstock {

// What a narrowed selection points to: it has to live as long as that, and at the same place.
struct NarrowedTensors {
  std::deque<TensorInfo> tensors;
  ScatteredParts scattered;
};

// Puts LoadOptions::parts in the place of whole tensors in a selection. Throws Error for a part that is none of its
// tensor, for a tensor that there is not, and where checksums or a mapping of scattered parts are asked for.
void narrow(const Reader::State& state, const LoadOptions& options, Selection& selection, NarrowedTensors& narrowed);

}  // namespace penstock
