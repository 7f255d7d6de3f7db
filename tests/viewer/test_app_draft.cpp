// The Draft panel as a person uses it: colours and views chosen, rounds clicked, thousands of
// rounds scrolled through.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/viewer/app_fixture.h"
#include "tests/viewer/draft_trace.h"
#include "viewer/panels/draft_parts.h"

namespace blockscope::testing {
namespace {

using ::testing::HasSubstr;

class DraftPanel : public AppTest {
 protected:
  App& start_panel(const std::string& trace, const std::string& select = "",
                   const std::string& show = "") {
    AppOptions options;
    options.traces = {trace};
    options.panels = {"draft"};
    options.select = select;
    options.show = show;
    return start(options);
  }
  DraftState& state() { return app().state().of<DraftState>(); }
};

TEST_F(DraftPanel, IsThereForDraftedTracesAlone) {
  start({draft_trace(file("drafted.h5"))});
  EXPECT_TRUE(ImGui::FindWindowByName("Draft") != nullptr);
  drive([this](ImGuiTestContext* ctx) {
    ctx->Yield(5);
    IM_CHECK(ImGui::FindWindowByName("Draft")->DockTabIsVisible);  // in front of the other tabs
    IM_CHECK(!ImGui::FindWindowByName("Heatmap")->DockTabIsVisible);
    model().open(small_trace());
    ctx->Yield(2);
  });
  EXPECT_TRUE(settle());
  drive([this](ImGuiTestContext* ctx) {
    Selection other;
    other.trace = 1;
    model().select(other);
    ctx->Yield(3);
    IM_CHECK(!shown("Draft"));
    other.trace = 0;
    model().select(other);
    ctx->Yield(3);
    IM_CHECK(shown("Draft"));
  });
}

TEST_F(DraftPanel, AskedForByNameItSaysWhatATraceLacks) {
  start_panel(small_trace());
  drive([](ImGuiTestContext* ctx) {
    IM_CHECK(shown("Draft"));
    ctx->SetRef("Draft");
    IM_CHECK(!ctx->ItemExists("head/##view"));  // a sentence alone
  });
  EXPECT_FALSE(app().table("draft").has_value());
}

TEST_F(DraftPanel, AClickSelectsTheRoundEverywhere) {
  start_panel(draft_trace(file("drafted.h5")), "sequence=0");
  EXPECT_EQ(model().step()->row, 1);
  drive([this](ImGuiTestContext* ctx) {
    ctx->SetRef("Draft");
    const ImRect cells = ctx->ItemInfo("**/cells").RectFull;
    const float pitch = (cells.GetHeight() - ImGui::GetTextLineHeight() - 4.0F) / 3.0F;
    const auto third = [&](float x) {
      return ImVec2(x, cells.Max.y - 0.75F * pitch);  // its drafted tokens
    };
    IM_CHECK(!shown("##Tooltip_00"));
    ctx->MouseMoveToPos(third(cells.Min.x + 20.0F));  // the margin
    ctx->MouseClick();
    ctx->Yield(2);
    IM_CHECK_EQ(model().step()->row, 5);
    IM_CHECK_EQ(model().block()->block, 2);
    const float left = cells.Min.x + ImGui::CalcTextSize("00000 00/00").x + 16.0F;
    const float wide = (cells.Max.x - left) / 5.0F;
    ctx->MouseMoveToPos(third(left + 2.5F * wide));
    ctx->Yield(2);
    IM_CHECK(shown("##Tooltip_00"));
    IM_CHECK_EQ(model().selection().token.value_or(-1), 2);
    ctx->KeyPress(ImGuiKey_LeftArrow);
    IM_CHECK_EQ(model().step()->row, 3);
  });
}

TEST_F(DraftPanel, ColoursAndViewsAreChosen) {
  start_panel(draft_trace(file("drafted.h5")), "sequence=1");
  EXPECT_THAT(app().table("draft")->text(), HasSubstr("\n0,1,1,rejected,31, word31,34, word34,,,"));
  drive([this](ImGuiTestContext* ctx) {
    ctx->SetRef("Draft");
    ctx->SetRef("Draft/head");
    ctx->ComboClick("##colour/rank of the target's token under the draft");
    ctx->Yield(2);
    IM_CHECK(state().colour == DraftColour::target_rank_under_draft);
    IM_CHECK_EQ(state().values.missing, 4U);
    Selection first = model().selection();
    first.block = 0;
    model().select(first);
    ctx->Yield(4);
    IM_CHECK_EQ(state().values.lacking, 1U);
    IM_CHECK_EQ(state().values.recorded, 8U);
    IM_CHECK_EQ(state().values.missing, 0U);
    ctx->SetRef("Draft/head");
    ctx->ComboClick("##view/answer");
    ctx->Yield(2);
    IM_CHECK(state().answer);
    IM_CHECK(!ctx->ItemExists("##colour"));
    IM_CHECK_EQ(state().lines.count(), 2U);  // it contains a line break
  });
  EXPECT_EQ(app().table("draft")->rows(), 8U);
  EXPECT_TRUE(model().problems().empty());
}

TEST_F(DraftPanel, AClickInTheAnswerSelectsTheRoundThatToldIt) {
  start_panel(draft_trace(file("drafted.h5")), "", "draft=answer");
  drive([this](ImGuiTestContext* ctx) {
    ctx->SetRef("Draft");
    const ImVec2 origin = ctx->ItemInfo("**/tokens").RectFull.Min;
    const float gutter = ImGui::CalcTextSize("000000").x;
    const auto click = [&](std::size_t token) {
      ctx->MouseMoveToPos({origin.x + gutter + state().lines.left[token] + 5.0F, origin.y + 6.0F});
      ctx->MouseClick();
      ctx->Yield(2);
    };
    click(4);
    IM_CHECK_EQ(model().step()->row, 3);
    IM_CHECK(shown("##Tooltip_00"));
    click(0);  // the prefill's: no round
    IM_CHECK_EQ(model().step()->row, 3);
    click(2);
    IM_CHECK_EQ(model().step()->row, 1);
  });
}

TEST_F(DraftPanel, DrawsOfThousandsOfRoundsWhatCanBeSeen) {
  start_panel(long_draft_trace(file("long.h5"), 4000, 8), "block=3000");
  EXPECT_LE(state().drawn.first, 3000U);
  EXPECT_GT(state().drawn.last, 3000U);
  EXPECT_LT(state().drawn.last - state().drawn.first, 40U);
  drive([this](ImGuiTestContext* ctx) {
    ctx->SetRef("Draft");
    model().select_row(1);
    ctx->Yield(3);
    IM_CHECK_EQ(state().drawn.first, 0U);
    ctx->ScrollToBottom(ctx->WindowInfo("rounds").ID);
    ctx->Yield(3);
    IM_CHECK_EQ(state().drawn.last, 4000U);  // and stays there: nothing else was selected
    ctx->SetRef("Draft/head");
    ctx->ComboClick("##view/answer");
    ctx->Yield(2);
    ctx->Yield(2);
    IM_CHECK_EQ(state().drawn.first, 0U);
    IM_CHECK_LT(state().drawn.last, 80U);
    IM_CHECK_GT(state().lines.count(), 300U);
    model().select_row(2 * 3999 + 1);
    ctx->Yield(3);
    IM_CHECK_EQ(state().drawn.last, state().lines.count());
  });
}

TEST_F(DraftPanel, AnAcceptanceThatCannotBeIsAProblem) {
  DraftTrace trace(file("bad.h5"));
  trace.sequence(9, 5);
  trace.add({{16, 17, 18, 19}, {16, 17, 18, 19}, 4, 20});
  trace.end();
  start_panel(trace.finish());
  ASSERT_FALSE(model().problems().empty());
  EXPECT_THAT(model().problems().front(), HasSubstr("bad.h5:/draft/accepted: row 1"));
}

}  // namespace
}  // namespace blockscope::testing
