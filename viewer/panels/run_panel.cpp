// The Run panel: everything about the model, the run and the file.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <imgui.h>

#include <nlohmann/json.hpp>

#include "decode_record/base/text.h"
#include "decode_record/interchange/imported_trajectory.h"
#include "viewer/panels/panels.h"

namespace blockscope {
namespace {

void row(const char* name, const std::string& value) {
  ImGui::TableNextRow();
  ImGui::TableNextColumn();
  ImGui::TextDisabled("%s", name);
  ImGui::TableNextColumn();
  ImGui::TextWrapped("%s", value.c_str());
}

bool begin_table(const char* title) {
  if (!ImGui::CollapsingHeader(title, ImGuiTreeNodeFlags_DefaultOpen)) return false;
  if (!ImGui::BeginTable(title, 2, ImGuiTableFlags_SizingStretchProp | ImGuiTableFlags_RowBg)) {
    return false;
  }
  ImGui::TableSetupColumn("name", ImGuiTableColumnFlags_WidthStretch, 1.0F);
  ImGui::TableSetupColumn("value", ImGuiTableColumnFlags_WidthStretch, 2.2F);
  return true;
}

/// Shortens text that an import kept of its file: it can be long, and every frame draws it.
std::string cut(std::string text) {
  constexpr std::size_t kMost = 2000;
  if (text.size() <= kMost) return text;
  return fmt::format("{}... ({} bytes; info --json has all)", text.substr(0, kMost), text.size());
}

void json_table(const char* title, const std::string& text) {
  constexpr std::size_t kMostParsed = std::size_t{256} << 10;
  if (!begin_table(title)) return;
  if (text.size() > kMostParsed) {
    row("text", cut(text));
    ImGui::EndTable();
    return;
  }
  const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  if (json.is_object()) {
    for (const auto& [name, value] : json.items()) {
      row(name.c_str(), cut(value.is_string() ? value.get<std::string>() : value.dump()));
    }
  } else {
    row("text", text);
  }
  ImGui::EndTable();
}

void draw_run_panel(PanelContext& context) {
  const Overview* overview = context.model.overview();
  if (overview == nullptr) return explain_missing("No trace is open.");
  const TraceInfo& info = overview->info;
  const TraceMeta& meta = info.meta;
  if (begin_table("File")) {
    row("path", info.path);
    row("state", info.complete  ? "complete"
                 : info.partial ? "unfinished: still being written, or cut off"
                                : "cut off; every committed row is here");
    row("size",
        fmt::format("{:.1f} MiB, schema {}",
                    static_cast<double>(info.file_bytes) / (1024.0 * 1024.0), info.format_version));
    row("level", std::string(to_string(meta.level)));
    row("rows", fmt::format("{} in {}, {}", info.num_rows, plural(info.num_sequences, "sequence"),
                            plural(std::ssize(overview->blocks), "block")));
    const DataService& data = context.model.data();
    row("cache",
        fmt::format("{:.1f} of {} MiB", static_cast<double>(data.cached_bytes()) / 1048576.0,
                    data.budget_bytes() >> 20U));
    ImGui::EndTable();
  }
  if (begin_table("Shape")) {
    if (knows_model_shape(meta)) {
      row("layers", fmt::format("{} recorded of {}", meta.layers.size(), meta.num_layers));
      row("query heads", fmt::format("{} recorded of {}", meta.heads.size(), meta.num_heads));
      row("KV heads", fmt::format("{} recorded of {}", meta.kv_heads.size(), meta.kv_heads_text()));
      row("head_dim", fmt::format("{}, hidden size {}", meta.head_dim_text(), meta.hidden_size));
      if (!meta.window_text().empty()) row("windows", meta.window_text());
    } else {
      row("layers, heads", "not in the file that the trace was imported from");
    }
    row("vocabulary", meta.noise_canvas
                          ? fmt::format("{}, noise instead of masks", meta.vocab_size)
                          : fmt::format("{}, mask token {}", meta.vocab_size, meta.mask_token_id));
    row("block length", std::to_string(meta.block_length));
    row("top-k sets", meta.set_size > 0 ? fmt::format("k = {}", meta.set_size) : "none");
    ImGui::EndTable();
  }
  json_table("Run", meta.run_json);
  json_table("Model", meta.model_json);
}

std::optional<CsvTable> run_panel_table(PanelContext& context) {
  const Overview* overview = context.model.overview();
  if (overview == nullptr) return std::nullopt;
  CsvTable table({"part", "name", "value"});
  const TraceInfo& info = overview->info;
  table.add({std::string("file"), std::string("path"), info.path});
  table.add({std::string("file"), std::string("rows"), info.num_rows});
  table.add({std::string("file"), std::string("sequences"), info.num_sequences});
  for (const auto& [part, text] :
       {std::pair("run", &info.meta.run_json), std::pair("model", &info.meta.model_json)}) {
    const auto json = nlohmann::ordered_json::parse(*text, nullptr, false);
    if (!json.is_object()) continue;
    for (const auto& [name, value] : json.items()) {
      table.add(
          {std::string(part), name, value.is_string() ? value.get<std::string>() : value.dump()});
    }
  }
  return table;
}

}  // namespace

Panel run_panel() {
  return {.name = "Run",
          .draw = draw_run_panel,
          .table = run_panel_table,
          .part = SelectionPart::trace};
}

}  // namespace blockscope
