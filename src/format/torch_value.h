// What the nodes of a checkpoint's pickle stand for: calls that make data become the data.
#pragma once

#include <string_view>

#include "format/torch_tree.h"
#include "penstock/torch.h"

namespace penstock::torch {

// The value that a node stands for; its items and entries are numbers of nodes. A call that makes something else than
// data is opaque where these are kept, or else throws Error(kUnsupportedFormat) that names it.
TorchValue resolve(const Tree& tree, pickle::NodeId id, OpaqueValues opaque, std::string_view path);

}  // namespace penstock::torch
