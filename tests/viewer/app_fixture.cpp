#include "tests/viewer/app_fixture.h"

#include <implot.h>
#include <implot_internal.h>

#include <chrono>
#include <cstdlib>

#include "tests/analysis/trace_maker.h"
#include "viewer/screen/window.h"

namespace blockscope::testing {

AppTest::AppTest() {
  std::string name = (std::filesystem::temp_directory_path() / "blockscope.XXXXXX").string();
  folder_ = ::mkdtemp(name.data());
}

AppTest::~AppTest() {
  if (engine_ != nullptr) ImGuiTestEngine_Stop(engine_);
  app_.reset();  // its ImGui context goes before the engine, as the engine demands
  if (engine_ != nullptr) ImGuiTestEngine_DestroyContext(engine_);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string AppTest::small_trace() {
  // Made once; the process's own folder goes at its end.
  struct Folder {
    std::string path = (std::filesystem::temp_directory_path() / "blockscope.XXXXXX").string();
    Folder() {
      ::mkdtemp(path.data());
      TraceMakerOptions options;
      options.digest = std::string(64, 'a');  // calibration files name their checkpoint
      make_trace(path + "/small.h5", options);
    }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  };
  static const Folder folder;
  return folder.path + "/small.h5";
}

App& AppTest::start(std::vector<std::string> traces) {
  AppOptions options;
  options.traces = std::move(traces);
  return start(std::move(options));
}

App& AppTest::start(AppOptions options) {
  app_ =
      std::make_unique<App>(options, std::make_unique<Window>(ScreenOptions{.scale = 1.0F}, false));
  engine_ = ImGuiTestEngine_CreateContext();
  ImGuiTestEngineIO& io = ImGuiTestEngine_GetIO(engine_);
  io.ConfigSavedSettings = false;
  io.ConfigVerboseLevelOnError = ImGuiTestVerboseLevel_Debug;
  ImGuiTestEngine_Start(engine_, ImGui::GetCurrentContext());
  EXPECT_TRUE(settle());
  return *app_;
}

void AppTest::drive(const std::function<void(ImGuiTestContext*)>& user) {
  ImGuiTest* test = ImGuiTestEngine_RegisterTest(engine_, "viewer", "user", __FILE__, __LINE__);
  test->TestFunc = user;
  ImGuiTestEngine_QueueTest(engine_, test);
  while (!ImGuiTestEngine_IsTestQueueEmpty(engine_)) {
    app_->frame(0.0);
    ImGuiTestEngine_PostSwap(engine_);
  }
  if (test->Output.Status != ImGuiTestStatus_Success) {
    ImGuiTextBuffer log;
    test->Output.Log.ExtractLinesForVerboseLevels(ImGuiTestVerboseLevel_Silent,
                                                  ImGuiTestVerboseLevel_Debug, &log);
    ADD_FAILURE() << "the user could not do it:\n" << log.c_str();
  }
  ImGuiTestEngine_UnregisterTest(engine_, test);
}

bool AppTest::frames_until(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < end) {
    app_->frame(0.002);
    ImGuiTestEngine_PostSwap(engine_);
    if (done()) return true;
  }
  return false;
}

bool AppTest::settle() {
  int quiet = 0;  // the layout takes a few frames
  return frames_until([&] {
    bool opening = model().data().busy();
    for (const OpenDocument& document : model().documents()) {
      opening = opening || document.state == OpenState::opening;
    }
    quiet = opening ? 0 : quiet + 1;
    return quiet > 4;
  });
}

bool AppTest::shown(const char* window) {
  const ImGuiWindow* found = ImGui::FindWindowByName(window);
  return found != nullptr && found->WasActive;
}

ImVec2 AppTest::cell(ImGuiTestContext* ctx, const char* plot, double column, double row) {
  const ImGuiID id = ctx->GetID(plot);
  ImPlotPlot* found = ImPlot::GetCurrentContext()->Plots.GetByKey(id);
  if (found == nullptr) {
    IM_ERRORF("no plot %s", plot);
    return {};
  }
  return {found->XAxis(0).PlotToPixels(column), found->YAxis(0).PlotToPixels(row)};
}

std::vector<std::string> AppTest::x_labels(ImGuiTestContext* ctx, const char* plot) {
  ImPlotPlot* found = ImPlot::GetCurrentContext()->Plots.GetByKey(ctx->GetID(plot));
  if (found == nullptr) {
    IM_ERRORF("no plot %s", plot);
    return {};
  }
  const ImPlotTicker& ticker = found->XAxis(0).Ticker;
  std::vector<std::string> labels;
  for (int i = 0; i < ticker.TickCount(); ++i) {
    if (!ticker.Ticks[i].ShowLabel) continue;
    std::string label = ticker.GetText(i);
    if (!label.empty()) labels.push_back(std::move(label));
  }
  return labels;
}

}  // namespace blockscope::testing
