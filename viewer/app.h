// The viewer: dockable panels over one ViewModel, on a screen. The same object serves the window,
// the browser, `--screenshot` and the tests.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "decode_record/files/scratch_folder.h"
#include "viewer/file_dialog.h"
#include "viewer/model/calibration_edit.h"
#include "viewer/model/settings.h"
#include "viewer/panels/panels.h"
#include "viewer/screen/screen.h"

namespace blockscope {

/// What a viewer in a browser may do on the machine of the traces.
struct Served {
  std::function<std::vector<std::string>()> traces;  ///< paths of the traces on offer now
  std::string folder;                                ///< names of traces are shown without it
  bool may_save = false;                             ///< next to a trace
};

struct AppOptions {
  std::vector<std::string> traces;
  std::vector<std::string> panels;  ///< shown; empty: all, in the default layout
  /// "sequence=0,block=1,step=4,layer=3,head=2,token=5,panel=heatmap"; see parse_selection().
  std::string select;
  std::string show;                   ///< for show_from_text()
  std::string colormap;               ///< empty: as remembered
  std::optional<bool> dark;           ///< unset: as remembered
  std::string reuse;                  ///< calibration file to load at the start; empty: none
  std::string lens;                   ///< result of `blockscope lens --json`; empty: none
  std::string config_folder;          ///< where settings are kept; empty: nothing is remembered
  std::size_t cache_bytes = 0;        ///< 0: as remembered
  std::optional<Served> served = {};  ///< for a screen with a browser
};

class App {
 public:
  /// Throws UsageError for a panel, map or selection that doesn't exist.
  App(const AppOptions& options, std::unique_ptr<Screen> screen);
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
  Screen& screen() { return *screen_; }

  /// Additional drawing at the end of each frame (the tests' engine).
  void set_after_draw(std::function<void()> draw) { after_draw_ = std::move(draw); }

 private:
  void draw();
  PanelContext context();
  /// True if the active trace has what the panel shows, or if the user named the panel.
  bool fits(const Panel& panel) const;
  bool opening() const;
  void draw_panels(unsigned dockspace);
  void choose_front();
  void draw_menu();
  void draw_status();
  void draw_problem();
  void draw_help();
  void draw_open_menu();
  void draw_open();
  void draw_offered();  ///< the same in a browser: one of the traces on offer
  std::string short_name(const std::string& path) const;
  /// Selects what options_.select names, once its trace is open.
  void follow_selection();
  void note_front();     ///< which panel a link names
  void serve_browser();  ///< links and files that came, and the page's address
  void take_file(const PickedFile& file);
  void note_opened();  ///< puts new traces into the list of recent ones
  void remember();     ///< writes the settings; throws Error when it can't
  void draw_faults();
  void draw_cache();
  void draw_panel_menu(const Panel& panel);
  void draw_export();
  void begin_export();  ///< once the name is known
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
  std::unique_ptr<Screen> screen_;
  ViewModel model_;
  Textures textures_;
  Outlet outlet_;
  Appearance appearance_;
  PanelStates state_;
  std::vector<Panel> panels_;
  std::optional<Colormap> map_;
  std::function<void()> after_draw_;
  bool selection_pending_ = true;
  bool reuse_pending_ = false;
  bool layout_pending_ = true;
  bool letters_loaded_ = false;
  std::string front_wanted_;  // a panel, by its key
  std::string front_;         // the panel that was focused last, by its key
  int front_pending_ = 0;     // frames until the tabs in front are chosen
  bool kind_front_ = false;   // the first trace of a panel's kind puts that panel in front
  int frames_owed_ = 0;       // frames to draw until the last changes have settled
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
  std::vector<std::string> offered_;      // when the dialog was opened
  std::unique_ptr<ScratchFolder> given_;  // the file that the browser gave last
  std::vector<std::string> completions_;  // of completed_path_
  std::unique_ptr<FileDialog> file_dialog_;
  std::vector<bool> noted_;  // documents that are in the list of recent ones
  bool styled_dark_ = false;
};

}  // namespace blockscope
