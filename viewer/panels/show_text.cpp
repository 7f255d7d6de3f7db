#include "viewer/panels/show_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "decode_record/base/error.h"
#include "viewer/model/panel_metrics.h"

namespace blockscope {
namespace {

using Words = std::vector<std::string_view>;

Words scope_words() { return {"trace", "sequence", "block"}; }

/// Names of panel_metrics(): the names of their arrays in `analyze --json`, and of their rows.
Words metric_names() {
  Words names;
  for (const PanelMetric& choice : panel_metrics()) names.emplace_back(choice.name);
  return names;
}

std::optional<std::size_t> index_in(const Words& words, std::string_view word) {
  const auto found = std::ranges::find(words, word);
  if (found == words.end()) return std::nullopt;
  return static_cast<std::size_t>(found - words.begin());
}

bool show_scope(const std::string& value, PanelStates& states) {
  const auto scope = index_in(scope_words(), value);
  if (!scope) return false;
  for (const Panel& panel : all_panels()) {
    if (panel.show.take_scope == nullptr) continue;
    panel.show.take_scope(states, static_cast<ViewModel::Scope>(*scope));
  }
  return true;
}

bool show(const std::string& name, const std::string& value, PanelStates& states) {
  if (name == "scope") return show_scope(value, states);
  const std::vector<Panel> panels = all_panels();
  const auto panel = std::ranges::find(panels, name, panel_key);
  if (panel == panels.end()) return false;
  const PanelShow& takes = panel->show;
  const auto metric = takes.take_metric != nullptr ? index_in(metric_names(), value) : std::nullopt;
  if (metric) {
    takes.take_metric(states, *metric);
    return true;
  }
  const auto word = index_in(takes.words, value);
  if (word) takes.take_word(states, *word);
  return word.has_value();
}

}  // namespace

std::string show_text_help() {
  // Panels that take a metric come first, because the text ends with the list of metrics.
  std::vector<std::string> metrics, others;
  for (const Panel& panel : all_panels()) {
    Words words = panel.show.words;
    if (panel.show.take_metric != nullptr) {
      words.insert(words.begin(), "METRIC");
      metrics.push_back(fmt::format("{}={}", panel_key(panel), fmt::join(words, " or ")));
    } else if (!words.empty()) {
      others.push_back(fmt::format("{}={}", panel_key(panel), fmt::join(words, "|")));
    }
  }
  return fmt::format("{}, {}, scope={}; METRIC: {}", fmt::join(metrics, ", "),
                     fmt::join(others, ", "), fmt::join(scope_words(), "|"),
                     fmt::join(metric_names(), ", "));
}

void show_from_text(const std::string& text, PanelStates& states) {
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto equals = part.find('=');
    if (equals == std::string::npos ||
        !show(part.substr(0, equals), part.substr(equals + 1), states)) {
      throw UsageError(fmt::format("--show: expected {}, separated by commas, got '{}'",
                                   show_text_help(), part));
    }
  }
}

}  // namespace blockscope
