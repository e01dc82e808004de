// Reading the legacy format: pickles back to back (a magic number, a version, what machine wrote it, the object, the
// keys of the storages), then per key a count and the bytes.
#include <algorithm>
#include <unordered_map>

#include "base/bytes.h"
#include "base/error.h"
#include "format/torch_file.h"

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

class LegacyReader {
 public:
  explicit LegacyReader(const ByteSource& source) : source_(source), path_(source.path()) {}

  Checkpoint read() {
    read_pickles();
    Checkpoint checkpoint;
    checkpoint.format = kLegacyFormat;
    const std::string_view whole(*text_);
    check_machine(graph(whole, 2));
    checkpoint.tree = std::make_unique<const Tree>(graph(whole, 3), path_);
    const Graph keys = graph(whole, 4);
    checkpoint.storage_offsets = place_storages(*checkpoint.tree, keys);
    checkpoint.text = std::move(text_);
    return checkpoint;
  }

 private:
  static constexpr std::size_t kPickles = 5;
  static constexpr std::string_view kNames[kPickles] = {"the magic number", "the version", "the system's sizes",
                                                        "the object", "the list of keys"};

  pickle::Options options(std::size_t number) const {
    pickle::Options options{path_, kNames[number], begins_[number]};
    options.allows = allows_global;
    return options;
  }

  Graph graph(std::string_view whole, std::size_t number) const {
    return pickle::parse(whole.substr(begins_[number], begins_[number + 1] - begins_[number]), options(number));
  }

  // How long the pickles are is not said: more is read until all five are complete.
  void read_pickles() {
    for (std::uint64_t length = std::min(source_.size(), kFirstRead);; length = std::min(source_.size(), 4 * length)) {
      std::string text(static_cast<std::size_t>(length), '\0');
      source_.read(0, std::as_writable_bytes(std::span(text)));
      const bool whole = length == source_.size() || length >= kMaxPickles;
      if (find_pickles(text, whole)) {
        text.resize(begins_[kPickles]);
        text_ = std::make_unique<const std::string>(std::move(text));
        return;
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
      throw_format(path_, "it was written by a big-endian machine, which can't be read");
    }
  }

  std::vector<std::uint64_t> place_storages(const Tree& tree, const Graph& keys) const {
    if (keys.kind(keys.root) != Kind::kList) throw_format(path_, "the keys of the storages are not a list");
    std::vector<std::uint64_t> offsets(tree.storages().size());
    std::vector<bool> placed(offsets.size());
    std::unordered_map<std::string_view, std::size_t> numbers;
    for (const Storage& storage : tree.storages()) numbers.emplace(storage.key, numbers.size());
    std::uint64_t at = begins_[kPickles];
    for (const NodeId key : keys.items(keys.root)) {
      const std::string_view name = keys.text(key);
      const auto known = numbers.find(name);
      if (keys.kind(key) != Kind::kString || known == numbers.end()) {
        throw_format(path_, "it lists the storage {}, which no tensor has", in_quotes(name));
      }
      const std::size_t number = known->second;
      const Storage& storage = tree.storages()[number];
      if (placed[number]) throw_format(path_, "it lists the storage {} twice", in_quotes(name));
      placed[number] = true;
      offsets[number] = check_count(storage, at);
      at = offsets[number] + storage.nbytes();
    }
    if (const auto missing = std::find(placed.begin(), placed.end(), false); missing != placed.end()) {
      throw_format(path_, "storage {} has no bytes",
                   in_quotes(tree.storages()[static_cast<std::size_t>(missing - placed.begin())].key));
    }
    if (at != source_.size()) throw_format(path_, "byte {}: {} bytes follow the last storage", at, source_.size() - at);
    return offsets;
  }

  // Where the bytes of a storage start whose count is at `at`.
  std::uint64_t check_count(const Storage& storage, std::uint64_t at) const {
    constexpr std::uint64_t kCountBytes = 8;
    const std::uint64_t left = source_.size() - at;
    std::uint64_t count = 0;
    if (left >= kCountBytes) source_.read(at, std::as_writable_bytes(std::span(&count, 1)));
    if (left < kCountBytes || left - kCountBytes < storage.nbytes()) {
      throw_format(path_, "truncated: storage {} at byte {} takes {} bytes, but {} are left", in_quotes(storage.key),
                   at, storage.nbytes() + kCountBytes, left);
    }
    if (count != storage.count) {
      throw_format(path_, "byte {}: storage {} has {} elements, expected {}", at, in_quotes(storage.key), count,
                   storage.count);
    }
    return at + kCountBytes;
  }

  const ByteSource& source_;
  std::string_view path_;
  std::unique_ptr<const std::string> text_;
  std::uint64_t begins_[kPickles + 1] = {};
};

}  // namespace

bool looks_like_legacy(const ByteSource& source) {
  constexpr std::size_t kLongest = kProtocolBytes + kFrameBytes + kMagic.size();
  std::string head(static_cast<std::size_t>(std::min<std::uint64_t>(source.size(), kLongest)), '\0');
  source.read(0, std::as_writable_bytes(std::span(head)));
  if (!head.starts_with('\x80')) return false;
  const std::size_t at = head.find(kMagic);
  return at == kProtocolBytes || at == kProtocolBytes + kFrameBytes;
}

Checkpoint read_legacy(const ByteSource& source) {
  return LegacyReader(source).read();
}

Layout parse_legacy(const ByteSource& source) {
  const Checkpoint checkpoint = read_legacy(source);
  return make_layout(*checkpoint.tree, checkpoint.storage_offsets, std::string(checkpoint.format), source.path());
}

}  // namespace penstock::torch
