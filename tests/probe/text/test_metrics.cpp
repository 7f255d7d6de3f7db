// Metrics: values worked out by hand. check_metrics_parity.py compares random pairs with Python.
#include "probe/text/metrics.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace blockscope {
namespace {

TEST(ParseMetric, RoundTripsItsNames) {
  for (const Metric metric : {Metric::kExactMatch, Metric::kContains, Metric::kF1, Metric::kRougeL,
                              Metric::kEditSimilarity}) {
    EXPECT_EQ(parse_metric(metric_name(metric)), metric);
    EXPECT_NE(metric_names().find(metric_name(metric)), std::string_view::npos);
  }
  EXPECT_EQ(parse_metric("rougeL"), Metric::kRougeL);
  EXPECT_FALSE(parse_metric("bleu").has_value());
  EXPECT_FALSE(parse_metric("").has_value());
}

TEST(NormalizeAnswer, FollowsSquad) {
  EXPECT_EQ(normalize_answer("The  Quick, brown-fox!"), "quick brownfox");
  EXPECT_EQ(normalize_answer("An apple a day: the end."), "apple day end");
  EXPECT_EQ(normalize_answer("theory then"), "theory then");
  EXPECT_EQ(normalize_answer("ÉCOLE Ünïcode\u00a0x"), "école ünïcode x");
  EXPECT_EQ(normalize_answer(" \t\n"), "");
}

TEST(ExactMatch, ComparesNormalisedText) {
  EXPECT_EQ(exact_match("The answer.", "answer"), 1.0);
  EXPECT_EQ(exact_match("42", "43"), 0.0);
}

TEST(Contains, FindsTheReferenceInThePrediction) {
  EXPECT_EQ(contains("It is 7342, I think.", "7342"), 1.0);
  EXPECT_EQ(contains("It is 734", "7342"), 0.0);
  EXPECT_EQ(contains("something", ""), 0.0);
  EXPECT_EQ(contains("", ""), 1.0);
}

TEST(F1, CountsRepeatedWordsOnlyAsOftenAsBothHaveThem) {
  EXPECT_DOUBLE_EQ(f1_score("cat cat dog", "cat bird"), 2.0 * (1.0 / 3) * 0.5 / (1.0 / 3 + 0.5));
  EXPECT_DOUBLE_EQ(f1_score("x y", "y x"), 1.0);
  EXPECT_EQ(f1_score("x", "y"), 0.0);
  EXPECT_EQ(f1_score("", ""), 0.0);
}

TEST(RougeL, UnitesTheSubsequencesOfSentences) {
  // Lin (2004): reference w1..w5, candidate sentences share w1 w2 and w1 w3 w5: union 4 of 5 words.
  const double recall = 4.0 / 5;
  const double precision = 4.0 / 8;
  EXPECT_NEAR(rouge_l("w1 w2 w6 w7 w8. w1 w3 w8 w9 w5", "w1 w2 w3 w4 w5"),
              2 * precision * recall / (precision + recall + 1e-8), 1e-12);
  EXPECT_NEAR(rouge_l("a b c", "a b c"), 1.0, 1e-7);
  EXPECT_EQ(rouge_l("a", "b"), 0.0);
  EXPECT_EQ(rouge_l("...", "b"), 0.0);
  EXPECT_EQ(rouge_l("", ""), 0.0);
}

TEST(EditSimilarity, IsTheIndelRatioOverCharacters) {
  EXPECT_DOUBLE_EQ(edit_similarity("kitten", "sitting"), 2.0 * 4 / 13);
  EXPECT_DOUBLE_EQ(edit_similarity("日本", "日本語"), 2.0 * 2 / 5);
  EXPECT_EQ(edit_similarity("", ""), 1.0);
  EXPECT_EQ(edit_similarity("a", ""), 0.0);
}

TEST(EditSimilarity, CrossesTheEndsOfMachineWords) {
  for (const std::size_t size : {63U, 64U, 65U, 127U, 128U, 129U, 1000U}) {
    const std::string same(size, 'a');
    EXPECT_DOUBLE_EQ(edit_similarity(same, same), 1.0) << size;
    EXPECT_DOUBLE_EQ(edit_similarity(same + "b", same),
                     2.0 * static_cast<double>(size) / static_cast<double>(2 * size + 1));
  }
}

TEST(Score, TakesTheBestReference) {
  const std::vector<std::string> references = {"no", "yes", "maybe"};
  EXPECT_EQ(score(Metric::kExactMatch, "Yes!", references), 1.0);
  EXPECT_EQ(score(Metric::kExactMatch, "yes no", references), 0.0);
  EXPECT_EQ(score(Metric::kF1, "x", {}), 0.0);
}

TEST(Score, AcceptsAnyBytes) {
  const std::vector<std::string> references = {"\xFF\xFE", "ok"};
  for (const Metric metric : {Metric::kExactMatch, Metric::kContains, Metric::kF1, Metric::kRougeL,
                              Metric::kEditSimilarity}) {
    EXPECT_GE(score(metric, "\xC0 a\xE2\x82", references), 0.0);
  }
}

}  // namespace
}  // namespace blockscope
