#include "viewer/panels/show_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

constexpr std::array<std::string_view, 3> kHeatmaps = {"tokens", "steps", "sets"};
constexpr std::array<std::string_view, 3> kScopes = {"trace", "sequence", "block"};
constexpr std::array<std::string_view, 4> kCompareModes = {"heads", "steps", "tokens", "queries"};
constexpr std::array<std::string_view, 2> kAgainstWords = {"read", "first"};
/// Curves that are no metric over steps.
constexpr std::array<std::string_view, 3> kCurveModes = {"heads", "recall-sizes", "unions"};

/// The Draft panel's text instead of its rounds.
constexpr std::string_view kDraftAnswer = "answer";

template <typename Names>
std::optional<std::size_t> index_in(const Names& names, std::string_view name) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) return std::nullopt;
  return static_cast<std::size_t>(found - names.begin());
}

/// Names of kPanelMetrics: those of their arrays in `analyze --json`.
std::vector<std::string_view> metric_names() {
  std::vector<std::string_view> names;
  for (const PanelMetric& choice : kPanelMetrics) names.emplace_back(choice.array);
  return names;
}

std::vector<std::string_view> draft_colour_names() {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < kDraftColours; ++i) {
    names.push_back(info_of(static_cast<DraftColour>(i)).name);
  }
  return names;
}

bool show(const std::string& what, const std::string& value, PanelState& state) {
  if (what == "scope") {
    const auto scope = index_in(kScopes, value);
    if (scope) state.heads.scope = state.curves.scope = static_cast<ViewModel::Scope>(*scope);
    return scope.has_value();
  }
  if (what == "heatmap") {
    const auto mode = index_in(kHeatmaps, value);
    if (mode) state.heatmap.mode = static_cast<int>(*mode);
    return mode.has_value();
  }
  if (what == "selection") {
    const auto against = index_in(kAgainstWords, value);
    if (against) state.selection.against = static_cast<KeysAgainst>(*against);
    return against.has_value();
  }
  if (what == "draft") {
    const auto colour = index_in(draft_colour_names(), value);
    if (colour) state.draft.colour = static_cast<DraftColour>(*colour);
    state.draft.answer = value == kDraftAnswer;
    return colour || state.draft.answer;
  }
  const auto metric = index_in(metric_names(), value);
  if (what == "compare") {
    const auto mode = index_in(kCompareModes, value);
    if (mode) state.compare.mode = static_cast<int>(*mode);
    return mode.has_value();
  }
  if (what == "heads") {
    if (metric) state.heads.metric = *metric;
    return metric.has_value();
  }
  if (what == "curves") {
    using Mode = PanelState::Curves::Mode;
    if (metric) {
      state.curves.mode = Mode::over_steps;
      state.curves.metric = *metric;
      return true;
    }
    const auto mode = index_in(kCurveModes, value);
    if (mode) state.curves.mode = static_cast<Mode>(*mode + 1);
    return mode.has_value();
  }
  return false;
}

}  // namespace

std::string show_text_help() {
  return fmt::format(
      "heads=METRIC, curves=METRIC or {}, heatmap={}, selection={}, draft={}|{}, compare={}, "
      "scope={}; "
      "METRIC: {}",
      fmt::join(kCurveModes, " or "), fmt::join(kHeatmaps, "|"), fmt::join(kAgainstWords, "|"),
      fmt::join(draft_colour_names(), "|"), kDraftAnswer, fmt::join(kCompareModes, "|"),
      fmt::join(kScopes, "|"), fmt::join(metric_names(), ", "));
}

void show_from_text(const std::string& text, PanelState& state) {
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto equals = part.find('=');
    if (equals == std::string::npos ||
        !show(part.substr(0, equals), part.substr(equals + 1), state)) {
      throw UsageError(fmt::format("--show: expected {}, separated by commas, got '{}'",
                                   show_text_help(), part));
    }
  }
}

}  // namespace blockscope
