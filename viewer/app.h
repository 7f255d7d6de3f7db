// The viewer: one window with dockable panels over one ViewModel. The same object serves the
// interactive window, `--screenshot` and the tests.
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
  /// "sequence=0,block=1,step=4,layer=3,head=2,token=5"; numbers of the model and trace, not slots.
  std::string select;
  std::string show;             ///< for show_from_text()
  std::string colormap;         ///< empty: as remembered
  std::optional<bool> dark;     ///< unset: as remembered
  std::string reuse;            ///< calibration file to load at the start; empty: none
  std::string lens;             ///< result of `blockscope lens --json`; empty: none
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

  /// Shows the window until it is closed.
  void run();
  /// Waits until there is something to show, then draws one frame.
  void wait_and_draw();
  /// Waits up to `seconds` for input, then draws one frame.
  void frame(double seconds, Image* picture = nullptr);
  /// Draws until everything shown is loaded, then returns the picture. Throws Error if a trace
  /// can't be opened or if loading takes longer than `patience` seconds.
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
  /// True if the active trace has what the panel shows, or if the user named the panel.
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
  /// Asks what to do with unsaved changes of these calibrations (by digest), then runs `go`.
  void ask_before(const std::string& what, const std::vector<std::string>& digests,
                  std::function<void()> go);
  void ask_before_closing();  ///< before the window is closed
  void ask_before_loading();  ///< before a calibration file replaces an edit
  void close_trace();         ///< the active one
  void draw_unsaved();
  CalibrationEdit* unsaved();            ///< the first calibration that leaving_ waits for
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
  int frames_owed_ = 0;      // frames to draw until the last changes have settled
  bool help_ = false;
  bool menus_ = true;  ///< the panels have menus; false in pictures
  struct ExportRequest {
    const Panel* panel = nullptr;
    bool picture = true;
    std::string path;
    bool replace = false;
    int frames = 0;       ///< left until the picture is taken; 0: still asking for the path
    std::string problem;  ///< error with the last path
  };
  std::optional<ExportRequest> export_;
  /// The action that waits for an answer about unsaved calibrations.
  struct Leaving {
    std::string what;                  ///< "quitting"
    std::vector<std::string> digests;  ///< calibrations still to ask about
    std::function<void()> go;
    bool replace = false;
    std::string problem;  ///< error while saving
  };
  std::optional<Leaving> leaving_;
  bool closing_ = false;  ///< every question is answered
  bool open_asked_ = false;
  std::string open_path_, completed_path_;
  std::vector<std::string> completions_;  // of completed_path_
  std::unique_ptr<FileDialog> file_dialog_;
  std::vector<bool> noted_;  // documents that are in the list of recent ones
  bool styled_dark_ = false;
};

}  // namespace blockscope
