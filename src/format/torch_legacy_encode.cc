// The legacy format of torch.save: five pickles, then per storage a count and the bytes.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/bytes.h"
#include "base/error.h"
#include "format/pickle.h"
#include "format/torch_encode.h"
#include "format/torch_pickle.h"

namespace penstock::torch {
namespace {

// What never changes: the magic number, the version, and the sizes of C's types on the machine that wrote it.
constexpr std::string_view kStart{
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
    "\x80\x02M\xe9\x03."
    "\x80\x02}q\x00(X\x10\x00\x00\x00protocol_versionq\x01M\xe9\x03X\x0d\x00\x00\x00little_"
    "endianq\x02\x88X\x0a\x00\x00\x00"
    "type_sizesq\x03}q\x04("
    "X\x05\x00\x00\x00shortq\x05K\x02X\x03\x00\x00\x00intq\x06K\x04X\x04\x00\x00\x00longq\x07K\x04uu.",
    137};

std::vector<std::byte> to_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// What was pickled elsewhere must say in which order the storages follow here.
void check_keys(std::string_view text, std::span<const std::string> sorted) {
  pickle::Options options{"pickle", "the list of keys"};
  options.knows = [](std::string_view) { return false; };
  const pickle::Graph graph = pickle::parse(text, options);
  const bool is_list = graph.kind(graph.root) == pickle::Kind::kList && graph.consumed == text.size();
  const auto items = is_list ? graph.items(graph.root) : std::span<const pickle::NodeId>{};
  const bool same = is_list && std::equal(items.begin(), items.end(), sorted.begin(), sorted.end(),
                                          [&](pickle::NodeId id, const std::string& key) {
                                            return graph.kind(id) == pickle::Kind::kString && graph.text(id) == key;
                                          });
  if (!same) throw_argument("the pickle behind the object's is not the sorted list of its {} keys", sorted.size());
}

}  // namespace

FilePlan encode_legacy(std::span<const TensorSpec> specs, const EncodeOptions& options) {
  std::vector<std::string> keys = options.keys;
  if (!options.pickle) {
    for (std::size_t i = 0; i < specs.size(); ++i) keys.push_back(std::to_string(i));
  }
  if (keys.size() != specs.size()) throw_argument("{} keys for {} storages", keys.size(), specs.size());
  // The storages follow in the order of their keys as text.
  FilePlan plan;
  plan.order.resize(specs.size());
  std::iota(plan.order.begin(), plan.order.end(), 0U);
  std::sort(plan.order.begin(), plan.order.end(), [&](std::uint32_t a, std::uint32_t b) { return keys[a] < keys[b]; });
  std::vector<std::string> sorted(keys.size());
  std::transform(plan.order.begin(), plan.order.end(), sorted.begin(), [&](std::uint32_t i) { return keys[i]; });

  const auto& around = options.around_pickle;
  if (around) check_keys(around->second, sorted);
  std::string text(around ? std::string_view(around->first) : kStart);
  text += options.pickle ? *options.pickle : pickle_state_dict(specs, Flavour::kLegacy);
  text += around ? around->second : pickle_strings(sorted);
  plan.prefix = to_bytes(text);
  plan.offsets.resize(specs.size());
  std::uint64_t cursor = plan.prefix.size();
  for (const std::uint32_t i : plan.order) {
    // Who brings a pickle has counted its storages in elements of the spec's width.
    const std::uint64_t width = options.pickle ? dtype_bits(specs[i].dtype) / 8 : storage_width(specs[i].dtype);
    const std::uint64_t count = specs[i].nbytes / width;
    Literal literal{cursor, std::vector<std::byte>(sizeof count)};
    std::memcpy(literal.bytes.data(), &count, sizeof count);
    plan.literals.push_back(std::move(literal));
    plan.offsets[i] = cursor + sizeof count;
    const auto next = checked_add(plan.offsets[i], specs[i].nbytes);
    if (!next) throw_argument("the file would be larger than 2^64 bytes");
    cursor = *next;
  }
  plan.file_size = cursor;
  return plan;
}

}  // namespace penstock::torch
