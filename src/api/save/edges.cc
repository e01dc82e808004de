#include "api/save/edges.h"

#include "transfer/progress.h"

namespace penstock {
namespace {

void add_host_edge(const FileLayout::Edge& edge, ChecksumKind kind, ChecksumCollector& collector) {
  const WritePart& part = edge.part;
  if (part.origin.data != nullptr) return collector.add(kind, edge.spec, part.offset, part.origin.data, part.nbytes);
  std::vector<std::byte> scratch(part.nbytes);
  part.origin.fill(0, scratch);
  collector.add(kind, edge.spec, part.offset, scratch.data(), part.nbytes);
}

}  // namespace

void add_edges(const FileContent& content, const FileLayout& layout, std::uint64_t alignment, Crew& crew,
               ChecksumCollector& collector) {
  const ChecksumKind kind = *layout.wanted_checksums();
  std::vector<FileLayout::Edge> on_devices;
  std::vector<WritePart> parts;  // these, one behind the other: a block has room for many
  std::uint64_t end = 0;
  for (FileLayout::Edge& edge : layout.edges(alignment)) {
    if (edge.part.origin.device == nullptr) {
      add_host_edge(edge, kind, collector);
      continue;
    }
    parts.push_back({end, edge.part.nbytes, edge.part.origin});
    end += edge.part.nbytes;
    on_devices.push_back(std::move(edge));
  }
  if (parts.empty()) return;
  const auto observe = [&](const Piece& piece, const std::byte* bytes) {
    const FileLayout::Edge& edge = on_devices[piece.owner];
    const std::uint64_t offset = edge.part.offset + (piece.offset - parts[piece.owner].offset);
    collector.add(kind, edge.spec, offset, bytes, piece.nbytes);
  };
  WriteTarget nowhere;
  nowhere.path = content.path.native();
  nowhere.straight = false;
  const auto batch = plan_write(nowhere, parts, crew.settings().block_size, observe);
  start_writing(crew, batch);
  wait_with_progress(*batch, {}, end, Stopwatch());
}

}  // namespace penstock
