// Tensors whose elements are apart in the file (TensorInfo::byte_strides): views that torch saved. They are few, and
// read one by one: the whole stretch that they span, out of which the elements are gathered.
#pragma once

#include "api/load/selection.h"

namespace penstock {

// Row-major, converted where the options ask for it. `view` may be a slice of a tensor of `state`.
Tensor load_view(const Reader::State& state, const TensorInfo& view, const LoadOptions& options);

// The part of `view` that at most one range in each dimension picks.
TensorInfo part_of_view(const TensorInfo& view, const Part& part);

// Loads the selection's views and puts them between the tensors of `result`, where the reader's order has them.
void add_views(const Reader::State& state, const Selection& selection, const LoadOptions& options, LoadResult& result);

}  // namespace penstock
