#include "penstock/reader.h"

#include "api/loading.h"
#include "api/reader_state.h"
#include "api/verify_records.h"
#include "api/views.h"
#include "base/bytes.h"
#include "base/error.h"

namespace penstock {

Reader::Reader(const std::filesystem::path& path) : Reader(std::span(&path, 1)) {}
Reader::Reader(std::span<const std::filesystem::path> paths) : state_(open_checkpoint(paths)) {}
Reader::Reader(std::shared_ptr<const State> state) : state_(std::move(state)) {}
Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;
Reader::~Reader() = default;

std::span<const TensorInfo> Reader::tensors() const noexcept {
  return state_->tensors;
}
const TensorInfo* Reader::find(std::string_view name) const noexcept {
  return state_->find(name);
}
std::span<const FileInfo> Reader::files() const noexcept {
  return state_->infos;
}
const Metadata& Reader::metadata() const noexcept {
  return state_->metadata;
}

const Reader::State& ReaderAccess::state(const Reader& reader) {
  return *reader.state_;
}

Reader ReaderAccess::make(std::shared_ptr<const Reader::State> state) {
  return Reader(std::move(state));
}

LoadResult Reader::load(const LoadOptions& options) const {
  if (options.verify) require_intact_records(*state_, options.io);
  const Selection selection = select_tensors(*state_, options.select);
  MapChoice mapping = choose_mapping(*state_, selection, options);
  LoadResult result = mapping.map ? map_selection(selection, options, std::move(mapping.reason))
                                  : load_selection(*state_, selection, options);
  add_views(*state_, selection, options, result);
  if (options.placed && (mapping.map || !selection.views.empty())) options.placed(result.tensors);
  return result;
}

std::uint64_t Reader::resident_bytes() const {
  std::uint64_t bytes = 0;
  const std::vector<ByteRange> ranges = wanted_ranges(*state_, select_tensors(*state_, {}));
  for (std::size_t i = 0; i < ranges.size(); ++i) bytes += state_->files[i]->resident_bytes(ranges[i]);
  return bytes;
}

}  // namespace penstock
