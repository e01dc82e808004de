#include "api/load/facts.h"

#include <algorithm>

#include "base/tuning.h"
#include "format/detect.h"
#include "io/block_device.h"
#include "transfer/settings.h"

namespace penstock {
ReadRequest read_request(const LoadOptions& options) {
  return {options.cache, decide_landing(options.landing), options.dtype.has_value(), options.verify != Verify::kOff,
          static_cast<bool>(options.allocate)};
}

FileFacts gather_facts(const Reader::State& state, std::uint32_t number, std::span<const ByteRange> stretches,
                       const ReadRequest& request, bool mapping) {
  FileFacts facts;
  const File& file = *state.files[number];
  const bool asks_cache = request.cache == CachePolicy::kAuto || request.cache == CachePolicy::kCopy;
  for (const ByteRange& stretch : stretches) {
    state.require_unpacked(number, stretch);
    facts.wanted += stretch.size();
    if (asks_cache) facts.resident += file.resident_bytes(stretch);
  }
  if (!mapping || request.cache != CachePolicy::kAuto) return facts;
  facts.local = file.on_local_filesystem();
  // Nobody rewrites what was unpacked.
  facts.mappable = is_replaced_when_saved(state.infos[number].format) || state.infos[number].unpacked;
  facts.open_for_writing = facts.mappable && facts.local && !state.infos[number].unpacked && file.is_open_for_writing();
  return facts;
}

std::vector<FileFacts> gather_facts(const Reader::State& state, const Selection& selection,
                                    const ReadRequest& request) {
  std::vector<FileFacts> facts;
  for (const FileSelection& selected : selection.files) {
    facts.push_back(gather_facts(state, selected.number, stretches_of(selected), request, /*mapping=*/true));
    facts.back().has_misaligned = std::any_of(selected.tensors.begin(), selected.tensors.end(),
                                              [](const TensorInfo* tensor) { return is_misaligned(*tensor); });
  }
  return facts;
}

void add_read_facts(const File& file, const ReadRequest& request, std::uint64_t nbytes, FileFacts& facts) {
  const bool is_read = request.cache != CachePolicy::kBuffered && request.cache != CachePolicy::kMap &&
                       (facts.resident < facts.wanted || facts.resident == 0);
  facts.direct = is_read && file.direct().fd;
  facts.on_virtual_drive = nbytes > tuning::kSmallTransfer && on_virtual_drive(file.fd());
}

}  // namespace penstock
