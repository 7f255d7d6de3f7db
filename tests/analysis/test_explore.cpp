// The data of the page's script: what it reads from a figure's commands, and its escapes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "analysis/figures/head_map.h"
#include "analysis/figures/line_chart.h"
#include "analysis/report/explore.h"
#include "analysis/report/explore_values.h"

namespace blockscope {
namespace {

using nlohmann::json;
using ::testing::Not;

TEST(Explore, ReadsCurvesFromTheirCommands) {
  LineChart chart{.x_label = "step, of \\{a\\}", .y_label = "A_{out}: mean"};
  chart.curves = {{"A_{out}, \\{x\\}", {1, 2, 3}, {0.5, std::nan(""), 0.25}},
                  {"without points", {1, 3}, {0.0, 1.0}, "#123456", 0, 0, 0.0},
                  {"third", {2}, {0.125}}};
  Figure figure;
  draw_chart(chart, figure);
  const json plots = plots_of(figure);
  ASSERT_EQ(plots.size(), 3U);  // one a plot group in the drawing
  EXPECT_EQ(plots[0]["kind"], "line");
  EXPECT_EQ(plots[0]["name"], "A_out, {x}");
  EXPECT_EQ(plots[0]["x"], "step, of {a}");
  EXPECT_EQ(plots[0]["y"], "A_out: mean");
  EXPECT_EQ(plots[0]["points"], json::parse("[[1.0, 0.5], [3.0, 0.25]]"));
  EXPECT_EQ(plots[1]["kind"], "");
  EXPECT_EQ(plots[2]["points"], json::parse("[[2.0, 0.125]]"));
}

TEST(Explore, ReadsCellsWithTheNamesOfAllSlots) {
  ResultArray array{"a", "1", "", {{"layer", {0, 7}, {}}, {"head", {2, 5, 9}, {}}}, {}, {}};
  array.values = {0.0, 0.1, 0.2, std::nan(""), 0.4, 0.5};
  array.terms = {1, 1, 1, 0, 1, 1};
  const auto part = head_map(
      array, {.name = "m", .title = "M", .caption = "{}", .value = "it's a value", .upper = 1.0},
      "f");
  ASSERT_TRUE(part.has_value());
  const json plots = plots_of(part->figure);
  ASSERT_EQ(plots.size(), 2U);
  EXPECT_EQ(plots[0]["kind"], "cells");
  EXPECT_EQ(plots[0]["value"], "it's a value");
  EXPECT_EQ(plots[0]["x_names"], json::parse(R"(["2", "5", "9"])"));
  EXPECT_EQ(plots[0]["y_names"], json::parse(R"(["0", "7"])"));
  EXPECT_EQ(plots[0]["points"],
            json::parse("[[0.0,0.0,0.0],[1.0,0.0,0.1],[2.0,0.0,0.2],[1.0,1.0,0.4],[2.0,1.0,0.5]]"));
  EXPECT_EQ(plots[1]["kind"], "");  // the numbers in the cells
}

TEST(Explore, JsonNeverEndsTheScript) {
  const json data{"</script><!--<script>", "\u2028", "\xFF"};
  const std::string text = script_json(data);
  EXPECT_THAT(text, Not(::testing::HasSubstr("<")));
  EXPECT_EQ(json::parse(text)[0], "</script><!--<script>");
}

TEST(Explore, CodesKeepTheirEndsAndNaN) {
  const std::vector<double> values{-1.0, std::nan(""), 3.0};
  const json of = coded(values);
  EXPECT_EQ(of["least"], -1.0);
  EXPECT_EQ(of["greatest"], 3.0);
  EXPECT_EQ(of["codes"], "AA//" + std::string("/+"));  // 0, 4095, 4094
}

}  // namespace
}  // namespace blockscope
