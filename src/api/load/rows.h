// Rows of tensors: a range of the first dimension lies in the file in one stretch, so that it is read, mapped and
// streamed as any whole tensor is.
#pragma once

#include <deque>

#include "api/load/selection.h"
#include "penstock/reader.h"

namespace penstock {

// Puts the rows that are wanted in the place of whole tensors in a selection. Returns what the selection points to from
// then on, which has to live as long as it does. Throws Error when rows are not within their tensor.
std::deque<TensorInfo> narrow(const Reader::State& state, const RowRanges& rows, Selection& selection);

}  // namespace penstock
