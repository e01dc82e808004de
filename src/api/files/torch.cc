#include "penstock/torch.h"

#include "api/files/file_bytes.h"
#include "api/files/reader_state.h"
#include "format/torch_file.h"
#include "format/torch_value.h"

namespace penstock {

struct TorchCheckpoint::State {
  explicit State(const std::filesystem::path& file_path)
      : path(file_path),
        file(std::make_shared<const File>(File::open(file_path))),
        checkpoint(torch::read_checkpoint(FileBytes(*file))) {
    for (const torch::Storage& storage : checkpoint.tree->storages()) {
      storages.push_back({storage.key, storage.location, storage.dtype, storage.count});
    }
    for (const torch::TensorReference& tensor : checkpoint.tree->tensors()) {
      tensors.push_back({tensor.storage, tensor.dtype, tensor.offset, tensor.shape, tensor.strides,
                         tensor.requires_grad, tensor.is_parameter});
    }
  }

  std::filesystem::path path;
  std::shared_ptr<const File> file;
  torch::Checkpoint checkpoint;
  std::vector<TorchStorage> storages;
  std::vector<TorchTensor> tensors;
};

TorchCheckpoint::TorchCheckpoint(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {}
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
  return torch::resolve(*state_->checkpoint.tree, number, state_->file->path());
}

std::string TorchCheckpoint::place(std::uint32_t number) const {
  return state_->file->path() + ": " + state_->checkpoint.tree->graph().place(number);
}

Reader TorchCheckpoint::open_storages() const {
  auto reader = std::make_shared<Reader::State>();
  Layout layout = torch::make_storage_layout(*state_->checkpoint.tree, state_->checkpoint.storage_offsets,
                                             std::string(state_->checkpoint.format));
  reader->tensors = std::move(layout.tensors);
  reader->infos.push_back({state_->path, state_->file->size(), std::move(layout.format), {}});
  reader->files.push_back(state_->file);
  reader->partial.push_back(false);
  return ReaderAccess::make(std::move(reader));
}

}  // namespace penstock
