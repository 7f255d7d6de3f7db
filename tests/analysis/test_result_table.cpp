// Results as tables for a terminal and as CSV and JSON: what a person reads must be what is there.
#include "analysis/results/result_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "analysis/results/export_csv.h"
#include "analysis/results/export_json.h"
#include "analysis/results/result_selection.h"
#include "analysis/results/text_table.h"
#include "decode_record/base/nan.h"

namespace blockscope {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

/// [layer 0 and 5, head 0 and 1]: the cells weigh 1, 3, 2 and nothing.
MetricResult small_result() {
  ResultArray array{"cosines",
                    "cosine",
                    "of something",
                    {{"layer", {0, 5}, {}}, {"head", {0, 1}, {}}},
                    {0.5, 0.25, 0.75, kNaN},
                    {1, 3, 2, 0}};
  return {"small",
          "Small \"result\", quoted",
          "a + b",
          "Paper, eq. 1",
          "/a, /b",
          {array},
          {{"rows without a prefix", 7}, {"nothing", 0}}};
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) result.push_back(line);
  return result;
}

std::string line_with(const std::string& text, const std::string& start) {
  for (const std::string& line : lines(text)) {
    if (line.substr(std::min(line.find_first_not_of(' '), line.size())).starts_with(start))
      return line;
  }
  return "";
}

TEST(ResultTable, HasMeansWeightedByTermsAndSaysHowMany) {
  const std::string text = result_table(small_result());
  // Layer 0: (0.5 + 3 * 0.25) / 4; layer 5: one head has no terms.
  EXPECT_THAT(line_with(text, "0 "), MatchesRegex(" +0 +0\\.3125 +4"));
  EXPECT_THAT(line_with(text, "5 "), MatchesRegex(" +5 +0\\.7500 +2"));
  // (0.5 + 0.75 + 1.5) / 6
  EXPECT_THAT(line_with(text, "all"), MatchesRegex(" +all +0\\.4583 +6"));
  EXPECT_THAT(text, HasSubstr("left out: rows without a prefix (7)\n"));
  EXPECT_THAT(text, HasSubstr("  Paper, eq. 1\n  from /a, /b\n"));
}

TEST(ResultTable, AnAxisGivenByTheUserMakesTheRows) {
  TableOptions options;
  options.by = {"head"};
  const std::string heads = result_table(small_result(), options);
  EXPECT_THAT(line_with(heads, "0 "), MatchesRegex(" +0 +0\\.6667 +3"));
  options.by = {"head", "layer"};
  const std::string both = result_table(small_result(), options);
  EXPECT_THAT(line_with(both, "head"), HasSubstr("layer=5"));
  EXPECT_THAT(line_with(both, "1 "), MatchesRegex(" +1 +0\\.2500 +- +0\\.\\.3"));
  options.by = {"step"};
  EXPECT_THAT(result_table(small_result(), options), HasSubstr("no array with the axis step"));
}

TEST(ResultTable, ManyColumnsAreSpreadOverTheWidthWithTheLastOne) {
  MetricResult result = small_result();
  ResultAxis k{"k", {}, {}};
  for (int i = 1; i <= 64; ++i) k.index.push_back(i);
  result.arrays = {{"recall", "share", "", {{"layer", {0, 1}, {}}, k}, {}, {}}};
  for (int i = 0; i < 128; ++i) result.arrays[0].values.push_back(i / 128.0);
  result.arrays[0].terms.assign(128, 10);
  TableOptions options;
  options.width = 60;
  const std::string text = result_table(result, options);
  for (const std::string& line : lines(text)) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_LE(line_with(text, "layer").size(), 60u);
  EXPECT_THAT(line_with(text, "layer"), HasSubstr("k=1 "));
  EXPECT_THAT(line_with(text, "layer"), HasSubstr("k=64"));
  EXPECT_THAT(text, MatchesRegex("(.|\n)* of 64 values of k shown(.|\n)*"));
}

TEST(ResultTable, CountsAreNotAveraged) {
  MetricResult result = small_result();
  result.arrays = {{"histogram", "rows", "", {{"m", {0, 1, 2}, {}}}, {4, 0, 12}, {}}};
  const std::string text = result_table(result);
  EXPECT_THAT(line_with(text, "2 "), MatchesRegex(" +2 +12"));
  EXPECT_EQ(line_with(text, "all"), "");
}

TEST(ResultTable, SpreadKeepsTheEndsAndNeverRepeats) {
  EXPECT_THAT(spread(3, 5), ElementsAre(0, 1, 2));
  EXPECT_THAT(spread(10, 4), ElementsAre(0, 3, 6, 9));
  EXPECT_THAT(spread(10, 1), ElementsAre(0));
  for (std::size_t size = 1; size < 50; ++size) {
    for (std::size_t count = 2; count < 12; ++count) {
      auto picked = spread(size, count);
      EXPECT_EQ(picked.size(), std::min(size, count));
      EXPECT_EQ(picked.back(), size - 1);
      EXPECT_EQ(std::ranges::adjacent_find(picked, std::greater_equal<>()), picked.end());
    }
  }
}

TEST(ExportCsv, HasARowPerCellWithExactNumbersAndQuotes) {
  AnalysisDocument document;
  document.results = {small_result()};
  document.results[0].arrays[0].unit = "a,\"b\"";
  document.results[0].arrays[0].values[0] = 0.1 + 0.2;
  document.results[0].arrays.push_back({"one", "", "", {}, {2.0}, {}});
  std::ostringstream text;
  write_csv(document, text);
  EXPECT_THAT(lines(text.str()),
              ElementsAre("metric,array,unit,layer,head,value,terms",
                          "small,cosines,\"a,\"\"b\"\"\",0,0,0.30000000000000004,1",
                          "small,cosines,\"a,\"\"b\"\"\",0,1,0.25,3",
                          "small,cosines,\"a,\"\"b\"\"\",5,0,0.75,2",
                          "small,cosines,\"a,\"\"b\"\"\",5,1,,0", "small,one,,,,2,"));
}

TEST(ExportJson, SaysWhatHasNoNumberInJson) {
  AnalysisDocument document;
  document.results = {small_result()};
  document.results[0].arrays[0].axes[1] = {
      "tau", {2.0, std::numeric_limits<double>::infinity()}, {}};
  std::ostringstream text;
  write_json(document, text);
  const auto root = nlohmann::json::parse(text.str());
  const auto& array = root["metrics"][0]["arrays"][0];
  EXPECT_TRUE(array["values"][3].is_null());
  EXPECT_EQ(array["terms"][3], 0);
  EXPECT_EQ(array["axes"][1]["index"], nlohmann::json({2.0, "inf"}));
  EXPECT_EQ(array["shape"], nlohmann::json({2, 2}));
  EXPECT_EQ(root["metrics"][0]["left_out"]["rows without a prefix"], 7);
}

TEST(ResultSelection, DropsArraysWithoutTheWantedElementsAndNamesThoseWithoutTheAxis) {
  std::vector<MetricResult> results{small_result()};
  ResultArray other{"other", "", "", {{"layer", {0, 5}, {}}}, {1, 2}, {}};
  ResultArray late{"late", "", "", {{"head", {3}, {}}}, {1}, {}};
  results[0].arrays.push_back(other);
  results[0].arrays.push_back(late);
  const SelectionOutcome outcome = keep_elements(results, "head", {1});
  EXPECT_TRUE(outcome.matched);
  EXPECT_THAT(outcome.there, ElementsAre(0, 1, 3));
  EXPECT_THAT(outcome.whole, ElementsAre("small/other"));
  ASSERT_EQ(results[0].arrays.size(), 2u);
  EXPECT_THAT(results[0].arrays[0].values, ElementsAre(0.25, ::testing::IsNan()));
  EXPECT_FALSE(keep_elements(results, "head", {9}).matched);
}

}  // namespace
}  // namespace blockscope
