// A calibration that no file has is not lost without a question: closing the window, quitting, and
// closing the last trace of its model.
#include <filesystem>
#include <fstream>

#include "tests/viewer/app_fixture.h"
#include "viewer/panels/calibration_parts.h"

namespace blockscope::testing {
namespace {

constexpr const char* kPopup = "Unsaved calibration";

class UnsavedTest : public AppTest {
 protected:
  void begin(std::vector<std::string> traces = {small_trace()}) {
    AppOptions options;
    options.traces = std::move(traces);
    options.panels = {"calibration"};
    start(options);
    ASSERT_TRUE(frames_until([&] { return edit() != nullptr && edit()->result() != nullptr; }));
  }
  void change() {
    CalibrationChoice choice = edit()->choice();
    choice.gamma = 0.5;
    edit()->change(choice);
    ASSERT_TRUE(edit()->dirty());
  }
  CalibrationEdit* edit() {
    return active_calibration(model(), app().state().of<CalibrationState>());
  }
  bool closing() { return app().screen().should_close(); }
  void quit(ImGuiTestContext* ctx) {
    ctx->KeyPress(ImGuiMod_Ctrl | ImGuiKey_Q);
    ctx->Yield(3);
  }
};

TEST_F(UnsavedTest, WithoutAChangeTheWindowClosesAtOnce) {
  begin();
  drive([this](ImGuiTestContext* ctx) { quit(ctx); });
  EXPECT_FALSE(shown(kPopup));
  EXPECT_TRUE(closing());
}

TEST_F(UnsavedTest, CancelKeepsTheWindowAndDiscardClosesIt) {
  begin();
  change();
  app().screen().close();  // as the window system does
  drive([this](ImGuiTestContext* ctx) {
    ctx->Yield(3);
    IM_CHECK(shown(kPopup));
    IM_CHECK(!closing());
    ctx->ItemClick("//Unsaved calibration/Cancel");
    ctx->Yield(2);
    IM_CHECK(!shown(kPopup));
    IM_CHECK(!closing());
    IM_CHECK_EQ(edit()->choice().gamma, 0.5);
    quit(ctx);
    IM_CHECK(shown(kPopup));
    ctx->KeyPress(ImGuiKey_Escape);
    ctx->Yield(2);
    IM_CHECK(!shown(kPopup));
    ctx->MenuClick("##MainMenuBar/Trace/Quit");
    ctx->Yield(3);
    IM_CHECK(shown(kPopup));
    ctx->ItemClick("//Unsaved calibration/Discard");
    ctx->Yield(3);
    IM_CHECK(!shown(kPopup));
  });
  EXPECT_TRUE(closing());
}

TEST_F(UnsavedTest, SaveWritesTheFileAndCloses) {
  begin();
  change();
  const std::string path = file("kept.json");
  std::ofstream(path) << "precious";
  drive([&](ImGuiTestContext* ctx) {
    quit(ctx);
    ctx->ItemInput("//Unsaved calibration/##unsaved-path");
    ctx->KeyCharsReplace(path.c_str());
    ctx->ItemClick("//Unsaved calibration/Save");
    ctx->Yield(3);
    IM_CHECK(shown(kPopup));  // the file is there, and stays
    IM_CHECK(!closing());
    IM_CHECK_EQ(std::filesystem::file_size(path), 8U);
    ctx->ItemClick("//Unsaved calibration/Replace an existing file");
    ctx->ItemClick("//Unsaved calibration/Save");
    ctx->Yield(3);
  });
  EXPECT_TRUE(closing());
  EXPECT_FALSE(edit()->dirty());
  const ReuseFile saved = read_reuse_file(path);
  EXPECT_EQ(saved.gamma, std::vector<double>{0.5});
}

TEST_F(UnsavedTest, ClosingTheLastTraceOfItsModelAsks) {
  const std::string copy = file("copy.h5");
  std::filesystem::copy_file(small_trace(), copy);
  begin();
  change();
  model().open(copy);
  ASSERT_TRUE(frames_until([&] { return model().documents().back().state == OpenState::open; }));
  drive([this](ImGuiTestContext* ctx) {
    ctx->KeyPress(ImGuiMod_Ctrl | ImGuiKey_W);  // the other trace keeps the edit in reach
    ctx->Yield(3);
    IM_CHECK(!shown(kPopup));
    IM_CHECK_EQ(edit()->choice().gamma, 0.5);
    ctx->KeyPress(ImGuiMod_Ctrl | ImGuiKey_W);
    ctx->Yield(3);
    IM_CHECK(shown(kPopup));
    IM_CHECK(model().overview() != nullptr);
    ctx->ItemClick("//Unsaved calibration/Cancel");
    ctx->Yield(3);
    IM_CHECK(model().overview() != nullptr);
    ctx->MenuClick("##MainMenuBar/Trace/Close");
    ctx->Yield(3);
    ctx->ItemClick("//Unsaved calibration/Discard");
    ctx->Yield(3);
    IM_CHECK(model().overview() == nullptr);
    quit(ctx);
    IM_CHECK(!shown(kPopup));  // discarded once
  });
  EXPECT_TRUE(closing());
}

}  // namespace
}  // namespace blockscope::testing
