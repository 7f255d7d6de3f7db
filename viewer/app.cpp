#include "viewer/app.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <imgui.h>
#include <imgui_internal.h>
#include <implot.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <sstream>

#include "decode_record/error.h"

namespace blockscope {
namespace {

const std::array<Panel, 5> kPanels = {{{"Trajectory", draw_trajectory_panel},
                                       {"Heads", draw_heads_panel},
                                       {"Heatmap", draw_heatmap_panel},
                                       {"Curves", draw_curves_panel},
                                       {"Run", draw_run_panel}}};

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// Index of a model's layer or head among the recorded ones.
std::size_t slot_of(const std::vector<std::int64_t>& recorded, std::int64_t wanted,
                    const char* what) {
  const auto found = std::ranges::find(recorded, wanted);
  if (found == recorded.end()) {
    throw UsageError(fmt::format("--select: {} {} is not in the trace, which has {}", what, wanted,
                                 fmt::join(recorded, ", ")));
  }
  return static_cast<std::size_t>(found - recorded.begin());
}

struct Wanted {
  std::optional<std::int64_t> sequence, block, step, layer, head, token;
};

Wanted parse_selection(const std::string& text) {
  Wanted wanted;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto equals = part.find('=');
    std::int64_t value = 0;
    const char* const end = part.data() + part.size();
    const auto read = equals == std::string::npos
                          ? std::from_chars_result{end, std::errc::invalid_argument}
                          : std::from_chars(part.data() + equals + 1, end, value);
    const std::string name = part.substr(0, equals);
    std::optional<std::int64_t>* slot = name == "sequence" ? &wanted.sequence
                                        : name == "block"  ? &wanted.block
                                        : name == "step"   ? &wanted.step
                                        : name == "layer"  ? &wanted.layer
                                        : name == "head"   ? &wanted.head
                                        : name == "token"  ? &wanted.token
                                                           : nullptr;
    if (slot == nullptr || read.ec != std::errc{} || read.ptr != end) {
      throw UsageError(
          fmt::format("--select: expected name=number with sequence, block, step, "
                      "layer, head or token, separated by commas, got '{}'",
                      part));
    }
    *slot = value;
  }
  return wanted;
}

}  // namespace

std::vector<std::string> panel_names() {
  std::vector<std::string> names;
  for (const Panel& panel : kPanels) names.push_back(lower(panel.name));
  return names;
}

App::App(const AppOptions& options)
    : options_(options),
      window_(options.window),
      model_(options.cache_bytes),
      panels_(kPanels.begin(), kPanels.end()),
      map_(Colormap(options.colormap)) {
  parse_selection(options.select);  // a mistake is told before anything is drawn
  appearance_.map = options.colormap;
  appearance_.dark = options.dark;
  styled_dark_ = !options.dark;
  for (const std::string& name : options.panels) {
    if (!std::ranges::count(panel_names(), name)) {
      throw UsageError(
          fmt::format("--panel: expected {}, got '{}'", fmt::join(panel_names(), ", "), name));
    }
  }
  if (!options.panels.empty()) {
    for (Panel& panel : panels_) {
      panel.visible = std::ranges::count(options.panels, lower(panel.name)) > 0;
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
  model_.data().set_wake(&Window::wake);
  for (const std::string& trace : options.traces) model_.open(trace);
}

App::~App() { model_.data().set_wake({}); }

void App::run() {
  while (!window_.should_close()) {
    for (const std::string& path : window_.take_dropped_files()) model_.open(path);
    // Without input and news a window draws twice a second: live files, blinking cursors.
    const bool busy = model_.data().busy() || state_.trajectory.playing;
    frame(busy ? 1.0 / 60.0 : 0.5);
  }
}

void App::frame(double seconds, Image* picture) {
  model_.update();
  if (selection_pending_ && model_.overview() != nullptr) {
    selection_pending_ = false;
    apply_selection();
  }
  window_.frame(
      seconds,
      [this] {
        draw();
        if (after_draw_) after_draw_();
      },
      picture);
}

Image App::picture(double patience) {
  const auto begin = std::chrono::steady_clock::now();
  int quiet = 0;
  Image image;
  while (quiet < 4) {  // the layout settles over some frames
    frame(0.0, &image);
    if (!model_.problems().empty()) throw Error(model_.problems().front());
    const auto& documents = model_.documents();
    const bool opening = std::ranges::any_of(documents, [](const OpenDocument& document) {
      return document.state == OpenState::opening;
    });
    quiet = opening || model_.data().busy() ? 0 : quiet + 1;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (passed.count() > patience) {
      throw Error(fmt::format("view: not everything was loaded after {:.0f} s. HINT: --patience",
                              patience));
    }
  }
  return image;
}

void App::apply_selection() {
  const Overview& overview = *model_.overview();
  const Wanted wanted = parse_selection(options_.select);
  Selection selection = model_.selection();
  if (wanted.sequence || wanted.block) {
    const auto fits = [&](const BlockSteps& block) {
      return (!wanted.sequence || block.sequence == *wanted.sequence) &&
             (!wanted.block || block.block == *wanted.block);
    };
    const auto found = std::ranges::find_if(overview.blocks, fits);
    if (found == overview.blocks.end()) {
      throw UsageError(
          fmt::format("--select {}: the trace has no such sequence and block", options_.select));
    }
    selection.block = static_cast<std::size_t>(found - overview.blocks.begin());
  }
  if (wanted.step && selection.block < overview.blocks.size()) {
    const auto& steps = overview.blocks[selection.block].steps;
    const auto found = std::ranges::find(steps, *wanted.step, &StepRef::step);
    if (found == steps.end()) {
      throw UsageError(
          fmt::format("--select: the block has steps 1 to {}, not {}", steps.size(), *wanted.step));
    }
    selection.step = static_cast<std::size_t>(found - steps.begin());
  }
  const TraceMeta& meta = overview.info.meta;
  if (wanted.layer) selection.layer = slot_of(meta.layers, *wanted.layer, "layer");
  if (wanted.head) selection.head = slot_of(meta.heads, *wanted.head, "head");
  if (wanted.token) selection.token = static_cast<std::int32_t>(*wanted.token);
  model_.select(selection);
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
  }
}

void App::default_layout(unsigned dockspace) {
  ImGui::DockBuilderRemoveNode(dockspace);
  ImGui::DockBuilderAddNode(dockspace, ImGuiDockNodeFlags_DockSpace);
  ImGui::DockBuilderSetNodeSize(dockspace, ImGui::GetMainViewport()->WorkSize);
  // Trajectory above heads and curves; heatmaps, tall, beside them.
  ImGuiID left = dockspace;
  const ImGuiID right = ImGui::DockBuilderSplitNode(left, ImGuiDir_Right, 0.42F, nullptr, &left);
  const ImGuiID bottom = ImGui::DockBuilderSplitNode(left, ImGuiDir_Down, 0.52F, nullptr, &left);
  ImGuiID bottom_left = bottom;
  const ImGuiID bottom_right =
      ImGui::DockBuilderSplitNode(bottom_left, ImGuiDir_Right, 0.5F, nullptr, &bottom_left);
  ImGui::DockBuilderDockWindow("Trajectory", left);
  ImGui::DockBuilderDockWindow("Heads", bottom_left);
  ImGui::DockBuilderDockWindow("Curves", bottom_right);
  ImGui::DockBuilderDockWindow("Run", right);
  ImGui::DockBuilderDockWindow("Heatmap", right);
  ImGui::DockBuilderFinish(dockspace);
  front_pending_ = 2;
}

void App::draw() {
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
  const auto shown = std::ranges::count_if(panels_, &Panel::visible);
  PanelContext context{model_, appearance_, state_, textures_, *map_, window_.scale()};
  for (Panel& panel : panels_) {
    if (!panel.visible) continue;
    if (shown == 1) ImGui::SetNextWindowDockID(dockspace, ImGuiCond_Always);
    if (ImGui::Begin(panel.name, &panel.visible)) panel.draw(context);
    ImGui::End();
  }
  // Of the tabs that share a place; windows are docked in their first frame.
  if (front_pending_ > 0 && --front_pending_ == 0) ImGui::SetWindowFocus("Heatmap");
  draw_help();
  draw_problem();
  shortcuts();
  ImPlot::PopColormap();
}

void App::draw_menu() {
  if (!ImGui::BeginMainMenuBar()) return;
  if (ImGui::BeginMenu("Trace")) {
    for (std::size_t i = 0; i < model_.documents().size(); ++i) {
      const OpenDocument& document = model_.documents()[i];
      if (document.state == OpenState::failed) continue;
      if (ImGui::MenuItem(fmt::format("{}{}###trace{}", document.path,
                                      document.live ? " (being written)" : "", i)
                              .c_str(),
                          nullptr, i == model_.selection().trace)) {
        Selection first;
        first.trace = i;
        model_.select(first);
      }
    }
    ImGui::Separator();
    if (ImGui::MenuItem("Close", "Ctrl+W")) model_.close(model_.selection().trace);
    if (ImGui::MenuItem("Quit", "Ctrl+Q")) window_.close();
    ImGui::EndMenu();
  }
  if (ImGui::BeginMenu("View")) {
    for (Panel& panel : panels_) ImGui::MenuItem(panel.name, nullptr, &panel.visible);
    ImGui::Separator();
    ImGui::MenuItem("Dark", "D", &appearance_.dark);
    if (ImGui::MenuItem("Default layout")) layout_pending_ = true;
    ImGui::EndMenu();
  }
  if (ImGui::BeginMenu("Colours")) {
    for (const std::string_view name : kColormapNames) {
      for (const char* suffix : {"", "_r"}) {
        const std::string full = std::string(name) + suffix;
        if (ImGui::MenuItem(full.c_str(), nullptr, full == appearance_.map)) appearance_.map = full;
      }
    }
    ImGui::EndMenu();
  }
  if (ImGui::MenuItem("Help")) help_ = !help_;
  ImGui::EndMainMenuBar();
}

void App::draw_status() {
  const ImGuiWindowFlags flags =
      ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoSavedSettings | ImGuiWindowFlags_MenuBar;
  if (!ImGui::BeginViewportSideBar("##status", nullptr, ImGuiDir_Down, ImGui::GetFrameHeight(),
                                   flags)) {
    return ImGui::End();
  }
  if (ImGui::BeginMenuBar()) {
    const Overview* overview = model_.overview();
    const StepRef* step = model_.step();
    if (overview == nullptr) {
      const bool opening = std::ranges::any_of(model_.documents(), [](const auto& document) {
        return document.state == OpenState::opening;
      });
      ImGui::TextUnformatted(opening ? "opening ..." : "drop a trace onto this window");
    } else if (step != nullptr) {
      const TraceMeta& meta = overview->info.meta;
      const auto sequence = static_cast<std::size_t>(step->sequence);
      const std::string& name = sequence < overview->sequence_names.size()
                                    ? overview->sequence_names[sequence]
                                    : std::string();
      ImGui::Text(
          "sequence %lld %s | block %d | step %d of %zu | layer %lld | head %lld | N %d | "
          "M %d | masks %d",
          static_cast<long long>(step->sequence), name.c_str(), step->block, step->step,
          model_.block()->steps.size(),
          static_cast<long long>(meta.layers[model_.selection().layer]),
          static_cast<long long>(meta.heads[model_.selection().head]), step->context_length,
          step->transferred, step->masks_left);
    }
    const char* right = model_.data().busy() ? "loading ..." : "F1 help";
    ImGui::SameLine(ImGui::GetWindowWidth() - ImGui::CalcTextSize(right).x -
                    12.0F * window_.scale());
    ImGui::TextDisabled("%s", right);
    ImGui::EndMenuBar();
  }
  ImGui::End();
}

void App::draw_problem() {
  if (!model_.problems().empty() && !ImGui::IsPopupOpen("Problem")) ImGui::OpenPopup("Problem");
  ImGui::SetNextWindowSize(ImVec2(520.0F * window_.scale(), 0.0F), ImGuiCond_Appearing);
  if (!ImGui::BeginPopupModal("Problem", nullptr, ImGuiWindowFlags_NoSavedSettings)) return;
  if (!model_.problems().empty()) ImGui::TextWrapped("%s", model_.problems().front().c_str());
  ImGui::Spacing();
  if (ImGui::Button("OK") || model_.problems().empty() ||
      ImGui::IsKeyPressed(ImGuiKey_Escape, false)) {
    model_.pop_problem();
    ImGui::CloseCurrentPopup();
  }
  ImGui::EndPopup();
}

void App::draw_help() {
  if (!help_) return;
  if (ImGui::Begin("Keys", &help_, ImGuiWindowFlags_AlwaysAutoResize)) {
    constexpr std::array<std::pair<const char*, const char*>, 9> kKeys = {
        {{"Left, Right", "one denoising step back, forward"},
         {"Space", "play, pause"},
         {"Up, Down", "layer"},
         {"[ and ]", "head"},
         {"PageUp, PageDown", "block"},
         {"D", "dark or light"},
         {"C", "next colour map"},
         {"Ctrl+W, Ctrl+Q", "close the trace, quit"},
         {"F1", "this list"}}};
    if (ImGui::BeginTable("keys", 2, ImGuiTableFlags_SizingFixedFit)) {
      for (const auto& [key, what] : kKeys) {
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(key);
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(what);
      }
      ImGui::EndTable();
    }
  }
  ImGui::End();
}

void App::shortcuts() {
  const ImGuiIO& io = ImGui::GetIO();
  if (io.WantTextInput) return;
  const auto pressed = [](ImGuiKey key) { return ImGui::IsKeyPressed(key); };
  if (io.KeyCtrl) {
    if (pressed(ImGuiKey_Q)) window_.close();
    if (pressed(ImGuiKey_W)) model_.close(model_.selection().trace);
    return;
  }
  if (pressed(ImGuiKey_F1)) help_ = !help_;
  if (pressed(ImGuiKey_D)) appearance_.dark = !appearance_.dark;
  if (pressed(ImGuiKey_Space)) state_.trajectory.playing = !state_.trajectory.playing;
  if (pressed(ImGuiKey_C)) {
    const auto found = std::ranges::find(kColormapNames, std::string_view(appearance_.map));
    const auto next = found == kColormapNames.end() ? 0 : found - kColormapNames.begin() + 1;
    appearance_.map = kColormapNames[static_cast<std::size_t>(next) % kColormapNames.size()];
  }
  if (model_.overview() == nullptr) return;
  if (pressed(ImGuiKey_RightArrow)) model_.move_step(1);
  if (pressed(ImGuiKey_LeftArrow)) model_.move_step(-1);
  Selection selection = model_.selection();
  if (pressed(ImGuiKey_DownArrow)) selection.layer += 1;
  if (pressed(ImGuiKey_UpArrow) && selection.layer > 0) selection.layer -= 1;
  if (pressed(ImGuiKey_RightBracket)) selection.head += 1;
  if (pressed(ImGuiKey_LeftBracket) && selection.head > 0) selection.head -= 1;
  if (pressed(ImGuiKey_PageDown)) selection.block += 1;
  if (pressed(ImGuiKey_PageUp) && selection.block > 0) selection.block -= 1;
  if (selection.block != model_.selection().block) selection.step = 0;
  if (selection != model_.selection()) model_.select(selection);
}

}  // namespace blockscope
