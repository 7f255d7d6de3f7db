// The texts of verify: words that can't be misread, and figures with a key that hides no point.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "analysis/figures/palette.h"
#include "decode_record/base/error.h"
#include "probe/caches/cache_table.h"
#include "probe/policies/policy_table.h"
#include "probe/strategies/strategy_table.h"
#include "probe/verify/verify_figure.h"
#include "probe/verify/verify_report.h"

namespace blockscope {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ErrorTotals error_of(double squared, double reference) {
  ErrorTotals totals;
  totals.squared = squared;
  totals.absolute = squared;
  totals.reference = reference;
  totals.elements = 10;
  return totals;
}

FreeRun run_of(std::vector<double> attention, double total) {
  FreeRun run;
  run.times = {std::move(attention), {total}, 10};
  run.reads = ExternalReads({1, 2, 1});
  run.reads.rows = {100};
  run.reads.rows_read = {80};
  return run;
}

/// One layer with two heads; the first one reuses. Reuse takes `slowdown` times as long.
VerifyResult result_of(double slowdown, std::size_t repeats) {
  VerifyResult result;
  result.prompts = 1;
  result.reference.setting = {{}, "exact", R"({"policy":"exact"})", std::nullopt};
  result.reference.run = run_of(std::vector<double>(repeats, 1.0), 2.0);
  SettingResult own;
  own.setting = {read_policy("flashblock"), "flashblock,tau=2", R"({"policy":"flashblock"})",
                 ReuseSetting{}};
  own.setting.reuse->reuse = {{}, {{{true, false}}}};
  own.run = run_of(std::vector<double>(repeats, slowdown), 2.0 * slowdown);
  own.agreement = {100, 100, 20, 20};
  own.fidelity.reads = own.run.reads;
  own.predicted = own.run.reads;
  own.fidelity.first_order = {error_of(4.0, 200.0), error_of(0.0, 200.0)};
  own.fidelity.first_order_approximated = {error_of(4.0, 100.0), ErrorTotals{}};
  own.fidelity.propagated = own.fidelity.first_order;
  std::vector<double> speedups;
  for (std::size_t i = 0; i < repeats; ++i) {
    speedups.push_back((1.0 + 0.01 * static_cast<double>(i)) / slowdown);
  }
  own.attention_speedup = spread_of(speedups);
  result.settings = {own};
  return result;
}

VerifyFacts facts() {
  VerifyFacts facts;
  facts.threads = facts.repeats = facts.block_length = facts.head_dim = facts.element_bytes = 1;
  return facts;
}

std::string line_with(const std::string& text, const std::string& word) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(word) != std::string::npos) return line;
  }
  return "";
}

TEST(VerifyTextTest, SequencesWithTheSameTextMayTakeOtherSteps) {
  VerifyResult result = result_of(0.5, 1);
  result.settings[0].divergences = {{3, 1}, {5, 2}, {7, 9}};
  std::string text = detail_text(result, facts());
  EXPECT_THAT(line_with(text, "tokens equal"), HasSubstr("the same text in 20 of 20 sequences"));
  EXPECT_THAT(line_with(text, "other steps"),
              HasSubstr("in 3 of 20 sequences, of which 3 end with the same text"));
  EXPECT_THAT(text, Not(HasSubstr("divergence")));
  result.settings[0].agreement.identical = 18;
  text = detail_text(result, facts());
  EXPECT_THAT(line_with(text, "other steps"), HasSubstr("of which 1 ends with the same text"));
  result.settings[0].divergences.clear();
  EXPECT_THAT(line_with(detail_text(result, facts()), "other steps"), HasSubstr("none"));
}

TEST(VerifyTextTest, ASlowdownIsACostAndNotASaving) {
  const std::string slow = verdict_text(result_of(2.5, 3));
  EXPECT_THAT(line_with(slow, "Saved:"), AllOf(HasSubstr("20.0 %"), Not(HasSubstr("attention"))));
  EXPECT_THAT(line_with(slow, "Saved:"), Not(HasSubstr("whole run")));
  EXPECT_THAT(line_with(slow, "Cost:"),
              AllOf(HasSubstr("attention slower: 2.48x the time [2.45, 2.50] a pass"),
                    HasSubstr("the whole run 2.00 s -> 5.00 s")));
  EXPECT_THAT(slow, Not(HasSubstr("0.4")));
  const std::string fast = verdict_text(result_of(0.5, 3));
  EXPECT_THAT(line_with(fast, "Saved:"),
              AllOf(HasSubstr("attention 2.02x as fast [2.00, 2.04] a pass"),
                    HasSubstr("the whole run 2.00 s -> 1.00 s")));
  EXPECT_THAT(line_with(fast, "Cost:"), Not(HasSubstr("attention")));
  EXPECT_THAT(verdict_text(result_of(2.0, 1)),
              HasSubstr("slower: 2.00x the time a pass (run once: its noise is not known)"));
  VerifyResult noisy = result_of(1.0, 3);
  noisy.settings[0].attention_speedup = {0.9, 0.8, 1.1};
  EXPECT_THAT(line_with(verdict_text(noisy), "Saved:"),
              HasSubstr("noise: slower: 1.11x the time [0.91, 1.25] a pass"));
  EXPECT_THAT(line_with(detail_text(result_of(2.5, 3), facts()), "  attention "),
              HasSubstr("slower: 2.48x the time"));
}

TEST(VerifyTextTest, BothErrorsHaveTheNamesOfTheCalibration) {
  VerifyResult result = result_of(0.5, 1);
  result.settings[0].setting.reuse->file_error = 0.25;
  const std::string text = detail_text(result, facts());
  EXPECT_THAT(line_with(text, "error where reused"), HasSubstr("relative L2 2.000e-01"));
  EXPECT_THAT(line_with(text, "predicted by the file relative"), HasSubstr("2.500e-01"));
  EXPECT_THAT(line_with(text, "error over all heads"), HasSubstr("relative L2 1.000e-01"));
  EXPECT_THAT(line_with(text.substr(text.find("\nLayer")), "    0 "),
              AllOf(HasSubstr("2.000e-01"), HasSubstr("1.000e-01")));
  const std::string csv = verify_csv(result, facts());
  EXPECT_THAT(csv,
              AllOf(HasSubstr("first_order_approximated_relative_l2"), HasSubstr(",0.2,0.1,0.1,")));
  EXPECT_THAT(verify_json(result, facts()),
              HasSubstr("\"file_predicts_error_where_reused\": 0.25"));
  result.settings[0].fidelity.first_order_approximated = {ErrorTotals{}, ErrorTotals{}};
  EXPECT_THAT(line_with(detail_text(result, facts()), "error where reused"), HasSubstr("n/a"));
  std::istringstream lines(verify_csv(result, facts()));
  std::string header;
  std::getline(lines, header);
  for (std::string line; std::getline(lines, line);) {
    const std::string unquoted = std::regex_replace(line, std::regex("\"[^\"]*\""), "");
    EXPECT_EQ(std::ranges::count(unquoted, ','), std::ranges::count(header, ',')) << line;
  }
}

TEST(VerifyTextTest, OneOfSomethingIsNotMany) {
  VerifyResult result = result_of(0.5, 1);
  result.settings[0].agreement = {5, 5, 1, 1};
  result.settings[0].fidelity.kl.count = 1;
  result.settings[0].scores.count = 1;
  const std::string text = detail_text(result, facts()) + verdict_text(result);
  EXPECT_THAT(text,
              AllOf(HasSubstr("1 prompt "), HasSubstr("1 thread,"), HasSubstr("1 of 1 sequence"),
                    HasSubstr("1 undecided position,"), HasSubstr("1 interleaved repetition")));
  EXPECT_FALSE(
      std::regex_search(text, std::regex("\\b1 [a-z ]*(prompts|sequences|positions|threads)")))
      << text;
}

/// mage, which read 30 rows to choose, each half a key row, of 100.
VerifyResult sets_of(double slowdown, const char* label) {
  VerifyResult result = result_of(slowdown, 1);
  result.settings[0].setting = {read_policy("mage,k=4"), label, R"({"policy":"mage"})", {}};
  result.settings[0].run.reads.choice_rows = {30};
  result.settings[0].fidelity.reads.choice_rows = {30};
  result.settings[0].predicted = result.settings[0].fidelity.reads;
  return result;
}

TEST(VerifyTextTest, WhatChoosingReadsIsNotHidden) {
  VerifyResult result = sets_of(0.5, "mage,k=4");
  EXPECT_THAT(line_with(verdict_text(result), "Saved:"),
              HasSubstr("20.0 % (with what choosing reads: 5.0 %) of the external key bytes"));
  const std::string text = detail_text(result, facts());
  EXPECT_THAT(line_with(text, "policy "), HasSubstr("mage,k=4"));
  EXPECT_THAT(line_with(text, "reference "), HasSubstr("exact"));
  EXPECT_THAT(line_with(text, "read to choose"), HasSubstr("5.0 % not read when it counts"));
  EXPECT_THAT(line_with(text, "error where"), HasSubstr("error where sparse"));
  EXPECT_THAT(text, Not(HasSubstr("reuse")));
  EXPECT_THAT(verify_json(result, facts()),
              AllOf(HasSubstr("\"choice_rows\": 30"), HasSubstr("\"bytes_read_to_choose\": 30.0"),
                    HasSubstr("\"label\": \"mage,k=4\""), Not(HasSubstr("\"tau\""))));
  EXPECT_THAT(verify_csv(result, facts()), HasSubstr("\"mage,k=4\",0.05,,,,\n"));
  result.settings[0].run.reads.choice_rows = {60};
  EXPECT_THAT(verdict_text(result), HasSubstr("(with what choosing reads: 10.0 % more read)"));
  result.settings[0].predicted.reset();
  EXPECT_THAT(line_with(detail_text(result, facts()), "by the rule"), HasSubstr("n/a"));
  // Nothing is chosen, nothing is said of it.
  EXPECT_THAT(verdict_text(result_of(0.5, 1)) + detail_text(result_of(0.5, 1), facts()),
              Not(HasSubstr("choos")));
}

TEST(VerifyTextTest, APairSaysBothSides) {
  VerifyResult result = sets_of(0.5, "mage,k=4");
  result.reference.setting = {
      read_policy("quest,k=4"), "quest,k=4,page=16", R"({"policy":"quest"})", {}};
  result.reference.fidelity = result.settings[0].fidelity;
  result.reference.fidelity.kl.mean = 0.125;
  result.reference.run.reads.rows_read = {40};
  const std::string verdict = verdict_text(result);
  EXPECT_THAT(verdict, HasSubstr("mage,k=4 against quest,k=4,page=16\n"));
  EXPECT_THAT(line_with(verdict, "Saved:"), HasSubstr("5.0 %) against 60.0 % of the external"));
  EXPECT_THAT(line_with(verdict, "Cost:"), HasSubstr("from exact, against 1.25e-01"));
  const std::string text = detail_text(result, facts());
  EXPECT_THAT(text, AllOf(HasSubstr("KL(exact || policy)"), HasSubstr("KL(exact || reference)")));
  EXPECT_THAT(line_with(text, "Free-running"), HasSubstr("reference"));
  const Figure figure = verify_figures(result, 4).front();
  EXPECT_THAT(figure.script,
              AllOf(HasSubstr("reference_point.tsv"), HasSubstr("quest,k=4,page=16")));
  EXPECT_THAT(figure.title, HasSubstr("mage,k=4"));
  EXPECT_EQ(verify_csv(result, facts()).find("reference,,,,,0"),
            verify_csv(result, facts()).find('\n') + 1);
}

struct Place {
  double x = 0.0, y = 0.0;
};

std::vector<Place> places(const std::string& svg, const std::string& pattern) {
  std::vector<Place> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator at(svg.begin(), svg.end(), regex), end; at != end; ++at) {
    found.push_back({std::stod((*at)[1]), std::stod((*at)[2])});
  }
  return found;
}

/// Points of one plot that are under its key: every label has one sample of its own.
std::ptrdiff_t hidden_points(const std::string& svg, double from, double to) {
  const auto inside = [&](const Place& place) { return place.x >= from && place.x < to; };
  std::vector<Place> labels;
  for (const Place& place : places(
           svg,
           "translate\\(([-0-9.]+),([-0-9.]+)\\)\"[^>]*>\\s*<text>\\s*<tspan[^>]*>(?:exact|τ)")) {
    if (inside(place)) labels.push_back(place);
  }
  EXPECT_EQ(labels.size(), 2U);
  std::ptrdiff_t near = 0;
  for (const Place& point :
       places(svg, "<path class='point'[^>]*translate\\(([-0-9.]+),([-0-9.]+)\\)")) {
    near += inside(point) && std::ranges::any_of(labels, [&](const Place& label) {
              return std::fabs(label.y - point.y) < 12.0;
            });
  }
  return near - std::ssize(labels);
}

TEST(VerifyFigureTest, EveryMethodHasALookOfItsOwn) {
  for (const auto& entry : policy_table()) EXPECT_TRUE(has_own_look(entry.name)) << entry.name;
  for (const auto& entry : cache_table()) EXPECT_TRUE(has_own_look(entry.name)) << entry.name;
  for (const auto& entry : strategy_table()) EXPECT_TRUE(has_own_look(entry.name)) << entry.name;
}

TEST(VerifyFigureTest, TheKeyOfTheContextFigureCoversNoPoint) {
  const char* path = std::getenv("PATH");
  const Gnuplot gnuplot({.program = "", .search_path = path == nullptr ? "/usr/bin" : path});
  // Some of these curves pass wherever a key could be inside the plot.
  for (const double slope : {-1.0, 0.0, 1.0}) {
    VerifyResult result = result_of(0.5, 1);
    for (int i = 1; i <= 20; ++i) {
      const double n = 100.0 * i;
      result.reference.run.context_times.push_back({n, n, {2.0, 2.0, 2.0}, 5});
      const double low = 1.0 + slope * 0.0475 * i;
      result.settings[0].run.context_times.push_back({n, n * 0.02, {low, low, low}, 5});
    }
    const std::vector<Figure> figures = verify_figures(result, 4);
    ASSERT_EQ(figures.size(), 2U);
    const std::string svg = gnuplot.render(figures[1]).svg;
    EXPECT_EQ(hidden_points(svg, 0.0, 450.0), 0) << slope;
    EXPECT_EQ(hidden_points(svg, 450.0, 900.0), 0) << slope;
  }
}

}  // namespace
}  // namespace blockscope
