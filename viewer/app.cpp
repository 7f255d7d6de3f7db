#include "viewer/app.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <imgui.h>
#include <imgui_internal.h>
#include <implot.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>

#include "command_line/interrupt.h"
#include "decode_record/base/error.h"
#include "viewer/model/selection_text.h"
#include "viewer/panels/calibration_parts.h"
#include "viewer/panels/lens_state.h"
#include "viewer/panels/show_text.h"

namespace blockscope {

namespace {

void check_panel(const std::string& wanted) {
  if (wanted.empty() || std::ranges::count(panel_names(), wanted)) return;
  throw UsageError(
      fmt::format("--select: expected panel={}, got '{}'", fmt::join(panel_names(), ", "), wanted));
}

}  // namespace

App::App(const AppOptions& options, std::unique_ptr<Screen> screen)
    : options_(options),
      settings_(load_settings(options.config_folder)),
      screen_(std::move(screen)),
      model_(options.cache_bytes > 0 ? options.cache_bytes : settings_.cache_mib << 20U),
      outlet_(screen_->browser(), options.served && options.served->may_save),
      appearance_(settings_.appearance),
      panels_(all_panels()),
      map_(Colormap(options.colormap.empty() ? appearance_.map : options.colormap)) {
  show_from_text(options.show, state_);
  check_panel(parse_selection(options.select).panel);  // reports a mistake early
  appearance_.map = map_->name();
  appearance_.dark = options.dark.value_or(appearance_.dark);
  styled_dark_ = !appearance_.dark;
  reuse_pending_ = !options.reuse.empty();
  if (!options.lens.empty()) state_.of<LensState>().data = read_lens(options.lens);
  for (const std::string& name : options.panels) {
    if (!std::ranges::count(panel_names(), name)) {
      throw UsageError(
          fmt::format("--panel: expected {}, got '{}'", fmt::join(panel_names(), ", "), name));
    }
  }
  if (!options.panels.empty()) {
    for (Panel& panel : panels_) {
      panel.visible = std::ranges::count(options.panels, panel_key(panel)) > 0;
    }
  }
  for (const std::string_view name : kColormapNames) {
    const Colormap map(name);
    ImPlot::AddColormap(std::string(name).c_str(), map.table().data(),
                        static_cast<int>(map.table().size()), false);
    const Colormap reversed(std::string(name) + "_r");
    ImPlot::AddColormap(reversed.name().c_str(), reversed.table().data(),
                        static_cast<int>(reversed.table().size()), false);
  }
  model_.data().set_wake([this] { screen_->wake(); });
  for (const std::string& trace : options.traces) model_.open(trace);
  open_asked_ = options.served && options.traces.empty();
  if (options.served) offered_ = options.served->traces();
}

App::~App() { model_.data().set_wake({}); }

void App::run() {
  while (!screen_->should_close()) wait_and_draw();
  remember();
}

void App::wait_and_draw() {
  constexpr double kMoving = 1.0 / 60.0;
  constexpr double kCursor = 0.3;  // blinks
  constexpr double kStill = 3600.0;
  constexpr int kSettling = 3;  // frames; ImGui needs several to place new items
  // Of clicks that come at once, ImGui takes one a frame.
  const bool more = ImGui::GetCurrentContext()->InputEventsQueue.Size > 0;
  if (model_.data().busy() || state_.playback.playing || more) frames_owed_ = kSettling;
  // The desktop's file dialog doesn't wake the window when it is done.
  const bool typing = ImGui::GetIO().WantTextInput || file_dialog_;
  if (screen_->wait(frames_owed_ > 0 ? kMoving : typing ? kCursor : kStill)) {
    frames_owed_ = kSettling;
  } else {
    frames_owed_ -= frames_owed_ > 0 ? 1 : 0;
  }
  frame(0.0);
}

void App::frame(double seconds, Image* picture) {
  screen_->wait(seconds);
  for (const std::string& path : screen_->take_dropped_files()) model_.open(path);
  model_.update();
  note_opened();
  if (screen_->browser() != nullptr) serve_browser();
  follow_selection();
  if (reuse_pending_ && model_.overview() != nullptr) load_reuse();
  Image own;
  const bool save = export_ && export_->frames == 1;
  if (save && picture == nullptr) picture = &own;
  screen_->frame(
      [this] {
        draw();
        if (after_draw_) after_draw_();
      },
      picture);
  if (export_ && export_->frames > 0) export_->frames -= 1;
  if (save) save_export(picture);
  ask_before_loading();
  ask_before_closing();  // after drawing: its keys and menus can close the window, too
}

Image App::picture(double patience) {
  const auto begin = std::chrono::steady_clock::now();
  constexpr double kLook = 0.02;  // seconds
  int quiet = 0;
  Image image;
  menus_ = false;
  while (quiet < 4) {  // the layout settles over some frames
    frame(model_.data().busy() ? kLook : 0.0, quiet == 3 ? &image : nullptr);
    InterruptGuard::check();
    if (!model_.problems().empty()) throw Error(model_.problems().front());
    const auto& documents = model_.documents();
    const bool opening = std::ranges::any_of(documents, [](const OpenDocument& document) {
      return document.state == OpenState::opening;
    });
    quiet = opening || model_.data().busy() ? 0 : quiet + 1;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (passed.count() > patience) {
      throw Error(fmt::format(
          "view: not everything was loaded after {:.0f} s. HINT: raise --patience", patience));
    }
  }
  menus_ = true;
  return image;
}

bool App::fits(const Panel& panel) const {
  const bool lens = !options_.lens.empty() && panel_key(panel) == "lens";
  return panel.fits == nullptr || !options_.panels.empty() || lens || panel.fits(model_);
}

void App::load_reuse() {
  reuse_pending_ = false;
  try {
    CalibrationEdit* edit = active_calibration(model_, state_.of<CalibrationState>());
    if (edit == nullptr) {
      throw CalibrationError(
          fmt::format("{}: the trace doesn't name its checkpoint, so the file "
                      "can't be checked against it",
                      options_.reuse));
    }
    edit->load(options_.reuse);
    const std::filesystem::path path(options_.reuse);
    state_.of<CalibrationState>().path =
        outlet_.takes_paths() ? path.string() : path.filename().string();
  } catch (const Error& error) {
    model_.add_problem(error.what());
  }
}

void App::apply_style() {
  if (styled_dark_ == appearance_.dark) return;
  styled_dark_ = appearance_.dark;
  if (appearance_.dark) {
    ImGui::StyleColorsDark();
    ImPlot::StyleColorsDark();
  } else {
    ImGui::StyleColorsLight();
    ImPlot::StyleColorsLight();
    // White, as the fields are, would hide these in popups.
    ImGuiStyle& style = ImGui::GetStyle();
    style.Colors[ImGuiCol_PopupBg] = style.Colors[ImGuiCol_WindowBg];
  }
}

void App::default_layout(unsigned dockspace) {
  ImGui::DockBuilderRemoveNode(dockspace);
  ImGui::DockBuilderAddNode(dockspace, ImGuiDockNodeFlags_DockSpace);
  ImGui::DockBuilderSetNodeSize(dockspace, ImGui::GetMainViewport()->WorkSize);
  std::vector<const char*> shown;
  for (const Panel& panel : panels_) {
    if (panel.visible) shown.push_back(panel.name);
  }
  if (shown.size() == 2) {
    ImGuiID first = dockspace;
    const ImGuiID second =
        ImGui::DockBuilderSplitNode(first, ImGuiDir_Right, 0.5F, nullptr, &first);
    ImGui::DockBuilderDockWindow(shown[0], first);
    ImGui::DockBuilderDockWindow(shown[1], second);
    ImGui::DockBuilderFinish(dockspace);
    return;
  }
  // Two places below one, and a tall one to the right of all three.
  ImGuiID left = dockspace;
  const ImGuiID right = ImGui::DockBuilderSplitNode(left, ImGuiDir_Right, 0.42F, nullptr, &left);
  const ImGuiID bottom = ImGui::DockBuilderSplitNode(left, ImGuiDir_Down, 0.52F, nullptr, &left);
  ImGuiID bottom_left = bottom;
  const ImGuiID bottom_middle =
      ImGui::DockBuilderSplitNode(bottom_left, ImGuiDir_Right, 0.5F, nullptr, &bottom_left);
  const std::map<PanelPlace, ImGuiID> nodes = {{PanelPlace::top_left, left},
                                               {PanelPlace::bottom_left, bottom_left},
                                               {PanelPlace::bottom_middle, bottom_middle},
                                               {PanelPlace::right, right},
                                               {PanelPlace::right_front, right}};
  for (const Panel& panel : panels_) {
    ImGui::DockBuilderDockWindow(panel.name, nodes.at(panel.place));
  }
  ImGui::DockBuilderFinish(dockspace);
  front_pending_ = 2;
  kind_front_ = options_.reuse.empty() && options_.lens.empty();
}

/// A glyph's place in the font's texture changes the last bit of its pixels, and the first drawing
/// decides that place. Loading in a fixed order makes pictures of the same content equal.
void App::load_letters() {
  if (letters_loaded_) return;
  letters_loaded_ = true;
  for (ImWchar letter = 0x20; letter < 0x7F; ++letter) ImGui::GetFontBaked()->FindGlyph(letter);
}

void App::follow_selection() {
  if (!selection_pending_ || model_.overview() == nullptr) return;
  try {
    const SelectionText wanted = parse_selection(options_.select);
    if (!wanted.trace.empty()) {
      const auto& documents = model_.documents();
      const auto found = std::ranges::find_if(documents, [&](const OpenDocument& document) {
        return document.state != OpenState::failed && short_name(document.path) == wanted.trace;
      });
      if (found == documents.end()) {
        selection_pending_ = false;
        throw UsageError(fmt::format("--select: trace={} is not open", wanted.trace));
      }
      if (found->state == OpenState::opening) return;
      Selection other;
      other.trace = static_cast<std::size_t>(found - documents.begin());
      if (other.trace != model_.selection().trace) model_.select(other);
    }
    selection_pending_ = false;
    check_panel(wanted.panel);
    front_wanted_ = wanted.panel;
    model_.select(selection_from(wanted, *model_.overview(), model_.selection()));
  } catch (const Error& error) {
    selection_pending_ = false;
    if (screen_->browser() == nullptr) throw;
    model_.add_problem(error.what());
  }
}

void App::note_front() {
  if (!front_wanted_.empty()) {
    const auto wanted = std::ranges::find_if(
        panels_, [&](const Panel& panel) { return panel_key(panel) == front_wanted_; });
    if (wanted != panels_.end() && fits(*wanted)) {
      wanted->visible = true;
      ImGui::SetWindowFocus(wanted->name);
      if (front_ == front_wanted_) front_wanted_.clear();
    } else if (!opening()) {
      front_wanted_.clear();  // this trace has nothing for it
    }
  }
  const ImGuiWindow* focused = ImGui::GetCurrentContext()->NavWindow;
  if (focused == nullptr) return;
  for (const Panel& panel : panels_) {
    if (focused->RootWindow == ImGui::FindWindowByName(panel.name)) front_ = panel_key(panel);
  }
}

/// Brings tabs of the default layout to the front; windows are docked in their first frame.
void App::choose_front() {
  const auto of_kind = std::ranges::find_if(
      panels_, [&](const Panel& panel) { return panel.fits != nullptr && panel.fits(model_); });
  if (kind_front_ && of_kind != panels_.end()) {
    kind_front_ = false;
    front_pending_ = 2;
  }
  if (front_pending_ == 0 || --front_pending_ > 0) return;
  const auto front = std::ranges::find(panels_, PanelPlace::right_front, &Panel::place);
  ImGui::SetWindowFocus(!options_.reuse.empty()    ? "Calibration"
                        : !options_.lens.empty()   ? "Lens"
                        : of_kind != panels_.end() ? of_kind->name
                                                   : front->name);
}

PanelContext App::context() {
  return {model_,  appearance_,        state_,          textures_, *map_,
          outlet_, screen_->browser(), screen_->scale()};
}

void App::draw() {
  load_letters();
  apply_style();
  if (map_->name() != appearance_.map) map_.emplace(appearance_.map);
  ImPlot::PushColormap(appearance_.map.c_str());
  draw_menu();
  draw_status();
  const ImGuiID dockspace = ImGui::DockSpaceOverViewport(ImGui::GetID("panels"));
  if (layout_pending_) {
    layout_pending_ = false;
    const ImGuiDockNode* node = ImGui::DockBuilderGetNode(dockspace);
    if (node == nullptr || !node->IsSplitNode()) default_layout(dockspace);
  }
  if (!opening()) draw_panels(dockspace);
  choose_front();
  note_front();
  draw_help();
  draw_export();
  draw_open();
  draw_unsaved();
  draw_problem();
  shortcuts();
  ImPlot::PopColormap();
}

/// Whether the first trace is still on its way. Panels that it does not fit would show for an
/// instant, and the tabs would get another order.
bool App::opening() const {
  return model_.overview() == nullptr &&
         std::ranges::count(model_.documents(), OpenState::opening, &OpenDocument::state) > 0;
}

void App::draw_panels(unsigned dockspace) {
  const auto shown = std::ranges::count_if(panels_, &Panel::visible);
  PanelContext now = context();
  for (Panel& panel : panels_) {
    if (!panel.visible || !fits(panel)) continue;
    if (shown == 1) ImGui::SetNextWindowDockID(dockspace, ImGuiCond_Always);
    const bool menu = menus_ && !(export_ && export_->frames > 0);
    if (ImGui::Begin(panel.name, &panel.visible, menu ? ImGuiWindowFlags_MenuBar : 0)) {
      if (menu) draw_panel_menu(panel);
      panel.left = ImGui::GetWindowPos().x;
      panel.top = ImGui::GetWindowPos().y;
      panel.width = ImGui::GetWindowWidth();
      panel.height = ImGui::GetWindowHeight();
      panel.draw(now);
    }
    ImGui::End();
  }
}

}  // namespace blockscope
