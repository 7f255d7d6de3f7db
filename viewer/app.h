// The viewer: one window with dockable panels over one ViewModel. The same object serves a person,
// pictures made without one, and tests.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "viewer/panels/panels.h"
#include "viewer/window.h"

namespace blockscope {

struct AppOptions {
  std::vector<std::string> traces;
  WindowOptions window;
  std::vector<std::string> panels;  ///< shown; empty: all, in the default layout
  /// "sequence=0,block=1,step=4,layer=3,head=2,token=5"; numbers as the model and trace have them.
  std::string select;
  std::string colormap = "viridis";
  bool dark = true;
  std::string reuse;  ///< calibration file to start with; empty: none
  std::size_t cache_bytes = std::size_t{256} << 20;
};

class App {
 public:
  /// Throws Error without a display, UsageError for a panel, map or selection that doesn't exist.
  explicit App(const AppOptions& options);
  ~App();
  App(const App&) = delete;
  App& operator=(const App&) = delete;

  /// Until the window is closed.
  void run();
  /// Waits until there is something to show, then draws one frame.
  void wait_and_draw();
  /// One frame; waits up to `seconds` for input first.
  void frame(double seconds, Image* picture = nullptr);
  /// Draws until everything shown is loaded, then returns the picture. Throws Error when a trace
  /// can't be opened, or when loading takes longer than `patience` seconds.
  Image picture(double patience);

  ViewModel& model() { return model_; }
  PanelState& state() { return state_; }
  Appearance& appearance() { return appearance_; }
  std::vector<Panel>& panels() { return panels_; }
  Window& window() { return window_; }

  /// Additional drawing at the end of each frame (the tests' engine).
  void set_after_draw(std::function<void()> draw) { after_draw_ = std::move(draw); }

 private:
  void draw();
  void draw_menu();
  void draw_status();
  void draw_problem();
  void draw_help();
  void default_layout(unsigned dockspace);
  void shortcuts();
  void load_reuse();
  void apply_style();

  AppOptions options_;
  Window window_;
  ViewModel model_;
  Textures textures_;
  Appearance appearance_;
  PanelState state_;
  std::vector<Panel> panels_;
  std::optional<Colormap> map_;
  std::function<void()> after_draw_;
  bool selection_pending_ = true;
  bool reuse_pending_ = false;
  bool layout_pending_ = true;
  int front_pending_ = 0;  // frames until the tabs in front are chosen
  int frames_owed_ = 0;    // until what input and news changed has settled
  bool help_ = false;
  bool styled_dark_ = false;
};

/// Names of all panels, lower case, as --panel takes them.
std::vector<std::string> panel_names();

}  // namespace blockscope
