#include "json.h"

#include <gtest/gtest.h>

#include <limits>

namespace penstock::cli {
namespace {

TEST(Json, commas_and_brackets_are_placed) {
  JsonWriter json;
  json.begin_object();
  json.field("name", "w");
  json.key("shape");
  json.begin_array();
  json.value(2);
  json.value(3);
  json.end_array();
  json.key("empty");
  json.begin_object();
  json.end_object();
  json.field("ok", true);
  json.field("rate", 1.5);
  json.end_object();
  EXPECT_EQ(json.take(), R"({"name":"w","shape":[2,3],"empty":{},"ok":true,"rate":1.5})");
}

TEST(Json, strings_are_escaped) {
  EXPECT_EQ(json_string("a\"b\\c"), R"("a\"b\\c")");
  EXPECT_EQ(json_string("\n\t\x01\x7F"), R"("\n\t\u0001\u007f")");
  EXPECT_EQ(json_string("schön"), "\"schön\"");
  EXPECT_EQ(json_string(std::string_view("\0", 1)), R"("\u0000")");
}

TEST(Json, bytes_that_are_not_utf8_are_replaced) {
  EXPECT_EQ(json_string("a\xFF"), "\"a\xEF\xBF\xBD\"");
}

TEST(Json, numbers_that_json_lacks_are_null) {
  JsonWriter json;
  json.begin_array();
  json.value(std::numeric_limits<double>::infinity());
  json.value(~std::uint64_t{0});
  json.end_array();
  EXPECT_EQ(json.take(), "[null,18446744073709551615]");
}

TEST(Json, a_document_can_be_taken_in_parts) {
  JsonWriter json;
  json.begin_array();
  json.value(1);
  EXPECT_EQ(json.take(), "[1");
  json.value(2);
  json.end_array();
  EXPECT_EQ(json.take(), ",2]");
}

}  // namespace
}  // namespace penstock::cli
