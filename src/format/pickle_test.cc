// The interpreter of pickles: what data is made of becomes a graph, everything else is refused with its place.
#include "format/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "format/test_files.h"
#include "format/test_pickle.h"

namespace penstock {
namespace {

using namespace std::string_literals;
using pickle::Graph;
using pickle::Kind;
using test::format_error;
using test::little;
using test::p_global;
using test::p_integer;
using test::p_string;
using test::p_tuple;
using test::p_whole;
using test::unsupported_error;
using ::testing::EndsWith;
using ::testing::HasSubstr;

pickle::Options options() {
  pickle::Options options{"f", "data.pkl"};
  options.knows = [](std::string_view global) { return global == "collections OrderedDict"; };
  return options;
}

Graph parse(const std::string& text) {
  return pickle::parse(text, options());
}

std::string refusal(const std::string& body) {
  return format_error([&] { parse(p_whole(body)); });
}

// The same for what Python could make sense of.
std::string unsupported(const std::string& body) {
  return unsupported_error([&] { parse(p_whole(body)); });
}

// The pickle's only value, which is a list or tuple.
std::vector<Kind> kinds(const Graph& graph) {
  std::vector<Kind> result;
  for (const pickle::NodeId id : graph.items(graph.root)) result.push_back(graph.kind(id));
  return result;
}

TEST(PickleTest, every_kind_of_number_is_read) {
  const std::string text = p_whole(p_tuple({"K\xff"s, "M\xff\xff"s, "J\xff\xff\xff\xff"s, "\x8a\x00"s, "\x8a\x01\x80"s,
                                            "\x8a\x02\x80\x00"s, p_integer(-(std::int64_t{1} << 62)),
                                            "\x8b\x01\x00\x00\x00\x05"s, "G\x40\x09\x00\x00\x00\x00\x00\x00"s}));
  const Graph graph = parse(text);
  const auto items = graph.items(graph.root);
  const std::vector<std::int64_t> expected{255, 65535, -1, 0, -128, 128, -(std::int64_t{1} << 62), 5};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(graph.node(items[i]).integer, expected[i]) << i;
  EXPECT_EQ(graph.node(items[8]).number(), 3.125);
}

TEST(PickleTest, numbers_beyond_64_bits_keep_their_digits) {
  const std::string text = p_whole("\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00"s);
  const Graph graph = parse(text);
  EXPECT_EQ(graph.kind(graph.root), Kind::kBigInteger);
  EXPECT_EQ(graph.text(graph.root), "\x00\x00\x00\x00\x00\x00\x00\x80\x00"s);
}

TEST(PickleTest, strings_and_bytes_of_every_width_are_read) {
  const std::string text =
      p_whole(p_tuple({p_string("a"), "\x8c\x01"s + "b", "\x8d"s + little(std::uint64_t{1}) + "c", "U\x01"s + "d",
                       "T"s + little(std::uint32_t{1}) + "e", "C\x01"s + "\xff", "B"s + little(std::uint32_t{1}) + "g",
                       "\x8e"s + little(std::uint64_t{1}) + "h", "\x96"s + little(std::uint64_t{1}) + "i"}));
  const Graph graph = parse(text);
  std::string joined;
  for (const pickle::NodeId id : graph.items(graph.root)) joined += graph.text(id);
  EXPECT_EQ(joined, "abcde\xffghi");
  EXPECT_EQ(kinds(graph)[5], Kind::kBytes);
  EXPECT_EQ(kinds(graph)[8], Kind::kByteArray);
}

TEST(PickleTest, containers_of_every_protocol_are_read) {
  const std::string text =
      p_whole("](N\x88\x89" + "K\x01\x85"s + "]K\x01" + "a" + "}K\x01K\x02s" + "\x8f(K\x01\x90" + "(K\x01\x91" + "e");
  const Graph graph = parse(text);
  EXPECT_EQ(kinds(graph), (std::vector{Kind::kNone, Kind::kBool, Kind::kBool, Kind::kTuple, Kind::kList, Kind::kDict,
                                       Kind::kSet, Kind::kFrozenSet}));
  EXPECT_EQ(graph.entries(graph.items(graph.root)[5]).size(), 1u);
}

TEST(PickleTest, frames_and_memos_of_protocol_4_are_read) {
  const std::string text = "\x80\x04\x95"s + little(std::uint64_t{9}) + "]\x94(\x8c\x01" + "a\x94h\x01" + "e.";
  const Graph graph = parse(text);
  EXPECT_EQ(graph.items(graph.root)[0], graph.items(graph.root)[1]);
  EXPECT_EQ(graph.consumed, text.size());
}

TEST(PickleTest, a_call_says_what_would_have_been_called) {
  const std::string text = p_whole(p_global("collections", "OrderedDict") + ")R" + p_string("k") + "K\x01s}b");
  const Graph graph = parse(text);
  EXPECT_TRUE(graph.calls(graph.root, "collections OrderedDict"));
  EXPECT_EQ(graph.entries(graph.root).size(), 1u);
  EXPECT_EQ(graph.items(graph.root).size(), 3u);
}

TEST(PickleTest, gadgets_are_refused_by_name_and_place) {
  const std::string why = " is not one that a checkpoint's data needs; it was not imported";
  EXPECT_EQ(unsupported(p_global("os", "system") + p_string("true") + "\x85R"),
            "f: data.pkl: byte 2: the global \"os.system\"" + why);
  EXPECT_EQ(unsupported("]" + p_global("builtins", "eval")), "f: data.pkl: byte 3: the global \"builtins.eval\"" + why);
  EXPECT_EQ(unsupported(p_global("builtins", "getattr")), "f: data.pkl: byte 2: the global \"builtins.getattr\"" + why);
  EXPECT_EQ(unsupported(p_string("posix") + p_string("system") + "\x93"),
            "f: data.pkl: byte 23: the global \"posix.system\"" + why);
  EXPECT_EQ(unsupported(p_global("collections", "OrderedDict.__class__")),
            "f: data.pkl: byte 2: the global \"collections.OrderedDict.__class__\"" + why);
  EXPECT_EQ(unsupported(p_global("a\x01\x1b[31m", "b")), "f: data.pkl: byte 2: the global \"a\\x01\\x1b[31m.b\"" + why);
}

TEST(PickleTest, a_long_name_is_cut_in_the_message) {
  EXPECT_LT(unsupported(p_global(std::string(1'000'000, 'm'), "n")).size(), 1000u);
}

TEST(PickleTest, chains_of_calls_are_refused) {
  const std::string made = p_global("collections", "OrderedDict") + ")R";
  EXPECT_EQ(unsupported(made + ")R"), "f: data.pkl: byte 30: a call of what is not a global");
  EXPECT_EQ(unsupported(p_string("os.system") + ")R"), "f: data.pkl: byte 17: a call of what is not a global");
  EXPECT_EQ(refusal(p_global("collections", "OrderedDict") + "]R"),
            "f: data.pkl: byte 28: a call whose arguments are not a tuple");
  EXPECT_EQ(unsupported(made + ")\x81"), "f: data.pkl: byte 30: a call of what is not a global");
}

TEST(PickleTest, a_state_is_for_objects_only) {
  for (const std::string& target : {"]"s, "}"s, ")"s, "N"s, p_string("a"), p_global("collections", "OrderedDict")}) {
    EXPECT_EQ(refusal(target + "}b"),
              "f: data.pkl: byte " + std::to_string(3 + target.size()) + ": a state for what is not an object");
  }
}

TEST(PickleTest, opcodes_that_data_does_not_need_are_refused_by_what_they_do) {
  const std::string tail = ", which data does not need";
  for (const char opcode : "LFSVgpdlP"s) {
    EXPECT_EQ(unsupported(std::string(1, opcode) + "0\n"),
              fmt::format("f: data.pkl: byte 2: an opcode of protocol 0 or 1 (0x{:02x}){}", opcode, tail));
  }
  EXPECT_EQ(unsupported("(i"
                        "os\nsystem\n"),
            "f: data.pkl: byte 3: an opcode that makes an instance (0x69)" + tail);
  EXPECT_EQ(unsupported("\x82\x01"), "f: data.pkl: byte 2: an opcode of the extension registry (0x82)" + tail);
  EXPECT_EQ(unsupported("\x97"), "f: data.pkl: byte 2: an opcode for buffers outside of the pickle (0x97)" + tail);
  EXPECT_EQ(refusal("\xff"), "f: data.pkl: byte 2: 0xff is no opcode");
  EXPECT_EQ(unsupported_error([] { parse("\x80\x01N."); }), "f: data.pkl: byte 0: protocol 1, expected 2 to 5");
  EXPECT_EQ(unsupported_error([] { parse("\x80\x06N."); }), "f: data.pkl: byte 0: protocol 6, expected 2 to 5");
}

TEST(PickleTest, lengths_beyond_the_text_are_refused_before_they_are_believed) {
  const std::string why = "f: data.pkl: byte 2: the pickle ends before it is complete";
  EXPECT_EQ(refusal("X"s + little(std::uint32_t{0x7fffffff}) + "abc"), why);
  EXPECT_EQ(refusal("X"s + little(std::uint32_t{0xffffffff}) + "abc"), why);
  EXPECT_EQ(refusal("T"s + little(std::uint32_t{0xffffffff}) + "abc"), why);
  EXPECT_EQ(refusal("\x8d"s + little(~std::uint64_t{0})), why);
  EXPECT_EQ(refusal("\x8e"s + little(std::uint64_t{1} << 31)), why);
  EXPECT_EQ(refusal("\x96"s + little(std::uint64_t{1} << 62)), why);
  EXPECT_EQ(refusal("\x8b"s + little(std::uint32_t{0xffffffff})), why);
  EXPECT_EQ(refusal("c"
                    "a"),
            why);
}

TEST(PickleTest, a_frame_may_say_anything) {
  EXPECT_EQ(refusal("\x95"s + little(~std::uint64_t{0}) + "N"), "no error");
}

TEST(PickleTest, memo_entries_that_count_ahead_are_refused) {
  EXPECT_EQ(refusal("Nr" + little(std::uint32_t{0xfffffffe})),
            "f: data.pkl: byte 3: memo entry 4294967294 in a pickle of 9 bytes");
  EXPECT_EQ(refusal("h\x00"s), "f: data.pkl: byte 2: memo entry 0 was never set");
  EXPECT_EQ(refusal("Nq\x05h\x04"s), "f: data.pkl: byte 5: memo entry 4 was never set");
  EXPECT_EQ(refusal("j" + little(std::uint32_t{0xffffffff})),
            "f: data.pkl: byte 2: memo entry 4294967295 was never set");
  EXPECT_EQ(refusal("q\x00"s), "f: data.pkl: byte 2: the stack is empty");
}

TEST(PickleTest, a_stack_that_runs_out_is_refused) {
  const std::string empty = ": the stack is empty";
  for (const std::string& body : {"0"s, "2"s, "\x85"s, "K\x01\x86"s, "R"s, "b"s, "Q"s, "a"s, "s"s, "\x93"s, ""s}) {
    EXPECT_NE(refusal(body).find(empty), std::string::npos) << body;
  }
  const std::string mark = ": there is no mark on the stack";
  for (const std::string& body : {"1"s, "t"s, "]e"s, "}u"s, "\x8f\x90"s, "\x91"s}) {
    EXPECT_NE(refusal(body).find(mark), std::string::npos) << body;
  }
  // What lies under a mark is out of reach.
  EXPECT_NE(refusal("K\x01(\x85"), "no error");
  EXPECT_EQ(refusal("NN"), "f: data.pkl: byte 4: the pickle stops with more than one value on the stack");
  EXPECT_EQ(refusal("(N"), "f: data.pkl: byte 4: the pickle stops with more than one value on the stack");
  EXPECT_EQ(refusal("N("), "f: data.pkl: byte 4: the stack is empty");
}

TEST(PickleTest, contents_are_for_containers_only) {
  EXPECT_EQ(refusal("N(K\x01"
                    "e"),
            "f: data.pkl: byte 6: values for what is not a list");
  EXPECT_EQ(refusal(")K\x01"
                    "a"),
            "f: data.pkl: byte 5: values for what is not a list");
  EXPECT_EQ(refusal("](K\x01\x90"), "f: data.pkl: byte 6: values for what is not a set");
  EXPECT_EQ(refusal("](K\x01K\x02u"), "f: data.pkl: byte 8: entries for what is not a dict");
  EXPECT_EQ(refusal("}(K\x01u"), "f: data.pkl: byte 6: a dict entry without a value");
  EXPECT_EQ(refusal("NN\x93"), "f: data.pkl: byte 4: a global whose name is not a string");
}

TEST(PickleTest, text_that_is_not_utf8_is_refused) {
  EXPECT_EQ(refusal(p_string("\xff")), "f: data.pkl: byte 2: a string is not valid UTF-8");
  EXPECT_EQ(refusal(p_string("\xed\x9f")), "f: data.pkl: byte 2: a string is not valid UTF-8");
  EXPECT_EQ(refusal(p_string("\xed")), "f: data.pkl: byte 2: a string is not valid UTF-8");
  EXPECT_EQ(refusal(p_string("\xed\xa0")), "f: data.pkl: byte 2: a string is not valid UTF-8");
  EXPECT_EQ(refusal(p_string("\xed\xa0\x80 \xff")), "f: data.pkl: byte 2: a string is not valid UTF-8");
}

pickle::Graph parse_all(const std::string& body) {
  pickle::Options lenient = options();
  lenient.refuses_foreign = false;
  static std::deque<std::string> kept;  // the graph looks into it
  return pickle::parse(kept.emplace_back("\x80\x02" + body + "."), lenient);
}

TEST(PickleTest, halves_of_surrogate_pairs_are_text_as_python_has_them) {
  const pickle::Graph graph = parse_all(p_string("ab\xed\xa0\x80 \xed\xbf\xbf"));
  EXPECT_EQ(graph.kind(graph.root), Kind::kString);
  EXPECT_EQ(graph.text(graph.root), "ab\xed\xa0\x80 \xed\xbf\xbf");
}

TEST(PickleTest, strings_of_python_2_are_text_or_bytes) {
  const Graph text = parse("\x80\x02U\x02ok.");
  EXPECT_EQ(text.kind(text.root), Kind::kString);
  EXPECT_TRUE(text.node(text.root).old);
  const pickle::Graph bytes = parse_all("U\x01\xff");
  EXPECT_EQ(bytes.kind(bytes.root), Kind::kOldString);
  EXPECT_EQ(bytes.text(bytes.root), "\xff");
}

TEST(PickleTest, integers_in_decimal_are_read_as_python_2_wrote_them) {
  const Graph graph = parse("\x80\x02I12345678901\n.");
  EXPECT_EQ(graph.node(graph.root).integer, 12345678901);
  EXPECT_EQ(parse("\x80\x02I-5\n.").node(0).integer, -5);
  EXPECT_EQ(parse("\x80\x02I01\n.").node(0).kind, Kind::kBool);
  for (const char* bad : {"I\n", "I1x\n", "I 1\n", "I123456789012345678901234\n"}) {
    EXPECT_EQ(refusal(bad), "f: data.pkl: byte 2: an integer of other than 64 bits");
  }
}

TEST(PickleTest, foreign_globals_are_marked_where_they_are_not_refused) {
  const Graph graph = parse_all("]" + p_global("collections", "OrderedDict") + "a" + p_global("os", "system") + "a" +
                                p_global("os", "popen") + "a");
  const auto items = graph.items(graph.root);
  EXPECT_FALSE(graph.node(items[0]).foreign);
  EXPECT_TRUE(graph.node(items[1]).foreign);
  EXPECT_EQ(graph.first_foreign, items[1]);
  EXPECT_EQ(parse_all("N").first_foreign, pickle::kNoNode);
  EXPECT_EQ(format_error([] { parse_all(p_global("a\xff", "b")); }),
            "f: data.pkl: byte 2: a global whose name is not valid UTF-8");
}

TEST(PickleTest, every_way_to_make_an_object_becomes_a_call) {
  const std::string name = p_global("a", "B");
  // An instance of an old class, one with keywords, and the result of calling a result.
  for (const std::string& body : {"(" + name + "K\x01o", name + "K\x01\x85}\x92"s, name + ")RK\x01\x85R"}) {
    const Graph graph = parse_all(body);
    ASSERT_EQ(graph.kind(graph.root), Kind::kCall) << body;
    const pickle::NodeId arguments = graph.items(graph.root)[1];
    ASSERT_EQ(graph.items(arguments).size(), 1u) << body;
    EXPECT_EQ(graph.node(graph.items(arguments)[0]).integer, 1) << body;
  }
  EXPECT_EQ(format_error([] { parse_all("(o"); }), "f: data.pkl: byte 3: an object without a class");
  EXPECT_EQ(format_error([&] { parse_all(name + ")]\x92"); }), "f: data.pkl: byte 9: keywords that are not a dict");
}

std::string repeat(std::string_view text, std::size_t times) {
  std::string repeated;
  for (std::size_t i = 0; i < times; ++i) repeated += text;
  return repeated;
}

// Lists within lists by marks, lists by single values, dicts, tuples, calls.
std::vector<std::string> nested(std::size_t depth) {
  return {repeat("](", depth) + "N" + repeat("e", depth), repeat("]", depth) + "N" + repeat("a", depth),
          repeat("}N", depth) + "N" + repeat("s", depth), "N" + repeat("\x85", depth),
          "]" + repeat(p_global("collections", "OrderedDict"), depth / 2) + ")" + repeat("R\x85", depth / 2) + "a"};
}

TEST(PickleTest, nesting_that_nobody_walks_is_refused_while_it_is_parsed) {
  for (const std::string& body : nested(pickle::kMaxParsedDepth - 10)) EXPECT_EQ(refusal(body), "no error");
  for (const std::string& body : nested(1'000'000)) {
    EXPECT_THAT(refusal(body), EndsWith(": values are nested deeper than 1000"));
  }
}

TEST(PickleTest, a_list_may_contain_itself) {
  const std::string text = p_whole(
      "]q\x00h\x00"
      "a"s);
  const Graph graph = parse(text);
  EXPECT_EQ(graph.items(graph.root)[0], graph.root);
}

TEST(PickleTest, every_value_knows_where_it_stands) {
  const std::string text = p_whole(p_tuple({"N"s, p_string("abc"), "]"s}));
  const Graph graph = parse(text);
  const auto items = graph.items(graph.root);
  EXPECT_EQ(graph.place(items[0]), "data.pkl: byte 3");
  EXPECT_EQ(graph.place(items[1]), "data.pkl: byte 4");
  EXPECT_EQ(graph.place(items[2]), "data.pkl: byte 12");
  EXPECT_EQ(graph.place(graph.root), "data.pkl: byte 13");
}

TEST(PickleTest, values_without_end_are_refused) {
  pickle::Options few = options();
  few.most_values = 1000;
  const std::string body(3000, 'N');
  EXPECT_EQ(format_error([&] { pickle::parse(p_whole(body), few); }),
            "f: data.pkl: byte 2503: more than 2501 values in a pickle of 3003 bytes");
}

TEST(PickleTest, as_many_small_integers_as_there_are_bytes_for_are_parsed) {
  pickle::Options none = options();
  none.most_values = 2;  // for the list, and what is not an integer
  EXPECT_EQ(pickle::parse(p_whole("](" + repeat("K\x07", 100'000) + "e"), none).items(0).size(), 100'000u);
}

TEST(PickleTest, names_that_are_joined_again_and_again_are_refused) {
  std::string body = "(";
  for (int i = 0; i < 40; ++i) {
    body += p_string(std::string(450, 'm') + std::to_string(i)) + "q"s + static_cast<char>(i);
  }
  for (int i = 0; i < 40; ++i) {
    for (int k = 0; k < 40; ++k) body += "h"s + static_cast<char>(i) + "h" + static_cast<char>(k) + "\x93";
  }
  pickle::Options lenient = options();
  lenient.refuses_foreign = false;
  EXPECT_THAT(format_error([&] { pickle::parse(p_whole(body + "t"), lenient); }), HasSubstr("names of globals take "));
}

TEST(PickleTest, text_that_ends_early_asks_for_more_where_there_may_be_more) {
  const std::string whole =
      p_whole(p_tuple({p_string("abc"), "K\x01"s, p_global("collections", "OrderedDict") + ")R"}));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    bool needs_more = false;
    pickle::parse(std::string_view(whole).substr(0, length), options(), &needs_more);
    EXPECT_TRUE(needs_more) << length;
    EXPECT_NE(format_error([&] { parse(whole.substr(0, length)); }), "no error");
  }
}

}  // namespace
}  // namespace penstock
