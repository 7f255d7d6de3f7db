// What strict_json.h refuses besides text that does not parse. How readers say it: their own tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "decode_record/json/strict_json.h"

namespace blockscope {
namespace {

using testing::HasSubstr;

std::string fault(const std::string& text, const JsonLimits& limits = {}) {
  try {
    parse_strict_json(text, limits);
  } catch (const JsonFault& error) {
    return error.place() + ": " + error.text("fallback");
  }
  return "";
}

TEST(StrictJson, ReadsWhatTheParserReads) {
  for (const char* text : {"{}", " [1, {\"a\": null}] ", "\"x\"", R"({"a": {"a": {"a": 1}}})",
                           R"([{"a": 1}, {"a": 2}])"}) {
    EXPECT_EQ(parse_strict_json(text), nlohmann::json::parse(text)) << text;
  }
}

TEST(StrictJson, ANulByteEndsNothing) {
  using std::string_literals::operator""s;
  for (const std::string& text : {"{}\0"s, "{}\0{\"b\": 2}"s, "\0{}"s, "{\0}"s}) {
    EXPECT_THAT(fault(text), HasSubstr("NUL byte")) << text.size();
  }
  EXPECT_THAT(fault("{}\0 "s), HasSubstr("byte 3: "));
}

TEST(StrictJson, AMemberIsNamedOnceAtEveryDepth) {
  EXPECT_THAT(fault(R"({"a": 1, "b": 2, "a": 1})"), HasSubstr("got \"a\" twice"));
  EXPECT_THAT(fault(R"([[{"c": {"d": 0, "d": 0}}]])"), HasSubstr("got \"d\" twice"));
  // \u0061 is a.
  EXPECT_THAT(fault(R"({"a": 1, "\u0061": 2})"), HasSubstr("got \"a\" twice"));
  EXPECT_THAT(fault(R"({"a": {"x": 1}, "b": 0, "a": {"y": 1}})"), HasSubstr("got \"a\" twice"));
  const std::string name(100'000, 'n');
  EXPECT_LT(fault("{\"" + name + "\": 1, \"" + name + "\": 2}").size(), 300u);
}

TEST(StrictJson, LimitsAndBrokenText) {
  EXPECT_THAT(fault("[[[]]]", {.depth = 2}), HasSubstr("at most 2 arrays"));
  EXPECT_EQ(fault("[[]]", {.depth = 2}), "");
  EXPECT_THAT(fault("[1, 2, 3]", {.values = 3}), HasSubstr("at most 3 values"));
  EXPECT_EQ(fault("[1, 2, 3]", {.values = 4}), "");
  EXPECT_THAT(fault("[1"), HasSubstr("file: expected JSON, got text that ends in the middle"));
  EXPECT_THAT(fault("[1]]"), HasSubstr("byte 4: expected JSON, got text that does not parse"));
  EXPECT_THAT(fault("[NaN]"), HasSubstr("HINT: fallback"));
  EXPECT_THAT(fault("[1e999]"), HasSubstr("numbers that a double can hold"));
}

}  // namespace
}  // namespace blockscope
