#include "penstock/torch.h"

#include <algorithm>

#include "api/files/file_bytes.h"
#include "api/files/reader_state.h"
#include "format/torch_file.h"
#include "format/torch_globals.h"
#include "format/torch_value.h"

namespace penstock {

struct TorchCheckpoint::State {
  State(const std::filesystem::path& file_path, OpaqueValues opaque_values)
      : path(file_path),
        opaque(opaque_values),
        file(std::make_shared<const File>(File::open(file_path))),
        checkpoint(torch::read_checkpoint(FileBytes(*file))) {
    if (opaque == OpaqueValues::kRefuse) torch::refuse_opaque(checkpoint, file->path());
    for (const torch::Storage& storage : checkpoint.tree->storages()) {
      storages.push_back({storage.key, storage.location, storage.dtype, storage.count});
    }
    for (const torch::TensorReference& tensor : checkpoint.tree->tensors()) {
      tensors.push_back({tensor.storage, tensor.dtype, tensor.offset, tensor.shape, tensor.strides,
                         tensor.requires_grad, tensor.is_parameter, tensor.conjugated, tensor.negated});
    }
  }

  std::filesystem::path path;
  OpaqueValues opaque;
  std::shared_ptr<const File> file;
  torch::Checkpoint checkpoint;
  std::vector<TorchStorage> storages;
  std::vector<TorchTensor> tensors;
};

TorchCheckpoint::TorchCheckpoint(const std::filesystem::path& path, OpaqueValues opaque)
    : state_(std::make_unique<State>(path, opaque)) {}
TorchCheckpoint::TorchCheckpoint(TorchCheckpoint&&) noexcept = default;
TorchCheckpoint& TorchCheckpoint::operator=(TorchCheckpoint&&) noexcept = default;
TorchCheckpoint::~TorchCheckpoint() = default;

std::span<const TorchStorage> TorchCheckpoint::storages() const noexcept {
  return state_->storages;
}

std::span<const TorchTensor> TorchCheckpoint::tensors() const noexcept {
  return state_->tensors;
}

std::uint32_t TorchCheckpoint::root() const noexcept {
  return state_->checkpoint.tree->graph().root;
}

TorchValue TorchCheckpoint::value(std::uint32_t number) const {
  return torch::resolve(*state_->checkpoint.tree, number, state_->opaque, state_->file->path());
}

bool TorchCheckpoint::needs_data() const noexcept {
  const auto& nodes = state_->checkpoint.tree->graph().nodes;
  return !state_->checkpoint.packed.empty() || std::any_of(nodes.begin(), nodes.end(), [](const pickle::Node& node) {
    return node.kind == pickle::Kind::kGlobal && torch::is_special_rebuild(node.text());
  });
}

std::string TorchCheckpoint::place(std::uint32_t number) const {
  return state_->file->path() + ": " + state_->checkpoint.tree->graph().place(number);
}

Reader TorchCheckpoint::open_storages() const {
  auto reader = std::make_shared<Reader::State>();
  reader->add(state_->path, state_->file, torch::make_storage_layout(state_->checkpoint));
  return ReaderAccess::make(std::move(reader));
}

}  // namespace penstock
