#include "viewer/model/colormap.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

Colour rgb(unsigned red, unsigned green, unsigned blue) {
  return 0xFF000000U | blue << 16U | green << 8U | red;
}

// Ends and middle as matplotlib 3.11 gives them for 0, 128 and 255.
TEST(Colormap, EqualsMatplotlib) {
  const Colormap viridis("viridis");
  EXPECT_EQ(viridis.table()[0], rgb(68, 1, 84));
  EXPECT_EQ(viridis.table()[128], rgb(32, 144, 140));
  EXPECT_EQ(viridis.table()[255], rgb(253, 231, 36));
  const Colormap coolwarm("coolwarm");
  EXPECT_EQ(coolwarm.table()[0], rgb(58, 76, 192));
  EXPECT_EQ(coolwarm.table()[255], rgb(179, 3, 38));
}

TEST(Colormap, ReversedIsTheSameBackwards) {
  for (const std::string_view name : kColormapNames) {
    const Colormap map(name);
    const Colormap reversed(std::string(name) + "_r");
    for (std::size_t i = 0; i < 256; ++i) EXPECT_EQ(map.table()[i], reversed.table()[255 - i]);
  }
}

TEST(Colormap, EveryValueHasAColourAndNanHasItsOwn) {
  const Colormap map("viridis");
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(map.at(0.0F, 0.0F, 1.0F), map.table()[0]);
  EXPECT_EQ(map.at(1.0F, 0.0F, 1.0F), map.table()[255]);
  EXPECT_EQ(map.at(-kInf, 0.0F, 1.0F), map.table()[0]);
  EXPECT_EQ(map.at(kInf, 0.0F, 1.0F), map.table()[255]);
  EXPECT_EQ(map.at(3.0F, 3.0F, 3.0F), map.table()[128]);
  EXPECT_EQ(map.at(std::nanf(""), 0.0F, 1.0F), kNoValueColour);
  for (const std::string_view name : kColormapNames) {
    const Colormap one(name);
    for (const Colour colour : one.table()) EXPECT_NE(colour, kNoValueColour);
  }
}

TEST(Colormap, UnknownNameIsRefusedWithTheList) {
  try {
    const Colormap map("jet");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("cividis"), std::string::npos);
  }
}

TEST(Colormap, TextIsReadableOnBothEnds) {
  EXPECT_EQ(readable_on(rgb(68, 1, 84)), 0xFFFFFFFFU);
  EXPECT_EQ(readable_on(rgb(253, 231, 36)), 0xFF000000U);
}

}  // namespace
}  // namespace blockscope
