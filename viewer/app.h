// The viewer: one window with dockable panels over one ViewModel. The same object serves a person,
// pictures made without one, and tests.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "viewer/file_dialog.h"
#include "viewer/model/calibration_edit.h"
#include "viewer/model/settings.h"
#include "viewer/panels/panels.h"
#include "viewer/window.h"

namespace blockscope {

struct AppOptions {
  std::vector<std::string> traces;
  WindowOptions window;
  std::vector<std::string> panels;  ///< shown; empty: all, in the default layout
  /// "sequence=0,block=1,step=4,layer=3,head=2,token=5"; numbers as the model and trace have them.
  std::string select;
  std::string show;             ///< as show_from_text takes it
  std::string colormap;         ///< empty: as remembered
  std::optional<bool> dark;     ///< unset: as remembered
  std::string reuse;            ///< calibration file to start with; empty: none
  std::string config_folder;    ///< where settings are kept; empty: nothing is remembered
  std::size_t cache_bytes = 0;  ///< 0: as remembered
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

  /// The numbers that a panel shows ("heads"); nullopt while it shows none.
  std::optional<CsvTable> table(const std::string& panel);

  ViewModel& model() { return model_; }
  PanelStates& state() { return state_; }
  Appearance& appearance() { return appearance_; }
  std::vector<Panel>& panels() { return panels_; }
  Window& window() { return window_; }

  /// Additional drawing at the end of each frame (the tests' engine).
  void set_after_draw(std::function<void()> draw) { after_draw_ = std::move(draw); }

 private:
  void draw();
  PanelContext context();
  /// The active trace is one that the panel is about, or somebody asked for the panel by name.
  bool fits(const Panel& panel) const;
  void choose_front();
  void draw_menu();
  void draw_status();
  void draw_problem();
  void draw_help();
  void draw_open_menu();
  void draw_open();
  void note_opened();  ///< puts new traces into the list of recent ones
  void remember();     ///< writes the settings; throws Error when it can't
  void draw_faults();
  void draw_cache();
  void draw_panel_menu(const Panel& panel);
  void draw_export();
  /// Runs `go`; first asks what to do with these calibrations (by digest) where they have changes
  /// that no file has.
  void ask_before(const std::string& what, const std::vector<std::string>& digests,
                  std::function<void()> go);
  void ask_before_closing();  ///< when the window is to be closed
  void ask_before_loading();  ///< when a calibration file is to take the place of an edit
  void close_trace();         ///< the active one
  void draw_unsaved();
  CalibrationEdit* unsaved();            ///< the first one that leaving_ waits for
  void save_export(const Image* image);  ///< image: of the whole window, for a picture
  void default_layout(unsigned dockspace);
  void shortcuts();
  void load_reuse();
  void apply_style();
  void load_letters();

  AppOptions options_;
  Settings settings_;
  Window window_;
  ViewModel model_;
  Textures textures_;
  Appearance appearance_;
  PanelStates state_;
  std::vector<Panel> panels_;
  std::optional<Colormap> map_;
  std::function<void()> after_draw_;
  bool selection_pending_ = true;
  bool reuse_pending_ = false;
  bool layout_pending_ = true;
  bool letters_loaded_ = false;
  int front_pending_ = 0;    // frames until the tabs in front are chosen
  bool kind_front_ = false;  // the first trace of a panel's kind puts that panel in front
  int frames_owed_ = 0;      // until what input and news changed has settled
  bool help_ = false;
  bool menus_ = true;  ///< of panels; pictures go without
  struct ExportRequest {
    const Panel* panel = nullptr;
    bool picture = true;
    std::string path;
    bool replace = false;
    int frames = 0;       ///< until the picture is taken; 0: still asking for the path
    std::string problem;  ///< with the last path
  };
  std::optional<ExportRequest> export_;
  /// What waits for an answer about unsaved calibrations.
  struct Leaving {
    std::string what;                  ///< "quitting"
    std::vector<std::string> digests;  ///< of the calibrations not asked for yet
    std::function<void()> go;
    bool replace = false;
    std::string problem;  ///< with saving
  };
  std::optional<Leaving> leaving_;
  bool closing_ = false;  ///< everything was asked
  bool open_asked_ = false;
  std::string open_path_, completed_path_;
  std::vector<std::string> completions_;  // of completed_path_
  std::unique_ptr<FileDialog> file_dialog_;
  std::vector<bool> noted_;  // documents that are in the list of recent ones
  bool styled_dark_ = false;
};

}  // namespace blockscope
