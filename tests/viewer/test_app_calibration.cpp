// The Calibration panel as a person uses it; what it saves is what `blockscope calibrate` writes.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/cli/command.h"
#include "tests/viewer/app_fixture.h"
#include "viewer/panels/calibration_parts.h"

namespace blockscope::testing {
namespace {

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class CalibrationTest : public AppTest {
 protected:
  void SetUp() override {
    AppOptions options;
    options.traces = {small_trace()};
    options.panels = {"calibration"};
    start(options);
    ASSERT_TRUE(frames_until([&] { return edit() != nullptr && edit()->result() != nullptr; }));
  }
  CalibrationEdit* edit() {
    return active_calibration(model(), app().state().of<CalibrationState>());
  }
  bool reuses(std::size_t layer, std::size_t head) {
    return edit()->result()->reuse.heads[0][layer][head];
  }
  /// A gamma of three digits, so that its text is exact, that splits the heads.
  double splitting_gamma() {
    std::vector<double> all;
    for (const auto& row : edit()->sums()->similarity[0])
      all.insert(all.end(), row.begin(), row.end());
    std::ranges::sort(all);
    return std::round(500.0 * (all[all.size() / 2 - 1] + all[all.size() / 2])) / 1000.0;
  }
  void type_gamma(ImGuiTestContext* ctx, double gamma) {
    ctx->ItemInputValue("//Calibration/###gamma", std::to_string(gamma).c_str());
  }
};

TEST_F(CalibrationTest, GammaTakesEffectAtOnceAndIsUndone) {
  const double before = edit()->choice().gamma;
  const double gamma = splitting_gamma();
  drive([&](ImGuiTestContext* ctx) {
    type_gamma(ctx, gamma);
    IM_CHECK_EQ(edit()->choice().gamma, gamma);
    for (std::size_t layer = 0; layer < 3; ++layer) {
      for (std::size_t head = 0; head < 4; ++head) {
        IM_CHECK_EQ(reuses(layer, head), edit()->sums()->similarity[0][layer][head] > gamma);
      }
    }
    ctx->KeyPress(ImGuiMod_Ctrl | ImGuiKey_Z);
    IM_CHECK_EQ(edit()->choice().gamma, before);
    ctx->KeyPress(ImGuiMod_Ctrl | ImGuiKey_Y);
    IM_CHECK_EQ(edit()->choice().gamma, gamma);
    ctx->ItemClick("//Calibration/Undo");
    IM_CHECK_EQ(edit()->choice().gamma, before);
  });
}

TEST_F(CalibrationTest, AClickPinsAHeadAndAnotherFreesIt) {
  drive([this](ImGuiTestContext* ctx) {
    const bool before = reuses(2, 1);
    ctx->MouseMoveToPos(cell(ctx, "//Calibration/###calibration-grid", 1.0, 2.0));
    ctx->MouseClick();
    ctx->Yield();
    IM_CHECK(edit()->pin_of(2, 1).has_value());
    IM_CHECK_EQ(reuses(2, 1), !before);
    ctx->MouseClick();
    ctx->Yield();
    IM_CHECK(!edit()->pin_of(2, 1).has_value());
    IM_CHECK_EQ(reuses(2, 1), before);
  });
}

TEST_F(CalibrationTest, TheSavedFileIsWhatCalibrateWritesAndLoadsAgain) {
  const std::string saved = file("reuse.json");
  const std::string judge = file("judge.json");
  const double gamma = splitting_gamma();
  drive([&](ImGuiTestContext* ctx) {
    type_gamma(ctx, gamma);
    IM_CHECK(edit()->dirty());
    ctx->ItemInputValue("//Calibration/###calibration-path", saved.c_str());
    ctx->ItemClick("//Calibration/###calibration-save");
    ctx->Yield(2);
    IM_CHECK(!edit()->dirty());
  });
  ASSERT_TRUE(std::filesystem::exists(saved));
  const test::CommandResult done = test::run_blockscope(
      {"calibrate", small_trace(), "--gamma", std::to_string(gamma), "--tau", "2", "-o", judge});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(bytes_of(saved), bytes_of(judge));
  drive([&](ImGuiTestContext* ctx) {
    type_gamma(ctx, 0.123);
    ctx->ItemClick("//Calibration/###calibration-load");
    ctx->Yield(2);
    IM_CHECK_EQ(edit()->choice().gamma, 0.123);  // a question comes first: no file has it
    ctx->ItemClick("//Unsaved calibration/Cancel");
    ctx->Yield(2);
    IM_CHECK(!shown("Unsaved calibration"));
    IM_CHECK_EQ(edit()->choice().gamma, 0.123);
    ctx->ItemClick("//Calibration/###calibration-load");
    ctx->Yield(2);
    ctx->ItemClick("//Unsaved calibration/Discard");
    ctx->Yield(2);
    IM_CHECK_EQ(edit()->choice().gamma, gamma);
    IM_CHECK(!edit()->dirty());
  });
}

TEST_F(CalibrationTest, AnExistingFileIsReplacedOnlyWhenAskedTo) {
  const std::string path = file("mine.json");
  std::ofstream(path) << "precious";
  const auto save_and_answer = [&](ImGuiTestContext* ctx, const char* answer) {
    ctx->ItemInputValue("//Calibration/###calibration-path", path.c_str());
    ctx->ItemClick("//Calibration/###calibration-save");
    ctx->Yield(2);
    ctx->SetRef("//$FOCUSED");
    ctx->ItemClick(answer);
    ctx->Yield(2);
  };
  drive([&](ImGuiTestContext* ctx) { save_and_answer(ctx, "Keep it"); });
  EXPECT_EQ(bytes_of(path), "precious");
  drive([&](ImGuiTestContext* ctx) { save_and_answer(ctx, "Replace"); });
  EXPECT_NE(bytes_of(path), "precious");
  EXPECT_TRUE(model().problems().empty());
}

}  // namespace
}  // namespace blockscope::testing
