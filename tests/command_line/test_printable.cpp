// Nothing that steers a terminal gets through; everything else does, letter by letter.
#include "command_line/printable.h"

#include <gtest/gtest.h>

#include <string>

namespace blockscope {
namespace {

TEST(Printable, KeepsTextOfAnyScript) {
  const std::string text = "a\tb\nÄß 漢字 🙂 \u00A0\uFFFD";
  EXPECT_EQ(printable(text), text);
}

TEST(Printable, ControlCharactersBecomeTheirNumbers) {
  EXPECT_EQ(printable("\x1b[31mred\x07"), "\\x1b[31mred\\x07");
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\r\x7f"), "\\x0d\\x7f");
  EXPECT_EQ(printable("\u009B"), "\\xc2\\x9b") << "CSI in one character";
}

TEST(Printable, BytesThatAreNoUtf8BecomeTheirNumbers) {
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable("\xc0\x9b"), "\\xc0\\x9b") << "overlong";
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half a surrogate pair";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond Unicode";
  EXPECT_EQ(printable("\xe6\xbc"), "\\xe6\\xbc") << "cut off";
}

}  // namespace
}  // namespace blockscope
