// Calibration files with masks for ranges of steps: read back, or refused by their place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/decode_record/reuse_file_cases.h"

namespace blockscope {
namespace {

using namespace reuse_file_cases;
using ::testing::HasSubstr;

/// The calibrated file for two ranges of steps, with a bound of the drift.
ReuseFile by_step() {
  ReuseFile file = calibrated();
  file.reuse.ranges.first = {1, 5};
  file.gamma = {0.9, 0.8};
  file.reference = ReuseReference::kept;
  file.lse_bound = 0.05;
  file.similarity.push_back({{0.85, 0.7, kNotMeasured, 0.81}, {0.9, kNotMeasured, 0.2, 0.95}});
  file.lse_drift = {{{0.0, 0.0, 0.05, 0.06}, {0.0, kNotMeasured, 0.01, 0.01}},
                    {{0.04, 0.0, kNotMeasured, 0.05}, {0.2, kNotMeasured, 0.0, 0.01}}};
  for (auto* matrices : {&file.standard_deviation, &file.standard_error, &file.p5}) {
    matrices->push_back(matrices->front());
  }
  file.count.push_back(file.count.front());
  file.row_errors = {{0.01, 0.02, kNotMeasured}, {0.0, 0.3, 1.5}};
  file.reuse.heads = reuse_masks(file, file.gamma).heads;
  return file;
}

TEST(ReuseRangesTest, ReadsMasksOfRangesOfStepsBack) {
  const ReuseFile file = by_step();
  const ReuseFile back = parse_reuse_file(to_json(file), "r.json", kModel);
  EXPECT_EQ(to_json(back), to_json(file));
  // Similar enough, and a drift of at most 0.05.
  EXPECT_EQ(back.reuse.at(4),
            (HeadMatrix<bool>{{false, false, true, false}, {false, false, true, true}}));
  EXPECT_EQ(back.reuse.at(5),
            (HeadMatrix<bool>{{true, false, false, true}, {false, false, false, true}}));
  EXPECT_EQ(back.reuse.at(1000), back.reuse.at(5));
  EXPECT_EQ(back.reference, ReuseReference::kept);
  EXPECT_EQ(back.gamma, (std::vector<double>{0.9, 0.8}));
  Json one = Json::parse(to_json(file));
  one["gamma"] = 0.9;  // of both ranges
  EXPECT_THAT(refusal(one.dump()), HasSubstr("r.json: reuse[1][0][0]: expected false"));
  Json old = Json::parse(to_json(calibrated()));
  old.erase("reference");
  EXPECT_EQ(parse_reuse_file(old.dump(), "r.json").reference, ReuseReference::adjacent);
}

TEST(ReuseRangesTest, RefusesRangesThatDoNotCoverTheStepsOfABlockOnce) {
  const auto set = [](const char* pointer, const Json& value) {
    return [=](Json& json) { json[Json::json_pointer(pointer)] = value; };
  };
  const Json good = Json::parse(to_json(by_step()));
  expect_refusals(
      good, {{"step_ranges", set("/step_ranges", Json::array())},
             {"step_ranges[0][0]", set("/step_ranges/0/0", 2)},
             {"step_ranges[1][0]", set("/step_ranges/1/0", 4)},
             {"step_ranges[1][0]", set("/step_ranges/1/0", 6)},
             {"step_ranges[1][1]", set("/step_ranges/1/1", 8)},
             {"step_ranges[0][1]", set("/step_ranges/0/1", 0)},
             {"step_ranges[0][1]", set("/step_ranges/0/1", nullptr)},
             {"reuse", set("/step_ranges", {{1, 4}, {5, 6}, {7, nullptr}})},
             {"reuse", [](Json& j) { j["reuse"].erase(1); }},
             {"similarity", [](Json& j) { j["similarity"].erase(1); }},
             {"lse_drift", [](Json& j) { j["lse_drift"].erase(1); }},
             {"gamma", set("/gamma", {0.9})},
             {"gamma[1]", set("/gamma/1", 1.5)},
             {"lse_bound", set("/lse_bound", -0.1)},
             {"lse_drift[0][0][0]", set("/lse_drift/0/0/0", -0.1)},
             {"lse_drift", [](Json& j) { j.erase("lse_drift"); }},
             {"reference", set("/reference", "first")},
             {"row_errors", [](Json& j) { j["row_errors"].erase(1); }},
             {"row_errors[0].known", [](Json& j) { j["row_errors"][0].erase("known"); }},
             {"row_errors[1].masks", set("/row_errors/1/masks", -1)},
             // The mask must be what the gamma, the similarity and the drift of its range say.
             {"reuse[0][0][3]", set("/reuse/0/0/3", true)},
             {"reuse[0][0][2]", set("/lse_bound", 0.04)},
             {"reuse[1][0][0]", set("/lse_drift/1/0/0", 0.051)},
             {"reuse[1][0][1]", set("/gamma/1", 0.6)},
             {"step_ranges", set("/format_version", 1)}});
  EXPECT_THAT(refusal([&] {
                Json json = good;
                json["step_ranges"][1][0] = 4;
                return json.dump();
              }()),
              HasSubstr("expected 5, because step 4 is in the range before"));
  EXPECT_THAT(refusal([&] {
                Json json = good;
                json["step_ranges"][1][0] = 6;
                return json.dump();
              }()),
              HasSubstr("expected 5, because that step is in no range"));
}

TEST(ReuseRangesTest, APinHoldsInEveryRange) {
  ReuseFile file = by_step();
  file.pins = {{0, 0, false}, {0, 1, true}};
  file.reuse.heads = reuse_masks(file, file.gamma).heads;
  EXPECT_EQ(refusal(to_json(file)), "accepted");
  EXPECT_TRUE(file.reuse.at(1)[0][1] && file.reuse.at(9)[0][1]);
  EXPECT_FALSE(file.reuse.at(1)[0][0] || file.reuse.at(9)[0][0]);
  Json json = Json::parse(to_json(file));
  json["reuse"][1][0][1] = false;
  EXPECT_THAT(refusal(json.dump()),
              HasSubstr("pins[1].reuse: expected false, because reuse[1][0][1] is"));
}

}  // namespace
}  // namespace blockscope
