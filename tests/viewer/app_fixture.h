// Drives the viewer's real App as a person would, through Dear ImGui's Test Engine: keys, mouse,
// menus. Needs a display (run_under_xvfb.sh).
#pragma once

#include <gtest/gtest.h>
#include <imgui.h>
#include <imgui_te_context.h>
#include <imgui_te_engine.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "viewer/app.h"

namespace blockscope::testing {

class AppTest : public ::testing::Test {
 protected:
  AppTest();
  ~AppTest() override;

  /// A small trace of level full: 3 layers, 4 heads, 2 sequences of 2 blocks of 4 steps.
  static std::string small_trace();
  /// A name in a folder that goes with the test.
  std::string file(const std::string& name) const { return (folder_ / name).string(); }

  /// Opens the window; with traces, waits until the first is shown.
  App& start(std::vector<std::string> traces = {small_trace()});
  App& start(AppOptions options);
  App& app() { return *app_; }
  ViewModel& model() { return app_->model(); }

  /// Runs `user` between frames, with keys and mouse of its own, until it returns. A failed
  /// IM_CHECK fails the test.
  void drive(const std::function<void(ImGuiTestContext*)>& user);
  /// Frames until `done`, 20 s at most.
  [[nodiscard]] bool frames_until(const std::function<bool()>& done);
  /// Until nothing is being opened or computed.
  [[nodiscard]] bool settle();
  /// Whether a window or popup of this name is visible (a tab hidden by others is not).
  static bool shown(const char* window);
  /// The place of the cell (column, row) of a heatmap on the screen; `plot` as "//Heads/###heads".
  static ImVec2 cell(ImGuiTestContext* ctx, const char* plot, double column, double row);
  /// The labels on the x axis of a plot, empty ones left out.
  static std::vector<std::string> x_labels(ImGuiTestContext* ctx, const char* plot);

 private:
  std::filesystem::path folder_;
  std::unique_ptr<App> app_;
  ImGuiTestEngine* engine_ = nullptr;
};

}  // namespace blockscope::testing
