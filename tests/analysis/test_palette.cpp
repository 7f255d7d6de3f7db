// Looks of methods: one colour a method in all figures, and curves of one figure that differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "analysis/figures/bar_chart.h"
#include "analysis/figures/line_chart.h"
#include "analysis/figures/palette.h"

namespace blockscope {
namespace {

std::vector<LineLook> looks(const std::vector<std::string>& names) { return method_looks(names); }

std::size_t distinct(const std::vector<LineLook>& all) {
  std::set<std::tuple<std::string_view, int, int>> seen;
  for (const LineLook& look : all) seen.insert({look.color, look.point, look.dash});
  return seen.size();
}

TEST(Palette, AMethodHasOneColourInEveryFigure) {
  const std::string_view mage = looks({"mage"})[0].color;
  EXPECT_EQ(looks({"exact", "quest", "mage,k=64"})[2].color, mage);
  EXPECT_EQ(looks({"mage,k=8", "sparsed", "mage,k=64"})[2].color, mage);
  EXPECT_EQ(looks({"own", "mage with adapter"})[1].color, mage);
  EXPECT_NE(looks({"mage+flashblock"})[0].color, mage);
  std::vector<BarSeries> bars{{"exact", {}}, {"mage", {}}};
  look_like_methods(bars);
  std::vector<Curve> curves{{"mage", {}, {}}};
  look_like_methods(curves);
  EXPECT_EQ(bars[1].color, mage);
  EXPECT_EQ(curves[0].color, mage);
}

TEST(Palette, CurvesOfAFigureDiffer) {
  const std::vector<std::vector<std::string>> figures{
      {"exact", "flashblock", "mage", "mage+flashblock", "sparsed", "sparsed+flashblock", "quest",
       "oracle", "random", "recent"},
      {"none", "prefix", "dual", "dllm-cache", "d2cache", "block", "commit", "blockd"},
      {"sequential", "low_confidence_static", "low_confidence_dynamic", "entropy_bounded",
       "threshold", "factor", "prefix_ordered", "klass", "pc_sampler", "wino", "joint_threshold",
       "joint_threshold_indel"},
      {"exact", "mage,k=8", "mage,k=16", "quest,k=8", "quest,k=16"},
      {"exact", "mine", "yours", "theirs,k=3", "mage"},
      {"exact", "flashblock,tau=2", "flashblock,tau=3", "flashblock,tau=4"}};
  for (const std::vector<std::string>& names : figures) {
    EXPECT_EQ(distinct(looks(names)), names.size()) << names[0];
    EXPECT_EQ(looks(names)[0].color, okabe_ito::kGrey) << names[0];
  }
}

TEST(Palette, BarsOfOneColourDifferInTheirFill) {
  std::vector<BarSeries> bars{{"mage", {1.0}}, {"mage, one thread", {1.0}}, {"quest", {1.0}}};
  look_like_methods(bars);
  EXPECT_EQ(bars[0].color, bars[1].color);
  EXPECT_EQ(bars[0].density, 1.0);
  EXPECT_LT(bars[1].density, 1.0);
  EXPECT_EQ(bars[2].density, 1.0);
  const std::string commands =
      bar_commands({.x_label = "", .y_label = "", .series = bars}, "b.tsv");
  EXPECT_NE(commands.find("fillstyle solid 0.45 border title 'mage, one thread'"),
            std::string::npos);
}

TEST(Palette, OtherNamesTakeColoursThatAreLeft) {
  const std::vector<LineLook> all = looks({"mine", "flashblock", "mage"});
  EXPECT_NE(all[0].color, all[1].color);
  EXPECT_NE(all[0].color, all[2].color);
}

TEST(Palette, RegionsKeepTheirColourWithPartsOfAPrompt) {
  EXPECT_EQ(region_look(1, 6).color, kRegionColors[1]);
  EXPECT_EQ(region_look(5, 6).color, region_look(8, 9).color);
  EXPECT_EQ(region_look(2, 9).color, kPartColors[0]);
}

}  // namespace
}  // namespace blockscope
