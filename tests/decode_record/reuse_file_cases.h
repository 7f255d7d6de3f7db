// Calibration files for tests, and how they are refused.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/base/error.h"
#include "decode_record/interchange/reuse_file.h"

namespace blockscope::reuse_file_cases {

using Json = nlohmann::json;
using Changes = std::vector<std::pair<std::string, std::function<void(Json&)>>>;

inline const std::string kDigest(64, 'a');
inline const std::string kOther(64, 'b');
inline const ReuseModel kModel{2, 4, 2, kDigest};

inline Json by_hand() {
  return {{"format", "blockscope-reuse"},
          {"format_version", 1},
          {"model", {{"layers", 2}, {"heads", 4}, {"digest", kDigest}}},
          {"reuse", {{true, false, true, true}, {false, false, true, false}}}};
}

inline ReusePoint point(double gamma, double l2) {
  return {gamma, 4, 0.25, 0.5, 2.0 * l2, 0.002, 33, l2 / 3.0, l2, 0.001, 77};
}

/// What calibrate writes, one head not recorded.
inline ReuseFile calibrated() {
  ReuseFile file;
  file.model = kModel;
  file.gamma = {0.9};
  file.tau = 2;
  file.statistic = "mean cosine of adjacent steps";
  file.computed_from = "/attention/external";
  file.traces = {{"run.h5", kDigest, kOther, 12, 3, 4}, {"old.h5", "", kOther, 1, 1, 1}};
  file.similarity = {{{0.1 + 0.2, 0.9, 0.95, 1.0}, {-1.0, kNotMeasured, 0.99, 0.91}}};
  file.standard_deviation = {{{0.1, 0.2, kNotMeasured, 0.0}, {0.1, kNotMeasured, 0.1, 0.1}}};
  file.standard_error = file.standard_deviation;
  file.p5 = {{{0.1, 0.5, 0.8, 1.0}, {-1.0, kNotMeasured, 0.9, 0.8}}};
  file.count = {{{5, 5, 1, 5}, {5, 0, 5, 5}}};
  file.reuse = reuse_masks(file, file.gamma);
  file.predicted = {point(0.9, 1.0 / 3.0), 12, 6, 1'000'000'000'000, 750'000'000'000};
  file.curves = {{1, {point(-1.0, kNotMeasured)}}, {2, {point(-0.5, 0.1), point(0.9, 0.2)}}};
  return file;
}

inline std::string refusal(const std::string& text, const std::optional<ReuseModel>& wanted = {}) {
  try {
    parse_reuse_file(text, "r.json", wanted);
  } catch (const CalibrationError& error) {
    return error.what();
  }
  return "accepted";
}

inline void expect_refusals(const Json& good, const Changes& cases,
                            const std::optional<ReuseModel>& wanted = {}) {
  ASSERT_EQ(refusal(good.dump(), wanted), "accepted");
  for (const auto& [place, change] : cases) {
    SCOPED_TRACE(place);
    Json json = good;
    change(json);
    EXPECT_THAT(refusal(json.dump(), wanted),
                ::testing::HasSubstr("r.json: " + place + ": expected"));
  }
}

}  // namespace blockscope::reuse_file_cases
