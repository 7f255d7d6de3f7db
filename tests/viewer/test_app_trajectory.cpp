// The Trajectory panel: marks for runs of end-of-text tokens, and what it scrolls to.
#include <cstdint>
#include <vector>

#include "tests/viewer/app_fixture.h"
#include "tests/viewer/end_of_text_trace.h"

namespace blockscope::testing {
namespace {

class TrajectoryPanel : public AppTest {};

TEST_F(TrajectoryPanel, AClickOnTheMarkOfARunPicksItsFirstTokenAndTheStep) {
  start({end_of_text_trace(file("ends.h5"), {1, 2, 9, 9, 9, 9, 9, 9, 3, 4, 5, 6})});
  // The third block has the most text.
  EXPECT_EQ(model().block()->block, 2);
  drive([this](ImGuiTestContext* ctx) {
    const ImGuiTestItemInfo grid = ctx->WindowInfo("Trajectory/grid");
    IM_CHECK(grid.Window != nullptr);
    const float line = ImGui::GetTextLineHeight() + 3.0F;
    const ImVec2 origin = grid.Window->ContentRegionRect.Min;
    const auto at = [&](float cells, float rows) {
      return ImVec2(origin.x + cells * 64.0F, origin.y + (rows + 1.5F) * line);
    };
    // Columns: two tokens, a run of 2, a run of 4, four tokens. A run is as wide as 2.4 of them.
    ctx->MouseMoveToPos(at(6.5F, 5.0F));
    ctx->MouseClick();
    ctx->Yield(2);
    IM_CHECK(shown("##Tooltip_00"));
    IM_CHECK_EQ(model().block()->block, 1);
    IM_CHECK_EQ(model().step()->step, 2);
    IM_CHECK_EQ(model().selection().token.value_or(-1), 0);
    ctx->MouseMoveToPos(at(2.2F, 1.0F));
    ctx->MouseClick();
    IM_CHECK_EQ(model().block()->block, 0);
    IM_CHECK_EQ(model().selection().token.value_or(-1), 2);
    ctx->MouseMoveToPos(at(1.5F, 3.0F));
    ctx->MouseClick();
    IM_CHECK_EQ(model().step()->step, 4);
    IM_CHECK_EQ(model().selection().token.value_or(-1), 1);
  });
}

TEST_F(TrajectoryPanel, TheGridFollowsTheSelectedBlockAndToken) {
  start({end_of_text_trace(file("long.h5"), std::vector<std::int64_t>(80, 1))});
  drive([this](ImGuiTestContext* ctx) {
    const auto scroll = [&] { return ctx->WindowInfo("Trajectory/grid").Window->Scroll.x; };
    ctx->MouseMoveToPos(ImVec2(2.0F, 2.0F));  // outside of the grid
    IM_CHECK_EQ(scroll(), 0.0F);
    Selection last = model().selection();
    last.block = 19;
    model().select(last);
    ctx->Yield(3);
    const float width = ctx->WindowInfo("Trajectory/grid").Window->Size.x;
    IM_CHECK_LE(scroll(), 76.0F * 64.0F);
    IM_CHECK_GE(scroll() + width, 80.0F * 64.0F);
    last.block = 3;
    last.token = 2;
    model().select(last);
    ctx->Yield(3);
    IM_CHECK_EQ(scroll(), 14.0F * 64.0F);
  });
}

}  // namespace
}  // namespace blockscope::testing
