// Pickle as data: a stream of opcodes becomes a graph of nodes. Nothing is imported, called or constructed.
//
// A global is a name; what Python would call (REDUCE, NEWOBJ, OBJ, BUILD) becomes a kCall node that says what would
// have been called with what. Globals that the caller does not know are marked as foreign, or refused: see Options.
// Opcodes that only other programs could make sense of are refused with the byte they stand at. Protocols 2 to 5, as
// torch and both Pythons write them.
//
// The graph may share nodes and, in a hostile file, contain itself: whoever walks it counts its steps (see kMaxDepth).
// Strings and bytes are views of the text that was parsed, which must outlive the graph.
#pragma once

#include <bit>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/name_hash.h"

namespace penstock::pickle {

using NodeId = std::uint32_t;
inline constexpr NodeId kNoNode = ~NodeId{0};

// Nesting that walkers accept.
inline constexpr unsigned kMaxDepth = 1000;
// Nesting that is parsed: a walker's level is up to four values here, as in a call whose argument is a tuple.
inline constexpr unsigned kMaxParsedDepth = 4 * kMaxDepth;

enum class Kind : std::uint8_t {
  kNone,
  kBool,
  kInteger,     // fits 64 bits
  kBigInteger,  // does not: little-endian two's complement in `text`
  kFloat,
  kString,
  kOldString,  // of Python 2, and not UTF-8: bytes, whose encoding only the writer knew
  kBytes,
  kByteArray,
  kList,
  kTuple,
  kDict,
  kSet,
  kFrozenSet,
  kGlobal,      // `text` is "module name"
  kCall,        // items: callee, arguments (a tuple), then the state of each BUILD
  kPersistent,  // items: the id
};

// There is one for every two bytes of a hostile pickle: it is kept small.
struct Node {
  Kind kind = Kind::kNone;
  bool foreign : 1 = false;     // kGlobal: not one that Options::knows
  bool old : 1 = false;         // kString: of Python 2, where it was bytes
  std::uint16_t depth = 0;      // containers and calls: of what is in it, when it was put there
  std::uint32_t contents = 0;   // containers and calls: index into Graph::contents; 0 is that of all empty ones
  std::uint32_t at = 0;         // the byte of the pickle where its opcode stands
  std::uint32_t text_size = 0;  // kString, kOldString, kBytes, kByteArray, kBigInteger, kGlobal
  union {
    std::int64_t integer = 0;  // also kBool; the bits of kFloat
    const char* text_begin;    // of those with a text
  };

  double number() const noexcept { return std::bit_cast<double>(integer); }  // of kFloat
  // Empty for those without one.
  std::string_view text() const noexcept {
    return text_size == 0 ? std::string_view() : std::string_view(text_begin, text_size);
  }
  void set_text(std::string_view text) noexcept {
    text_begin = text.data();
    text_size = static_cast<std::uint32_t>(text.size());
  }
};
static_assert(sizeof(Node) == 24);

// What a pickle adds to something by opcodes of their own.
struct Added {
  std::vector<std::pair<NodeId, NodeId>> entries;  // of dicts; of calls: what SETITEMS added to the result
  std::vector<NodeId> appended;                    // of calls: what APPENDS or ADDITEMS added to the result
};

struct Contents {
  std::vector<NodeId> items;     // of lists, tuples, sets, calls
  std::unique_ptr<Added> added;  // where there is any
};

class Graph {
 public:
  NodeId root = kNoNode;
  std::uint64_t consumed = 0;  // bytes up to and with STOP

  const Node& node(NodeId id) const { return nodes[id]; }
  Kind kind(NodeId id) const { return nodes[id].kind; }
  std::string_view text(NodeId id) const { return nodes[id].text(); }
  std::span<const NodeId> items(NodeId id) const { return contents[nodes[id].contents].items; }
  std::span<const std::pair<NodeId, NodeId>> entries(NodeId id) const {
    const auto& added = contents[nodes[id].contents].added;
    return added ? std::span<const std::pair<NodeId, NodeId>>(added->entries)
                 : std::span<const std::pair<NodeId, NodeId>>();
  }
  std::span<const NodeId> appended(NodeId id) const {
    const auto& added = contents[nodes[id].contents].added;
    return added ? std::span<const NodeId>(added->appended) : std::span<const NodeId>();
  }

  // To be filled in.
  Contents& contents_of(NodeId id);
  Added& added_to(NodeId id);

  // The first global that is foreign; kNoNode: none is.
  NodeId first_foreign = kNoNode;

  // True for a call of `global` ("module name").
  bool calls(NodeId id, std::string_view global) const {
    return kind(id) == Kind::kCall && kind(items(id)[0]) == Kind::kGlobal && text(items(id)[0]) == global;
  }

  // Where a node stands, for messages: "data.pkl: byte 17".
  std::string place(NodeId id) const;

  std::string_view what;  // as in the options
  std::uint64_t offset = 0;
  std::vector<Node> nodes;
  std::deque<Contents> contents = std::deque<Contents>(1);
  NameSet<std::string> names;  // of globals
};

struct Options {
  std::string_view path;     // for messages
  std::string_view what;     // "data.pkl"; messages say "PATH: data.pkl: byte 17: ..."; outlives the graph
  std::uint64_t offset = 0;  // of the text in what the messages count in
  // Whether the caller knows "module name".
  std::function<bool(std::string_view global)> knows;
  bool refuses_foreign = true;  // throws for a global that is not known, or else marks it
  // A value takes up to a hundred times the memory that its opcode does, and what Python writes has more than two bytes
  // for each. So there are at most this many, and half as many more as the text has bytes: enough for any checkpoint.
  std::size_t most_values = std::size_t{1} << 19;
};

// Why a foreign global ("module name") is refused, for messages.
std::string foreign_text(std::string_view global);

// Throws Error(kFormat), or kUnsupportedFormat for what Python could make sense of. With `needs_more`, text that ends
// before STOP sets it and returns an empty graph instead: the caller has only read a part of the file yet.
Graph parse(std::string_view text, const Options& options, bool* needs_more = nullptr);

}  // namespace penstock::pickle
