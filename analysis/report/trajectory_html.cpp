#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "analysis/figures/palette.h"
#include "analysis/figures/svg.h"
#include "analysis/report/html.h"
#include "analysis/report/trajectory.h"
#include "decode_record/read/end_of_text.h"

namespace blockscope {
namespace {

constexpr std::size_t kConfidenceColors = 10;

/// "c0" for [0, 0.1) to "c9" for [0.9, 1]; "cx" when the confidence is unknown.
std::string color_class(float confidence) {
  if (!std::isfinite(confidence)) return "cx";
  const double bin = std::floor(static_cast<double>(confidence) * kConfidenceColors);
  return fmt::format("c{}", static_cast<int>(std::clamp(bin, 0.0, kConfidenceColors - 1.0)));
}

std::string chip(const TraceReader& trace, const TrajectoryPosition& item) {
  const std::string text = escape_markup(token_text(trace, item.token));
  if (item.step == 0) {
    return fmt::format("<bdi class=\"known\" title=\"known before step 1\">{}</bdi>", text);
  }
  return fmt::format("<bdi class=\"{}\" title=\"position {}, step {}, confidence {}\">{}</bdi>",
                     color_class(item.confidence), item.position, item.step,
                     report_number(static_cast<double>(item.confidence), 3), text);
}

/// One cell for neighbouring steps that look the same.
std::string run_of_cells(std::string_view css_class, std::int32_t count) {
  if (count <= 0) return "";
  return fmt::format("<td class=\"{}\" colspan=\"{}\"></td>", css_class, count);
}

/// The end of the run of positions from `first` that all end the text; first + 1 without one.
std::size_t run_end(const EndOfText& ends, const TrajectoryBlock& block, std::size_t first,
                    std::size_t rows) {
  std::size_t end = first;
  const auto joins = [&](const TrajectoryPosition& item) {
    return item.step > 0 && item.events.size() == 1 && ends.contains(item.token);
  };
  while (end < rows && joins(block.positions[end])) {
    ++end;
  }
  return std::max(end, first + 1);
}

/// One mark for a run of tokens that end the text, at the first step that decided one.
std::string run_row(const TraceReader& trace, std::span<const TrajectoryPosition> run,
                    std::int32_t steps) {
  const auto [first, last] = std::ranges::minmax(run, {}, &TrajectoryPosition::step);
  const std::int32_t column = std::min(first.step, steps);
  return fmt::format(
             "<tr><th scope=\"row\">{}\u2013{}</th>{}<td class=\"token\"><bdi class=\"known\" "
             "title=\"positions {} to {}, steps {} to {}\">{} \u00d7 {}</bdi></td>",
             run.front().position, run.back().position, run_of_cells("mask", column - 1),
             run.front().position, run.back().position, first.step, last.step,
             escape_markup(token_text(trace, run.front().token)), run.size()) +
         run_of_cells("settled", steps - column) + "<td class=\"room\"></td></tr>\n";
}

/// The name of what a step did to a token, for readers and as the class of its cell.
std::string_view kind_name(ChangeKind kind) {
  constexpr std::array<std::string_view, 4> kNames{"decided", "edited", "taken back", "moved"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string event_cell(const TraceReader& trace, const TrajectoryPosition& item,
                       const TrajectoryEvent& event, std::int64_t before) {
  if (event.token < 0) {
    return fmt::format(
        "<td class=\"token\"><bdi class=\"gone\" title=\"position {}, step {}: \u201c{}\u201d {}\">"
        "\u00d7</bdi></td>",
        item.position, event.step, escape_markup(token_text(trace, before)), kind_name(event.kind));
  }
  TrajectoryPosition shown = item;
  shown.token = event.token;
  shown.step = event.step;
  shown.confidence = event.confidence;
  if (event.kind == ChangeKind::decided) {
    return fmt::format("<td class=\"token\">{}</td>", chip(trace, shown));
  }
  return fmt::format("<td class=\"token {}\" title=\"{}, was {}\">{}</td>", kind_name(event.kind),
                     kind_name(event.kind),
                     before < 0 ? "undecided" : escape_markup(token_text(trace, before)),
                     chip(trace, shown));
}

std::string position_row(const TraceReader& trace, const TrajectoryPosition& item,
                         std::int32_t steps) {
  std::string html = fmt::format("<tr><th scope=\"row\">{}</th>", item.position);
  std::int64_t held = -1;  // the token after `column` columns
  std::int32_t column = 0;
  const auto fill_to = [&](std::int32_t end) {
    html += run_of_cells(held < 0 ? "mask" : "settled", end - column);
    column = std::max(column, end);
  };
  for (std::size_t i = 0; i < item.events.size(); ++i) {
    const TrajectoryEvent& event = item.events[i];
    if (event.step > steps) break;
    if (event.step == 0 && i + 1 < item.events.size() && item.events[i + 1].step == 1) {
      held = event.token;  // a known token has the first column, which its change takes
      continue;
    }
    fill_to(event.step - 1);
    html += event_cell(trace, item, event, held);
    held = event.token;
    ++column;
  }
  fill_to(steps);
  return html + "<td class=\"room\"></td></tr>\n";
}

std::string block_table(const TraceReader& trace, const EndOfText& ends,
                        const TrajectoryBlock& block, const TrajectoryLimits& limits) {
  const std::int32_t steps = std::max(1, std::min(block.num_steps, limits.steps));
  const std::size_t rows = std::min(block.positions.size(), limits.positions);
  std::string left_out;
  if (rows < block.positions.size()) {
    left_out += fmt::format(", first {} of {} positions", rows, block.positions.size());
  }
  if (steps < block.num_steps) left_out += fmt::format(", first {} steps", steps);
  const auto label = [&](std::size_t i) { return block.positions[i].position; };
  std::string html = fmt::format(
      "<table class=\"trajectory\"><caption>Block {}: {}{}{}</caption>\n<thead><tr>"
      "<th scope=\"col\">position</th>",
      block.block,
      rows == 0 ? "" : fmt::format("positions {}\u2013{}, ", label(0), label(rows - 1)),
      counted(block.num_steps, "step", "steps"), left_out);
  for (std::int32_t step = 1; step <= steps; ++step) {
    html += fmt::format("<th scope=\"col\">{}</th>", step);
  }
  html += "<th class=\"room\"></th></tr></thead><tbody>\n";
  for (std::size_t i = 0, end = 0; i < rows; i = end) {
    end = run_end(ends, block, i, rows);
    html += end == i + 1 ? position_row(trace, block.positions[i], steps)
                         : run_row(trace, std::span(block.positions).subspan(i, end - i), steps);
  }
  return html + "</tbody></table>\n";
}

/// The last tokens of the prompt as one text, with an ellipsis for the others.
std::string prompt_end(const TraceReader& trace, const SequenceInfo& sequence,
                       std::size_t num_tokens) {
  const std::size_t size = sequence.prompt.size();
  const std::size_t first = size - std::min(size, num_tokens);
  std::string text;
  for (std::size_t i = first; i < size; ++i) {
    text += trace.num_pieces() == 0 ? fmt::format("#{} ", sequence.prompt[i])
                                    : trace.piece(sequence.prompt[i]);
  }
  return first > 0 ? fmt::format("\u2026 {}", text) : text;
}

std::string facts_html(const std::vector<std::pair<std::string, std::string>>& facts) {
  std::string html = "<dl class=\"facts\">\n";
  for (const auto& [name, text] : facts) {
    html += fmt::format("<dt>{}</dt><dd><bdi>{}</bdi></dd>\n", escape_markup(name),
                        escape_markup(text));
  }
  return html + "</dl>\n";
}

/// `edits`: a step changes tokens that were decided before.
std::string legend(bool edits) {
  std::string html = "<p class=\"legend\"><span>confidence</span>";
  for (std::size_t i = 0; i < kConfidenceColors; ++i) {
    html += fmt::format("<span class=\"c{}\">{}</span>", i,
                        i + 1 == kConfidenceColors ? "0.9\u20131" : fmt::format("0.{}", i));
  }
  html += "<span class=\"known\">prompt</span><span class=\"dots\"><span>undecided</span></span>";
  if (edits) {
    html +=
        "<span class=\"edited\">edited</span><span class=\"moved\">moved by an insertion or "
        "deletion</span><span class=\"gone\">\u00d7 taken back</span>";
  }
  return html + "</p>\n";
}

/// Interpolates viridis linearly in sRGB, which is fine enough for ten colours.
std::array<int, 3> viridis_at(double share) {
  const double place = share * static_cast<double>(kViridis.size() - 1);
  const auto low = std::min(static_cast<std::size_t>(place), kViridis.size() - 2);
  const double part = place - static_cast<double>(low);
  std::array<int, 3> color{};
  for (std::size_t channel = 0; channel < 3; ++channel) {
    const auto value = [&](std::size_t stop) {
      return std::stoi(std::string(kViridis[stop].substr(1 + 2 * channel, 2)), nullptr, 16);
    };
    color[channel] =
        static_cast<int>(std::lround(value(low) + part * (value(low + 1) - value(low))));
  }
  return color;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> sequence_facts(const TraceReader& trace,
                                                                const SequenceInfo& sequence,
                                                                const TrajectoryLimits& limits) {
  std::vector<std::pair<std::string, std::string>> facts;
  if (!sequence.name.empty()) facts.emplace_back("Sequence", sequence.name);
  facts.emplace_back(
      "Prompt",
      fmt::format("{} ({})", prompt_end(trace, sequence, limits.prompt_tokens),
                  counted(static_cast<std::int64_t>(sequence.prompt.size()), "token", "tokens")));
  facts.emplace_back("Generated", sequence.text.empty() ? "(no text yet)" : sequence.text);
  if (!sequence.answer.empty()) facts.emplace_back("Expected", sequence.answer);
  if (std::isfinite(sequence.score)) {
    facts.emplace_back(sequence.metric.empty() ? "Score" : sequence.metric,
                       report_number(static_cast<double>(sequence.score), 2));
  }
  return facts;
}

std::string trajectory_html(const TraceReader& trace, const std::vector<BlockSteps>& blocks,
                            std::size_t shown, const TrajectoryLimits& limits) {
  if (blocks.empty()) return html_paragraph("The trace has no denoising steps.", "note");
  const SequenceInfo sequence = trace.sequence(blocks.front().sequence);
  // Start at the chosen block, or earlier if fewer blocks than the limit follow it.
  const std::size_t latest = blocks.size() - std::min(blocks.size(), limits.blocks);
  const std::size_t first = std::min(shown, latest);
  const std::size_t last = std::min(blocks.size(), first + limits.blocks);
  const EndOfText ends(trace);
  std::string tables;
  bool edits = false;
  for (std::size_t i = first; i < last; ++i) {
    const TrajectoryBlock block = trajectory_of(trace, blocks[i]);
    for (const TrajectoryPosition& item : block.positions) {
      edits = edits || std::ranges::any_of(item.events, [](const TrajectoryEvent& event) {
                return event.kind != ChangeKind::decided;
              });
    }
    tables += block_table(trace, ends, block, limits);
  }
  std::string html = "<div class=\"still\">\n" +
                     facts_html(sequence_facts(trace, sequence, limits)) + legend(edits) +
                     "<div class=\"trajectories\">\n" + tables + "</div>\n";
  if (last - first < blocks.size()) {
    html += html_paragraph(
        fmt::format("Shown: {} of the sequence's {}. --sequence and --block choose others.",
                    counted(static_cast<std::int64_t>(last - first), "block", "blocks"),
                    blocks.size()),
        "note");
  }
  return html + "</div>\n";
}

std::string steps_html(const TraceReader& trace, const std::vector<BlockSteps>& blocks) {
  if (blocks.empty()) return html_paragraph("The trace has no denoising steps.", "note");
  constexpr std::size_t kMostBlocks = 64;
  constexpr std::int32_t kMostSteps = 16;
  std::int32_t steps = 0;
  for (const BlockSteps& block : blocks) steps = std::max(steps, block.steps.back().step);
  const std::int32_t shown = std::min(steps, kMostSteps);
  std::string html =
      "<div class=\"scroll\">\n<table class=\"numbers\"><thead><tr><th scope=\"col\">block</th>"
      "<th scope=\"col\">position</th><th scope=\"col\">external keys</th>";
  for (std::int32_t step = 1; step <= shown; ++step) {
    html += fmt::format("<th scope=\"col\">step {}</th>", step);
  }
  html += "</tr></thead><tbody>\n";
  for (const BlockSteps& block : std::span(blocks).first(std::min(blocks.size(), kMostBlocks))) {
    const StepRef& first = block.steps.front();
    html += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td>", block.block,
                        first.block_start, first.context_length);
    for (const StepRef& step : block.steps) {
      if (step.step > shown) break;
      html += fmt::format("<td>{:g}</td>",
                          trace.read_floats(Field::step_timestep, step.row, 1).front());
    }
    html += "</tr>\n";
  }
  html += "</tbody></table>\n";
  if (blocks.size() > kMostBlocks || steps > shown) {
    html += html_paragraph(fmt::format("Shown: the first {} of {} and {} steps of a block.",
                                       std::min(blocks.size(), kMostBlocks),
                                       counted(std::ssize(blocks), "block", "blocks"), shown),
                           "note");
  }
  return html + "</div>\n";
}

std::string trajectory_css() {
  std::string css = R"(.trajectories{display:flex;flex-wrap:wrap;gap:1.5rem 2rem;overflow-x:auto}
.trajectory{border-collapse:collapse;table-layout:fixed;font-size:12px;width:max-content}
.trajectory caption{text-align:left;font-weight:600;padding-bottom:.3rem}
.trajectory caption span{position:sticky;left:0}
.trajectory th{font-weight:400;color:var(--faint);text-align:right;padding:0 .4rem 0 0;
width:3.6rem;font-variant-numeric:tabular-nums}
.trajectory thead th+th{width:21px;text-align:center;padding:0}
.trajectory th[scope=row]{white-space:nowrap}
.trajectory td{height:20px;padding:0}
.trajectory thead th.room,.trajectory td.room{width:5.5rem}
.trajectory td.token{position:relative;overflow:visible}
.trajectory bdi{position:absolute;left:1px;top:1px;line-height:18px;white-space:pre;
padding:0 5px;border-radius:3px;z-index:1}
.trajectory td.mask{background:radial-gradient(circle,var(--line) 1.6px,transparent 2px)
center left/21px 20px repeat-x}
.trajectory td.settled{background:linear-gradient(var(--line),var(--line)) center/100% 1px no-repeat}
.trajectory td.edited>*,.legend .edited,.text .edited{outline:2px solid #d55e00}
.trajectory td.moved>*,.legend .moved,.text .moved{outline:1px dashed #0072b2}
.gone{color:#d55e00}
.trajectory bdi.gone{background:var(--ground)}
.known{background:var(--soft);color:var(--text)}
.cx{background:var(--soft);color:var(--text);outline:1px dashed var(--line)}
.legend{display:flex;flex-wrap:wrap;gap:2px;font-size:12px;align-items:center}
.legend span{padding:1px 7px;border-radius:3px}
.legend .dots{background:radial-gradient(circle,var(--line) 1.6px,transparent 2px) left/9px 20px
repeat-x content-box;padding-left:.4rem}
.legend .dots span{background:var(--ground);margin-left:27px;padding:0 .3rem}
)";
  for (std::size_t i = 0; i < kConfidenceColors; ++i) {
    const std::array<int, 3> color =
        viridis_at(static_cast<double>(i) / static_cast<double>(kConfidenceColors - 1));
    // Rec. 709 luma: black text from the middle of viridis on.
    const double luma = 0.2126 * color[0] + 0.7152 * color[1] + 0.0722 * color[2];
    css += fmt::format(".c{}{{background:#{:02x}{:02x}{:02x};color:{}}}\n", i, color[0], color[1],
                       color[2], luma > 120.0 ? "#000" : "#fff");
  }
  return css;
}

}  // namespace blockscope
