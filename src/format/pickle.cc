#include "format/pickle.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "format/pickle_opcodes.h"

namespace penstock::pickle {
namespace {

struct EndOfText {};

constexpr std::size_t kLongestName = 1000;  // of a global that is kept, with its module
// Of all names that are kept: parts that the memo has can be joined again and again.
constexpr std::size_t kFreeNames = 64 << 10;
constexpr std::size_t kNamesPerByte = 4;

class Machine {
 public:
  Machine(std::string_view text, const Options& options)
      : text_(text), options_(options), most_values_(options.most_values + text.size() / 2) {
    graph_.what = options.what;
    graph_.offset = options.offset;
  }

  Graph run() {
    while (!stopped_) step();
    graph_.consumed = at_;
    return std::move(graph_);
  }

  [[noreturn]] void fail_truncated() { fail("the pickle ends before it is complete"); }

 private:
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> message, Args&&... args) const {
    throw_format(options_.path, "{}: byte {}: {}", options_.what, options_.offset + opcode_at_,
                 fmt::format(message, std::forward<Args>(args)...));
  }

  // For what may be sound, and makes sense to a program that executes pickles.
  template <typename... Args>
  [[noreturn]] void fail_unsupported(fmt::format_string<Args...> message, Args&&... args) const {
    throw_unsupported(options_.path, "{}: byte {}: {}", options_.what, options_.offset + opcode_at_,
                      fmt::format(message, std::forward<Args>(args)...));
  }

  // --- the text ---

  std::string_view take(std::uint64_t length) {
    if (length > text_.size() - at_) throw EndOfText{};
    const std::string_view taken = text_.substr(at_, static_cast<std::size_t>(length));
    at_ += static_cast<std::size_t>(length);
    return taken;
  }

  template <typename T>
  T take_number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  std::string_view take_line() {
    const std::size_t end = text_.find('\n', at_);
    if (end == std::string_view::npos) throw EndOfText{};
    const std::string_view line = take(end - at_);
    ++at_;
    return line;
  }

  // --- nodes ---

  NodeId add(Node node) {
    if (graph_.nodes.size() >= most_values_) {
      fail("more than {} values in a pickle of {} bytes", most_values_, text_.size());
    }
    node.at = static_cast<std::uint32_t>(opcode_at_);
    graph_.nodes.push_back(node);
    return static_cast<NodeId>(graph_.nodes.size() - 1);
  }

  NodeId add_container(Kind kind, std::vector<NodeId> items = {}) {
    Node node;
    node.kind = kind;
    const NodeId id = add(node);
    for (const NodeId item : items) put_in(id, item);
    if (!items.empty()) graph_.contents_of(id).items = std::move(items);
    return id;
  }

  // What contains itself is as deep as it was when it was put in: walkers count for themselves.
  void put_in(NodeId container, NodeId item) {
    const unsigned depth = graph_.nodes[item].depth + 1u;
    if (depth > kMaxParsedDepth) fail_nested();
    if (depth > graph_.nodes[container].depth) graph_.nodes[container].depth = static_cast<std::uint16_t>(depth);
  }

  [[noreturn]] void fail_nested() { fail("values are nested deeper than {}", kMaxDepth); }

  void push(NodeId id) {
    if (stack_.size() >= most_values_) fail("more than {} values on the stack", most_values_);
    stack_.push_back(id);
  }

  void push_text(Kind kind, std::string_view text) {
    Node node;
    node.kind = kind;
    node.set_text(text);
    push(add(node));
  }

  void push_string(std::string_view text) {
    constexpr std::size_t kSurrogateBytes = 3;
    std::string_view rest = text;
    while (const auto bad = find_invalid_utf8(rest)) {
      // Python writes half of a surrogate pair like any other character.
      rest.remove_prefix(*bad);
      const bool surrogate =
          rest.size() >= kSurrogateBytes && rest[0] == '\xed' && (rest[1] & 0xE0) == 0xA0 && (rest[2] & 0xC0) == 0x80;
      if (!surrogate) fail("a string is not valid UTF-8");
      rest.remove_prefix(kSurrogateBytes);
    }
    push_text(Kind::kString, text);
  }

  // What Python 2 called a string: bytes, whose encoding the reader must know.
  void push_old_string(std::string_view text) {
    push_text(find_invalid_utf8(text) ? Kind::kOldString : Kind::kString, text);
    graph_.nodes.back().old = true;
  }

  void push_integer(Kind kind, std::int64_t value) {
    Node node;
    node.kind = kind;
    node.integer = value;
    push(add(node));
  }

  NodeId pop() {
    if (stack_.size() <= floor()) fail("the stack is empty");
    const NodeId id = stack_.back();
    stack_.pop_back();
    return id;
  }

  NodeId top() const {
    if (stack_.size() <= floor()) fail("the stack is empty");
    return stack_.back();
  }

  // What was pushed since the last mark, which goes.
  std::vector<NodeId> pop_mark() {
    if (marks_.empty()) fail("there is no mark on the stack");
    std::vector<NodeId> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }

  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  // --- opcodes ---

  void step() {
    opcode_at_ = at_;
    const auto opcode = take_number<std::uint8_t>();
    if (!step_text(opcode) && !step_container(opcode) && !step_memo(opcode) && !step_call(opcode)) {
      const char* const purpose = describe_unneeded(opcode);
      if (purpose == nullptr) fail("0x{:02x} is no opcode", opcode);
      fail_unsupported("{} (0x{:02x}), which data does not need", purpose, opcode);
    }
  }

  bool step_text(std::uint8_t opcode) {
    switch (opcode) {
      case kProtocol:
        if (const auto version = take_number<std::uint8_t>(); version < 2 || version > 5) {
          fail_unsupported("protocol {}, expected 2 to 5", version);
        }
        return true;
      case kFrame:
        static_cast<void>(take_number<std::uint64_t>());  // a hint for readers of streams
        return true;
      case kNoneValue:
        push(add({}));
        return true;
      case kNewTrue:
      case kNewFalse:
        push_integer(Kind::kBool, opcode == kNewTrue ? 1 : 0);
        return true;
      case kIntegerText:
        push_integer_text();
        return true;
      case kBinInt:
        push_integer(Kind::kInteger, take_number<std::int32_t>());
        return true;
      case kBinInt1:
        push_integer(Kind::kInteger, take_number<std::uint8_t>());
        return true;
      case kBinInt2:
        push_integer(Kind::kInteger, take_number<std::uint16_t>());
        return true;
      case kLong1:
        push_long(take_number<std::uint8_t>());
        return true;
      case kLong4:
        push_long(take_number<std::uint32_t>());
        return true;
      case kBinFloat:
        push_float();
        return true;
      case kShortBinUnicode:
        push_string(take(take_number<std::uint8_t>()));
        return true;
      case kBinUnicode:
        push_string(take(take_number<std::uint32_t>()));
        return true;
      case kBinUnicode8:
        push_string(take(take_number<std::uint64_t>()));
        return true;
      case kShortBinString:
        push_old_string(take(take_number<std::uint8_t>()));
        return true;
      case kBinString:
        push_old_string(take(take_number<std::uint32_t>()));
        return true;
      case kShortBinBytes:
        push_text(Kind::kBytes, take(take_number<std::uint8_t>()));
        return true;
      case kBinBytes:
        push_text(Kind::kBytes, take(take_number<std::uint32_t>()));
        return true;
      case kBinBytes8:
        push_text(Kind::kBytes, take(take_number<std::uint64_t>()));
        return true;
      case kByteArray8:
        push_text(Kind::kByteArray, take(take_number<std::uint64_t>()));
        return true;
      default:
        return false;
    }
  }

  bool step_container(std::uint8_t opcode) {
    switch (opcode) {
      case kMark:
        if (marks_.size() >= kMaxParsedDepth) fail_nested();
        marks_.push_back(stack_.size());
        return true;
      case kPop:
        // As in Python, a mark that is on top is what goes.
        if (!marks_.empty() && stack_.size() == marks_.back()) {
          marks_.pop_back();
        } else {
          static_cast<void>(pop());
        }
        return true;
      case kPopMark:
        static_cast<void>(pop_mark());
        return true;
      case kDuplicate:
        push(top());
        return true;
      case kEmptyList:
        push(add_container(Kind::kList));
        return true;
      case kEmptyTuple:
        push(add_container(Kind::kTuple));
        return true;
      case kEmptyDict:
        push(add_container(Kind::kDict));
        return true;
      case kEmptySet:
        push(add_container(Kind::kSet));
        return true;
      case kTuple1:
      case kTuple2:
      case kTuple3:
        push_tuple(opcode - kTuple1 + 1u);
        return true;
      case kTupleOfMark:
        push(add_container(Kind::kTuple, pop_mark()));
        return true;
      case kFrozenSetOfMark:
        push(add_container(Kind::kFrozenSet, pop_mark()));
        return true;
      case kAppend:
        append({pop()}, Kind::kList);
        return true;
      case kAppends:
        append(pop_mark(), Kind::kList);
        return true;
      case kAddItems:
        append(pop_mark(), Kind::kSet);
        return true;
      case kSetItem: {
        const NodeId value = pop();
        set_items({pop(), value});
        return true;
      }
      case kSetItems:
        set_items(pop_mark());
        return true;
      default:
        return false;
    }
  }

  bool step_memo(std::uint8_t opcode) {
    switch (opcode) {
      case kBinGet:
        push(recall(take_number<std::uint8_t>()));
        return true;
      case kLongBinGet:
        push(recall(take_number<std::uint32_t>()));
        return true;
      case kBinPut:
        memoize(take_number<std::uint8_t>());
        return true;
      case kLongBinPut:
        memoize(take_number<std::uint32_t>());
        return true;
      case kMemoize:
        memoize(memo_.size());
        return true;
      default:
        return false;
    }
  }

  bool step_call(std::uint8_t opcode) {
    switch (opcode) {
      case kGlobalName: {
        const std::string_view module = take_line();
        push_global(module, take_line());
        return true;
      }
      case kStackGlobal: {
        const NodeId name = pop();
        const NodeId module = pop();
        if (graph_.kind(name) != Kind::kString || graph_.kind(module) != Kind::kString) {
          fail("a global whose name is not a string");
        }
        push_global(graph_.text(module), graph_.text(name));
        return true;
      }
      case kReduce:
      case kNewObject: {
        const NodeId arguments = pop();
        push_call(pop(), arguments);
        return true;
      }
      case kNewObjectWithKeywords: {
        const NodeId keywords = pop();
        const NodeId arguments = pop();
        push_call(pop(), arguments, keywords);
        return true;
      }
      case kObject: {
        std::vector<NodeId> items = pop_mark();
        if (items.empty()) fail("an object without a class");
        const NodeId callee = items.front();
        items.erase(items.begin());
        push_call(callee, add_container(Kind::kTuple, std::move(items)));
        return true;
      }
      case kBuild: {
        const NodeId state = pop();
        const NodeId target = top();
        if (graph_.kind(target) != Kind::kCall) fail("a state for what is not an object");
        put_in(target, state);
        graph_.contents_of(target).items.push_back(state);
        return true;
      }
      case kBinPersistentId:
        push(add_container(Kind::kPersistent, {pop()}));
        return true;
      case kStop:
        graph_.root = pop();
        if (!stack_.empty() || !marks_.empty()) fail("the pickle stops with more than one value on the stack");
        stopped_ = true;
        return true;
      default:
        return false;
    }
  }

  // What is called is a global, unless other objects are only named and not made.
  void push_call(NodeId callee, NodeId arguments, NodeId keywords = kNoNode) {
    if (options_.refuses_foreign && (graph_.kind(callee) != Kind::kGlobal || keywords != kNoNode)) {
      fail_unsupported("a call of what is not a global");
    }
    if (graph_.kind(arguments) != Kind::kTuple) fail("a call whose arguments are not a tuple");
    if (keywords != kNoNode && graph_.kind(keywords) != Kind::kDict) fail("keywords that are not a dict");
    push(add_container(Kind::kCall, {callee, arguments}));
    if (keywords == kNoNode) return;
    put_in(top(), keywords);
    graph_.added_to(top()).appended.push_back(keywords);
  }

  // Decimal digits; 00 and 01 are what protocol 1 has for False and True.
  void push_integer_text() {
    const std::string_view digits = take_line();
    if (digits == "00" || digits == "01") return push_integer(Kind::kBool, digits == "01" ? 1 : 0);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size()) fail("an integer of other than 64 bits");
    push_integer(Kind::kInteger, value);
  }

  void push_float() {
    std::uint64_t bits = 0;
    for (const char byte : take(sizeof bits)) bits = (bits << 8) | static_cast<unsigned char>(byte);
    Node node;
    node.kind = Kind::kFloat;
    node.integer = std::bit_cast<std::int64_t>(bits);
    push(add(node));
  }

  void push_long(std::uint32_t length) {
    const std::string_view digits = take(length);
    if (length > sizeof(std::int64_t)) return push_text(Kind::kBigInteger, digits);
    std::uint64_t value = 0;
    for (std::size_t i = length; i > 0; --i) value = (value << 8) | static_cast<unsigned char>(digits[i - 1]);
    if (length > 0 && length < sizeof value && (digits[length - 1] & 0x80) != 0)
      value |= ~std::uint64_t{0} << (8 * length);
    push_integer(Kind::kInteger, static_cast<std::int64_t>(value));
  }

  void push_tuple(std::size_t count) {
    std::vector<NodeId> items(count);
    for (std::size_t i = count; i > 0; --i) items[i - 1] = pop();
    push(add_container(Kind::kTuple, std::move(items)));
  }

  void append(const std::vector<NodeId>& values, Kind kind) {
    const NodeId target = top();
    const Kind found = graph_.kind(target);
    if (found != kind && found != Kind::kCall)
      fail("values for what is not a {}", kind == Kind::kList ? "list" : "set");
    if (values.empty()) return;
    for (const NodeId value : values) put_in(target, value);
    std::vector<NodeId>& items =
        found == Kind::kCall ? graph_.added_to(target).appended : graph_.contents_of(target).items;
    items.insert(items.end(), values.begin(), values.end());
  }

  void set_items(const std::vector<NodeId>& values) {
    const NodeId target = top();
    const Kind found = graph_.kind(target);
    if (found != Kind::kDict && found != Kind::kCall) fail("entries for what is not a dict");
    if (values.size() % 2 != 0) fail("a dict entry without a value");
    if (values.empty()) return;
    for (const NodeId value : values) put_in(target, value);
    auto& entries = graph_.added_to(target).entries;
    for (std::size_t i = 0; i < values.size(); i += 2) entries.emplace_back(values[i], values[i + 1]);
  }

  NodeId recall(std::uint64_t index) const {
    if (index >= memo_.size() || memo_[index] == kNoNode) fail("memo entry {} was never set", index);
    return memo_[index];
  }

  // Python's pickler counts upwards: an index beyond the number of bytes is an attack on memory.
  void memoize(std::uint64_t index) {
    if (index > text_.size()) fail("memo entry {} in a pickle of {} bytes", index, text_.size());
    if (index >= memo_.size()) memo_.resize(index + 1, kNoNode);
    memo_[index] = top();
  }

  void push_global(std::string_view module, std::string_view name) {
    std::string global = fmt::format("{} {}", module, name);
    Node node;
    node.foreign = !options_.knows(global);
    // A name that is recalled again and again is kept each time.
    if (node.foreign && (options_.refuses_foreign || global.size() > kLongestName))
      fail_unsupported("{}", foreign_text(global));
    if (node.foreign && find_invalid_utf8(global)) fail("a global whose name is not valid UTF-8");
    const auto [name_kept, is_new] = graph_.names.insert(std::move(global));
    if (is_new) name_bytes_ += name_kept->size();
    if (name_bytes_ > kFreeNames + kNamesPerByte * text_.size()) fail("names of globals take {} bytes", name_bytes_);
    node.kind = Kind::kGlobal;
    node.set_text(*name_kept);
    push(add(node));
    if (node.foreign && graph_.first_foreign == kNoNode) graph_.first_foreign = top();
  }

  std::string_view text_;
  const Options& options_;
  const std::size_t most_values_;
  std::size_t name_bytes_ = 0;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
  bool stopped_ = false;
  std::vector<NodeId> stack_;
  std::vector<std::size_t> marks_;  // heights of the stack
  std::vector<NodeId> memo_;
  Graph graph_;
};

}  // namespace

std::string foreign_text(std::string_view global) {
  std::string name(global);
  std::replace(name.begin(), name.end(), ' ', '.');
  return fmt::format("the global {} is not one that a checkpoint's data needs; it was not imported", in_quotes(name));
}

Contents& Graph::contents_of(NodeId id) {
  if (nodes[id].contents == 0) {
    nodes[id].contents = static_cast<std::uint32_t>(contents.size());
    contents.emplace_back();
  }
  return contents[nodes[id].contents];
}

Added& Graph::added_to(NodeId id) {
  auto& added = contents_of(id).added;
  if (!added) added = std::make_unique<Added>();
  return *added;
}

std::string Graph::place(NodeId id) const {
  return fmt::format("{}: byte {}", what, offset + nodes[id].at);
}

Graph parse(std::string_view text, const Options& options, bool* needs_more) {
  Machine machine(text, options);
  try {
    return machine.run();
  } catch (const EndOfText&) {
    if (needs_more == nullptr) machine.fail_truncated();
    *needs_more = true;
    return {};
  }
}

}  // namespace penstock::pickle
