// What a person does with the viewer: opens, scrubs, picks, changes how things are shown.
#include <GLFW/glfw3.h>
#include <gmock/gmock.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <set>

#include "decode_record/read/trace_reader.h"
#include "tests/viewer/app_fixture.h"
#include "viewer/panels/curves_state.h"
#include "viewer/panels/heads_state.h"
#include "viewer/panels/heatmap_state.h"
#include "viewer/screen/rasterizer.h"

namespace blockscope::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kMenu = "##MainMenuBar";

void drop(const std::string& path) {
  GLFWwindow* window = glfwGetCurrentContext();
  const GLFWdropfun dropped = glfwSetDropCallback(window, nullptr);
  glfwSetDropCallback(window, dropped);
  std::array<const char*, 1> paths = {path.c_str()};
  dropped(window, 1, paths.data());
}

TEST_F(AppTest, ATraceNamedAtTheStartIsShown) {
  start();
  ASSERT_NE(model().overview(), nullptr);
  EXPECT_EQ(model().overview()->info.path, small_trace());
  EXPECT_TRUE(model().problems().empty());
  drive([](ImGuiTestContext*) {
    for (const char* panel : {"Trajectory", "Heads", "Heatmap", "Curves", "Run"}) {
      IM_CHECK(shown(panel));
    }
  });
}

TEST_F(AppTest, ADroppedTraceIsOpened) {
  start(std::vector<std::string>{});
  EXPECT_EQ(model().overview(), nullptr);
  drop(small_trace());
  ASSERT_TRUE(frames_until([&] { return model().overview() != nullptr; }));
  EXPECT_EQ(model().overview()->info.path, small_trace());
}

TEST_F(AppTest, AFileThatIsNoTraceIsToldInAPopupThatOKCloses) {
  start();
  const std::string path = file("broken.h5");
  std::ofstream(path) << "no trace at all";
  drop(path);
  ASSERT_TRUE(frames_until([&] { return !model().problems().empty(); }));
  EXPECT_THAT(model().problems().front(), HasSubstr("broken.h5"));
  drive([&](ImGuiTestContext* ctx) {
    IM_CHECK(shown("Problem"));
    ctx->ItemClick("//Problem/OK");
    ctx->Yield(2);
    IM_CHECK(!shown("Problem"));
  });
  EXPECT_TRUE(model().problems().empty());
  EXPECT_NE(model().overview(), nullptr) << "the trace that was open stays open";
}

// The judge of pictures without a display: OpenGL (here Mesa's) draws the same lists.
TEST_F(AppTest, APictureWithoutAGraphicsDriverIsWhatOpenGLDraws) {
  start();
  Image by_driver;
  app().frame(0.0, &by_driver);
  const Image own = rasterized(*ImGui::GetDrawData());
  ASSERT_EQ(own.width, by_driver.width);
  ASSERT_EQ(own.height, by_driver.height);
  int most = 0;
  std::set<std::uint32_t> colours;
  for (std::size_t i = 0; i < own.rgba.size(); ++i) {
    colours.insert(own.rgba[i]);
    for (unsigned shift = 0; shift < 32; shift += 8) {
      const auto a = static_cast<int>((own.rgba[i] >> shift) & 0xFFU);
      const auto b = static_cast<int>((by_driver.rgba[i] >> shift) & 0xFFU);
      most = std::max(most, std::abs(a - b));
    }
  }
  EXPECT_LE(most, 8) << "of 255";
  EXPECT_GT(colours.size(), 100U);
}

TEST_F(AppTest, KeysMoveThroughStepsLayersHeadsAndBlocks) {
  start();
  model().move_step(-1'000'000);
  drive([this](ImGuiTestContext* ctx) {
    ctx->KeyPress(ImGuiKey_RightArrow, 2);
    IM_CHECK_EQ(model().step()->step, 3);
    ctx->KeyPress(ImGuiKey_LeftArrow);
    IM_CHECK_EQ(model().step()->step, 2);
    ctx->KeyPress(ImGuiKey_DownArrow, 2);
    ctx->KeyPress(ImGuiKey_UpArrow);
    IM_CHECK_EQ(model().selection().layer, 1U);
    ctx->KeyPress(ImGuiKey_RightBracket, 3);
    ctx->KeyPress(ImGuiKey_LeftBracket);
    IM_CHECK_EQ(model().selection().head, 2U);
    ctx->KeyPress(ImGuiKey_PageDown);
    IM_CHECK_EQ(model().block()->block, 1);
    IM_CHECK_EQ(model().step()->step, 1);
    ctx->KeyPress(ImGuiKey_LeftArrow);  // back over the border
    IM_CHECK_EQ(model().block()->block, 0);
    IM_CHECK_EQ(model().step()->step, 4);
    ctx->KeyPress(ImGuiKey_UpArrow, 9);  // ends stay ends
    IM_CHECK_EQ(model().selection().layer, 0U);
  });
}

TEST_F(AppTest, DraggingTheSliderScrubs) {
  start();
  drive([this](ImGuiTestContext* ctx) {
    ctx->SetRef("Trajectory");
    const ImRect slider = ctx->ItemInfo("##step").RectFull;
    ctx->MouseMoveToPos({slider.Min.x + 8.0F, slider.GetCenter().y});
    ctx->MouseDown();
    ctx->Yield();
    IM_CHECK_EQ(model().step()->step, 1);
    ctx->MouseMoveToPos({slider.Max.x - 3.0F, slider.GetCenter().y});
    ctx->Yield();
    ctx->MouseUp();
    // 8 denoising steps in the sequence's two blocks of four.
    IM_CHECK_EQ(model().block()->block, 1);
    IM_CHECK_EQ(model().step()->step, 4);
  });
}

TEST_F(AppTest, PlayingGoesForwardAndStopsAtTheEnd) {
  start();
  app().state().playback.steps_per_second = 1000.0F;
  drive([this](ImGuiTestContext* ctx) {
    ctx->ItemClick("//Trajectory/Play");
    for (int i = 0; i < 200 && app().state().playback.playing; ++i) ctx->Yield();
    IM_CHECK(!app().state().playback.playing);
    IM_CHECK_EQ(model().block()->block, 1);
    IM_CHECK_EQ(model().step()->step, 4);
  });
}

TEST_F(AppTest, AClickInHeadsPicksTheHead) {
  start();
  drive([this](ImGuiTestContext* ctx) {
    ctx->WindowFocus("Heads");
    ctx->MouseMoveToPos(cell(ctx, "//Heads/###heads", 3.0, 2.0));
    ctx->MouseClick();
    IM_CHECK_EQ(model().selection().head, 3U);
    IM_CHECK_EQ(model().selection().layer, 2U);
  });
}

TEST_F(AppTest, AClickInTheTrajectoryPicksTheStepAndTheToken) {
  start();
  drive([this](ImGuiTestContext* ctx) {
    const ImGuiTestItemInfo grid = ctx->WindowInfo("Trajectory/grid");
    IM_CHECK(grid.Window != nullptr);
    const float line = ImGui::GetTextLineHeight() + 3.0F;
    const ImVec2 origin = grid.Window->ContentRegionRect.Min;
    ctx->MouseMoveToPos({origin.x + 2.5F * 64.0F, origin.y + 3.5F * line});
    ctx->MouseClick();
    IM_CHECK_EQ(model().step()->step, 3);
    IM_CHECK_EQ(model().selection().token.value_or(-1), 2);
  });
}

TEST_F(AppTest, HeadsAndCurvesChangeTheMetricAndTheScope) {
  start();
  drive([this](ImGuiTestContext* ctx) {
    ctx->SetRef("Heads");
    ctx->ComboClick("##metric/external mass");
    IM_CHECK_EQ(app().state().of<HeadsState>().metric, panel_metric("external_mass"));
    ctx->ComboClick("##scope/this block");
    IM_CHECK(app().state().of<HeadsState>().scope == ViewModel::Scope::block);
    ctx->SetRef("Curves");
    ctx->ComboClick("##metric/union size");
    IM_CHECK_EQ(app().state().of<CurvesState>().metric, panel_metric("union_size"));
    ctx->ItemClick("###keep");
    IM_CHECK_EQ(app().state().of<CurvesState>().kept.size(), 1U);
    ctx->ItemClick("###keep");
    IM_CHECK(app().state().of<CurvesState>().kept.empty());
    ctx->ComboClick("##mode/A_in, A_out per head");
    IM_CHECK(app().state().of<CurvesState>().mode == CurvesState::Mode::per_head);
    ctx->ComboClick("##mode/recall for several k");
    ctx->ItemUncheck("###together");
    IM_CHECK(!app().state().of<CurvesState>().together);
  });
  ASSERT_TRUE(settle());
  // The picture really is of the metric: the share of mass outside is in (0, 1).
  ASSERT_NE(app().state().of<HeadsState>().grid, nullptr);
  EXPECT_GT(app().state().of<HeadsState>().grid->low, 0.0F);
  EXPECT_LT(app().state().of<HeadsState>().grid->high, 1.0F);
  EXPECT_EQ(app().state().of<HeadsState>().grid_metric, panel_metric("external_mass"));
  EXPECT_TRUE(app().state().of<CurvesState>().recall_head.has_value());
  EXPECT_FALSE(app().state().of<CurvesState>().recall.empty());
}

TEST_F(AppTest, TheHeatmapHasThreeModesAndALockedRange) {
  start();
  drive([this](ImGuiTestContext* ctx) {
    ctx->WindowFocus("Heatmap");
    ctx->SetRef("Heatmap");
    int mode = 0;
    for (const char* name : {"step x step", "top-k positions", "token x token"}) {
      ctx->ComboClick((std::string("##mode/") + name).c_str());
      mode = (mode + 1) % 3;
      IM_CHECK_EQ(app().state().of<HeatmapState>().mode, mode);
      ctx->Yield(3);
    }
    ctx->ItemUncheck("all heads");
    IM_CHECK(!app().state().of<HeatmapState>().all_heads);
    ctx->ItemCheck("lock range");
    IM_CHECK(app().appearance().lock_range);
  });
  EXPECT_TRUE(settle());
}

TEST_F(AppTest, ColoursAndDarknessFromKeysAndMenu) {
  start();
  drive([this](ImGuiTestContext* ctx) {
    ctx->SetRef(kMenu);
    ctx->MenuClick("Colours/coolwarm_r");
    IM_CHECK_STR_EQ(app().appearance().map.c_str(), "coolwarm_r");
    ctx->KeyPress(ImGuiKey_C);
    IM_CHECK_STR_EQ(app().appearance().map.c_str(), "viridis");
    ctx->KeyPress(ImGuiKey_C);
    IM_CHECK_STR_EQ(app().appearance().map.c_str(), "magma");
    const ImVec4 dark = ImGui::GetStyle().Colors[ImGuiCol_WindowBg];
    ctx->KeyPress(ImGuiKey_D);
    ctx->Yield();
    IM_CHECK(!app().appearance().dark);
    IM_CHECK_GT(ImGui::GetStyle().Colors[ImGuiCol_WindowBg].x, dark.x);
    ctx->MenuClick("View/Dark");
    IM_CHECK(app().appearance().dark);
  });
}

TEST_F(AppTest, HelpOpensAndClosesWithF1) {
  start();
  drive([](ImGuiTestContext* ctx) {
    ctx->KeyPress(ImGuiKey_F1);
    ctx->Yield(2);
    IM_CHECK(shown("Keys"));
    ctx->KeyPress(ImGuiKey_F1);
    ctx->Yield(2);
    IM_CHECK(!shown("Keys"));
  });
}

TEST_F(AppTest, PanelsAreHiddenAndShownFromTheMenu) {
  start();
  drive([this](ImGuiTestContext* ctx) {
    ctx->SetRef(kMenu);
    ctx->MenuUncheck("View/Curves");
    ctx->Yield(2);
    IM_CHECK(!shown("Curves"));
    ctx->MenuCheck("View/Curves");
    ctx->Yield(2);
    IM_CHECK(shown("Curves"));
    ctx->MenuClick("View/Default layout");
    ctx->Yield(3);
    IM_CHECK(model().overview() != nullptr);
  });
}

TEST_F(AppTest, ClosingTheTraceLeavesEmptyPanelsAndItOpensAgain) {
  start();
  drive([this](ImGuiTestContext* ctx) {
    ctx->KeyPress(ImGuiMod_Ctrl | ImGuiKey_W);
    ctx->Yield(3);
    IM_CHECK(model().overview() == nullptr);
    ctx->KeyPress(ImGuiKey_RightArrow);  // nothing to move; nothing breaks
    ctx->KeyPress(ImGuiKey_PageDown);
  });
  drop(small_trace());
  EXPECT_TRUE(frames_until([&] { return model().overview() != nullptr; }));
}

TEST_F(AppTest, CtrlQEndsTheProgram) {
  start();
  drive([](ImGuiTestContext* ctx) { ctx->KeyPress(ImGuiMod_Ctrl | ImGuiKey_Q); });
  EXPECT_TRUE(app().screen().should_close());
}

}  // namespace
}  // namespace blockscope::testing
