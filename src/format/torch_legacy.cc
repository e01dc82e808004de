// Reading the legacy format: pickles back to back (a magic number, a version, what machine wrote it, the object, the
// keys of the storages), then per key a count and the bytes.
#include "format/torch_legacy.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "base/error.h"
#include "base/name_hash.h"
#include "format/pickle_opcodes.h"
#include "format/torch_file.h"
#include "format/torch_fragments.h"
#include "format/torch_globals.h"

namespace penstock::torch {
namespace {

using pickle::Graph;
using pickle::Kind;
using pickle::NodeId;

// 0x1950a86a20f9469cfc6c, as a pickle holds it. Before it come the protocol and, from protocol 4 on, a frame.
constexpr std::string_view kMagic{"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 12};
constexpr std::size_t kProtocolBytes = 2;
constexpr std::size_t kFrameBytes = 9;
constexpr std::int64_t kVersion = 1001;
constexpr std::uint64_t kMaxPickles = 1 * kGiB;
constexpr std::uint64_t kFirstRead = 1 * kMiB;

class HeadReader {
 public:
  explicit HeadReader(const ByteSource& source) : source_(source), path_(source.path()) {}

  LegacyHead read() {
    LegacyHead head;
    head.text = read_pickles();
    const std::string_view whole(*head.text);
    check_machine(graph(whole, 2));
    head.object_begin = begins_[kObject];
    head.object_end = begins_[kObject + 1];
    head.tree = std::make_unique<const Tree>(graph(whole, kObject), path_);
    head.order = order_of(*head.tree, graph(whole, 4));
    return head;
  }

 private:
  static constexpr std::size_t kPickles = 5;
  static constexpr std::size_t kObject = 3;
  static constexpr std::string_view kNames[kPickles] = {"the magic number", "the version", "the system's sizes",
                                                        "the object", "the list of keys"};

  pickle::Options options(std::size_t number) const {
    pickle::Options options{path_, kNames[number], begins_[number]};
    options.knows = knows_global;
    options.refuses_foreign = number != kObject;
    return options;
  }

  Graph graph(std::string_view whole, std::size_t number) const {
    return pickle::parse(whole.substr(begins_[number], begins_[number + 1] - begins_[number]), options(number));
  }

  // How long the pickles are is not said: more is read until all five are complete.
  std::unique_ptr<const std::string> read_pickles() {
    for (std::uint64_t length = std::min(source_.size(), kFirstRead);; length = std::min(source_.size(), 4 * length)) {
      std::string text(static_cast<std::size_t>(length), '\0');
      source_.read(0, std::as_writable_bytes(std::span(text)));
      const bool whole = length == source_.size() || length >= kMaxPickles;
      if (find_pickles(text, whole)) {
        text.resize(begins_[kPickles]);
        text.shrink_to_fit();
        return std::make_unique<const std::string>(std::move(text));
      }
    }
  }

  bool find_pickles(std::string_view text, bool whole) {
    for (std::size_t number = 0; number < kPickles; ++number) {
      bool needs_more = false;
      const Graph found = pickle::parse(text.substr(begins_[number]), options(number), whole ? nullptr : &needs_more);
      if (needs_more) return false;
      if (number == 1 && (found.kind(found.root) != Kind::kInteger || found.node(found.root).integer != kVersion)) {
        throw_format(path_, "byte {}: expected version {} of the legacy format", begins_[1], kVersion);
      }
      begins_[number + 1] = begins_[number] + found.consumed;
    }
    return true;
  }

  void check_machine(const Graph& machine) const {
    if (machine.kind(machine.root) != Kind::kDict) throw_format(path_, "{} are not a dict", kNames[2]);
    for (const auto& [key, value] : machine.entries(machine.root)) {
      if (machine.text(key) != "little_endian") continue;
      if (machine.kind(value) == Kind::kBool && machine.node(value).integer != 0) return;
      throw_unsupported(path_, "it was written by a big-endian machine, which can't be read");
    }
  }

  // The storages as the list of keys has them, each exactly once.
  std::vector<std::uint32_t> order_of(const Tree& tree, const Graph& keys) const {
    if (keys.kind(keys.root) != Kind::kList) throw_format(path_, "the keys of the storages are not a list");
    NameMap<std::uint32_t> numbers;
    for (const Storage& storage : tree.storages()) {
      numbers.emplace(storage.key, static_cast<std::uint32_t>(numbers.size()));
    }
    std::vector<std::uint32_t> order;
    std::vector<bool> listed(tree.storages().size());
    for (const NodeId key : keys.items(keys.root)) {
      const std::string_view name = keys.text(key);
      const auto known = numbers.find(name);
      if (keys.kind(key) != Kind::kString || known == numbers.end()) {
        throw_format(path_, "it lists the storage {}, which no tensor has", in_quotes(name));
      }
      if (listed[known->second]) throw_format(path_, "it lists the storage {} twice", in_quotes(name));
      listed[known->second] = true;
      order.push_back(known->second);
    }
    if (const auto missing = std::find(listed.begin(), listed.end(), false); missing != listed.end()) {
      throw_format(path_, "storage {} has no bytes",
                   in_quotes(tree.storages()[static_cast<std::size_t>(missing - listed.begin())].key));
    }
    return order;
  }

  const ByteSource& source_;
  std::string_view path_;
  std::uint64_t begins_[kPickles + 1] = {};
};

// Where the bytes of a storage start whose count is at `at`.
std::uint64_t check_count(const ByteSource& source, const Storage& storage, std::uint64_t at) {
  const std::uint64_t left = source.size() - at;
  std::uint64_t count = 0;
  if (left >= kLegacyCountBytes) source.read(at, std::as_writable_bytes(std::span(&count, 1)));
  if (left < kLegacyCountBytes || left - kLegacyCountBytes < storage.nbytes()) {
    throw_format(source.path(), "truncated: storage {} at byte {} takes {} bytes, but {} are left",
                 in_quotes(storage.key), at, storage.nbytes() + kLegacyCountBytes, left);
  }
  if (count != storage.count) {
    throw_format(source.path(), "byte {}: storage {} has {} elements, expected {}", at, in_quotes(storage.key), count,
                 storage.count);
  }
  return at + kLegacyCountBytes;
}

// It ends early as a fragment does, and is called like one.
void refuse_fragment(const ByteSource& source, const LegacyHead& head) {
  const std::string_view path = source.path();
  const auto name = parse_fragment_name(path.substr(path.rfind('/') + 1));
  if (!name || !is_fragment(source.size(), head, *name)) return;
  throw_unsupported(path, "fragment {} of {} of {}, which can't be read alone; convert joins them", name->rank,
                    name->count, in_quotes(name->stem));
}

// Files may have several objects, one after the other, of which torch.load gives the first.
bool is_pickle_at(const ByteSource& source, std::uint64_t at) {
  std::array<unsigned char, kProtocolBytes> start{};
  if (source.size() - at < start.size()) return false;
  source.read(at, std::as_writable_bytes(std::span(start)));
  return start[0] == pickle::kProtocol && start[1] >= 2 && start[1] <= 5;
}

std::vector<std::uint64_t> place_storages(const ByteSource& source, const LegacyHead& head) {
  std::vector<std::uint64_t> offsets(head.tree->storages().size());
  std::uint64_t at = head.nbytes();
  for (const std::uint32_t number : head.order) {
    const Storage& storage = head.tree->storages()[number];
    offsets[number] = check_count(source, storage, at);
    at = offsets[number] + storage.nbytes();
  }
  if (at != source.size() && !is_pickle_at(source, at)) {
    throw_format(source.path(), "byte {}: {} bytes follow the last storage", at, source.size() - at);
  }
  return offsets;
}

}  // namespace

bool looks_like_legacy(const ByteSource& source) {
  constexpr std::size_t kLongest = kProtocolBytes + kFrameBytes + kMagic.size();
  std::string head(static_cast<std::size_t>(std::min<std::uint64_t>(source.size(), kLongest)), '\0');
  source.read(0, std::as_writable_bytes(std::span(head)));
  if (!head.starts_with('\x80')) return false;
  const std::size_t at = head.find(kMagic);
  return at == kProtocolBytes || at == kProtocolBytes + kFrameBytes;
}

LegacyHead read_legacy_head(const ByteSource& source) {
  return HeadReader(source).read();
}

Checkpoint read_legacy(const ByteSource& source) {
  LegacyHead head = read_legacy_head(source);
  refuse_fragment(source, head);
  Checkpoint checkpoint;
  checkpoint.format = kLegacyFormat;
  checkpoint.storage_offsets = place_storages(source, head);
  checkpoint.tree = std::move(head.tree);
  checkpoint.text = std::move(head.text);
  return checkpoint;
}

Layout parse_legacy(const ByteSource& source) {
  return make_layout(read_legacy(source), source.path());
}

}  // namespace penstock::torch
