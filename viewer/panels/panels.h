// A panel is one entry, made by a function in the panel's own file. all_panels() lists the entries.
// The window, menus, default layout, keys, exports, --panel, --show and --help use that list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeindex>
#include <utility>
#include <vector>

#include "viewer/model/colormap.h"
#include "viewer/model/csv_table.h"
#include "viewer/model/selection_text.h"
#include "viewer/model/settings.h"
#include "viewer/model/view_model.h"
#include "viewer/panels/outlet.h"
#include "viewer/panels/textures.h"

namespace blockscope {

/// The state that the panels keep from frame to frame.
class PanelStates {
 public:
  /// One panel's own state. The panel declares its type; the first call creates it.
  template <typename State>
  State& of() {
    std::shared_ptr<void>& state = states_[typeid(State)];
    if (!state) state = std::make_shared<State>();
    return *static_cast<State*>(state.get());
  }

  /// Shared by all panels. While it plays, the selection moves by itself and the window draws
  /// without input.
  struct Playback {
    bool playing = false;
    double next_time = 0.0;
    float steps_per_second = 4.0F;
  } playback;

 private:
  std::map<std::type_index, std::shared_ptr<void>> states_;
};

struct PanelContext {
  ViewModel& model;
  Appearance& appearance;
  PanelStates& state;
  Textures& textures;
  const Colormap& map;
  Outlet& outlet;
  Browser* browser = nullptr;  ///< nullptr: a window, or a picture
  float scale = 1.0F;
};

/// Where the default layout puts a panel. Only one panel is right_front: it covers those at
/// `right`.
enum class PanelPlace : std::uint8_t { top_left, bottom_left, bottom_middle, right, right_front };

/// What `--show NAME=...` takes for a panel: one of `words` and, with take_metric, the name of a
/// metric.
struct PanelShow {
  std::vector<std::string_view> words = {};
  void (*take_word)(PanelStates&, std::size_t word) = nullptr;      ///< index into `words`
  void (*take_metric)(PanelStates&, std::size_t metric) = nullptr;  ///< index into panel_metrics()
  void (*take_scope)(PanelStates&, ViewModel::Scope) = nullptr;     ///< of `--show scope=...`
};

struct Panel {
  const char* name = "";  ///< the window's title; in lower case, the value for --panel
  void (*draw)(PanelContext&) = nullptr;
  /// The shown numbers; nullopt while there are none. nullptr: the panel never has numbers.
  std::optional<CsvTable> (*table)(PanelContext&) = nullptr;
  PanelPlace place = PanelPlace::right;
  SelectionPart part = SelectionPart::head;  ///< the parts of the selection that it depends on
  /// Whether the active trace has what the panel shows; nullptr: every trace has. For other traces,
  /// the panel is hidden unless the user named it. The first suitable trace brings it to the front.
  bool (*fits)(const ViewModel&) = nullptr;
  PanelShow show = {};
  void (*control_keys)(PanelContext&) = nullptr;  ///< called while Ctrl is down
  /// Keys and their effects, for the list of keys.
  std::vector<std::pair<const char*, const char*>> key_help = {};

  // The window in the last frame.
  bool visible = true;
  float left = 0.0F, top = 0.0F, width = 0.0F, height = 0.0F;
};

/// All panels, in the order of menus and --help.
std::vector<Panel> all_panels();
/// The name in lower case.
std::string panel_key(const Panel& panel);
/// Names of all panels, as values for --panel.
std::vector<std::string> panel_names();

/// Colours of A_out and A_in everywhere, as in FlashBlock's Fig. 5: blue and orange of Okabe and
/// Ito, which colour-blind people can tell apart.
inline constexpr Colour kExternalColour = colour_of_text(kExternalColor);
inline constexpr Colour kInternalColour = colour_of_text(kInternalColor);

/// True if `data` is ready. Else draws the progress or the reason.
template <typename T>
bool ready_or_explain(const Data<T>& data);
struct Explanation {
  DataState state;
  double progress;
  std::string message, key;
  DataService* service;
};
void explain(const Explanation& what);

template <typename T>
bool ready_or_explain(const Data<T>& data) {
  if (data.state == DataState::ready && data.value) return true;
  explain({data.state, data.progress, data.message, data.key, data.service});
  return false;
}

/// A sentence instead of the panel: what is missing and how to get it.
void explain_missing(const std::string& text);

}  // namespace blockscope
