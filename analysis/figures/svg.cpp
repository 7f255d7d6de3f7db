#include "analysis/figures/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <optional>
#include <vector>

#include "analysis/figures/gnuplot.h"
#include "decode_record/base/error.h"

namespace blockscope {
namespace {

/// Groups with at least so many cells are heatmaps and colour bars, in which cells don't overlap.
constexpr std::size_t kHeatmapCells = 64;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::size_t at = 0;
  while ((at = text.find(from, at)) != std::string::npos) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
}

/// The text between `open` and `close`, searched from `at`; nullopt if it is not found.
std::optional<std::string_view> between(std::string_view text, std::string_view open,
                                        std::string_view close) {
  const std::size_t first = text.find(open);
  if (first == std::string_view::npos) return std::nullopt;
  const std::size_t start = first + open.size();
  const std::size_t end = text.find(close, start);
  if (end == std::string_view::npos) return std::nullopt;
  return text.substr(start, end - start);
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1);
    lines.push_back(text.substr(0, end + 1));
    text.remove_prefix(end + 1);
  }
  return lines;
}

std::string without_spaces(std::string_view text) {
  std::string packed;
  std::ranges::copy_if(text, std::back_inserter(packed), [](char c) { return c != ' '; });
  return packed;
}

/// `<polygon fill = 'rgb(1, 2, 3)' points = 'x,y x,y ...'/>`: adds "Mx,y x,y ...z" to its colour.
bool add_polygon(std::string_view line, std::vector<std::pair<std::string, std::string>>& colors) {
  const auto fill = between(line, "fill = '", "'");
  const auto points = between(line, "points = '", "'");
  if (!fill || !points || line.find("fill-opacity") != std::string_view::npos) return false;
  const std::string color = without_spaces(*fill);
  auto known = std::ranges::find(colors, color, &std::pair<std::string, std::string>::first);
  if (known == colors.end()) {
    colors.emplace_back(color, "");
    known = colors.end() - 1;
  }
  std::string_view path = *points;
  while (path.ends_with(' ')) path.remove_suffix(1);
  known->second += fmt::format("M{}z", path);
  return true;
}

bool is_polygon(std::string_view line) { return line.starts_with("\t\t<polygon fill = "); }

/// One path per colour for lines[first, last), or the lines as they are.
std::string gather_cells(const std::vector<std::string_view>& lines, std::size_t first,
                         std::size_t last) {
  std::vector<std::pair<std::string, std::string>> colors;
  std::string kept;
  bool understood = last - first >= kHeatmapCells;
  for (std::size_t i = first; i < last; ++i) {
    understood = understood && add_polygon(lines[i], colors);
    kept += lines[i];
  }
  if (!understood) return kept;
  std::string paths;
  for (const auto& [color, path] : colors) {
    paths += fmt::format("<path fill='{}' d='{}'/>\n", color, path);
  }
  return paths;
}

bool is_empty_group(const std::vector<std::string_view>& lines, std::size_t i) {
  return i + 1 < lines.size() && lines[i].starts_with("<g ") && lines[i].ends_with(">\n") &&
         lines[i + 1] == "</g>\n";
}

/// `<g id="gnuplot_plot_1" ><title>...</title>`: the tool tip of a curve.
std::string without_tool_tip(std::string_view line) {
  std::string text(line);
  const std::size_t open = text.find("<title>");
  const std::size_t close = text.find("</title>");
  if (open != std::string::npos && close != std::string::npos && close > open) {
    text.erase(open, close + std::string_view("</title>").size() - open);
  }
  return text;
}

/// A marker of gnuplot's point types 1 to 15 (ids gpPt0 to gpPt14), around 0,0.
struct Marker {
  std::string_view path;
  bool filled;
};
constexpr std::string_view kCircle = "M-1,0a1,1 0 1,0 2,0a1,1 0 1,0 -2,0z";
constexpr std::string_view kSquare = "M-1,-1h2v2h-2z";
constexpr std::string_view kTriangle = "M0,-1.33 -1.33,.67 1.33,.67z";
constexpr std::string_view kDownward = "M0,1.33 -1.33,-.67 1.33,-.67z";
constexpr std::string_view kDiamond = "M0,-1.41 1.41,0 0,1.41 -1.41,0z";
constexpr std::string_view kPentagon = "M0,-1.33 1.265,-.411 .782,1.067 -.782,1.076 -1.265,-.411z";
constexpr std::array<Marker, 15> kMarkers{{{"M-1,0h2M0,-1v2", false},
                                           {"M-1,-1L1,1M1,-1L-1,1", false},
                                           {"M-1,0h2M0,-1v2M-1,-1L1,1M-1,1L1,-1", false},
                                           {kSquare, false},
                                           {kSquare, true},
                                           {kCircle, false},
                                           {kCircle, true},
                                           {kTriangle, false},
                                           {kTriangle, true},
                                           {kDownward, false},
                                           {kDownward, true},
                                           {kDiamond, false},
                                           {kDiamond, true},
                                           {kPentagon, false},
                                           {kPentagon, true}}};

/// gnuplot refers to a marker's shape and gives its colour as `color`. Some programs draw such
/// markers black, so each becomes a path with its own fill.
std::string with_own_markers(std::string line) {
  constexpr std::string_view kUse = "<use xlink:href='#gpPt";
  for (std::size_t at = 0; (at = line.find(kUse, at)) != std::string::npos;) {
    const std::size_t end = line.find("/>", at);
    if (end == std::string::npos) break;
    const std::string_view use = std::string_view(line).substr(at, end - at);
    const auto place = between(use, "transform='", "'");
    const auto color = between(use, "color='", "'");
    const std::size_t marker = std::strtoul(line.c_str() + at + kUse.size(), nullptr, 10);
    if (!place || !color || marker >= kMarkers.size()) {
      at = end;
      continue;
    }
    const std::string shown = without_spaces(*color);
    const std::string path =
        fmt::format("<path class='point' transform='{}' d='{}' {}", *place, kMarkers[marker].path,
                    kMarkers[marker].filled
                        ? fmt::format("fill='{}' stroke='none'", shown)
                        : fmt::format("fill='none' stroke='{}' stroke-width='0.25'", shown));
    line.replace(at, end - at, path);
    at += path.size();
  }
  return line;
}

/// The shapes of markers, which no part of the drawing refers to any more.
void remove_markers(std::string& svg) {
  if (svg.find("<use xlink:href='#gpPt", svg.find("</defs>")) != std::string::npos) return;
  std::size_t at = svg.find("<defs>");
  while ((at = svg.find("id='gp", at)) != std::string::npos && at < svg.find("</defs>")) {
    const std::size_t first = svg.rfind('\n', at) + 1;
    svg.erase(first, svg.find('\n', at) + 1 - first);
    at = first;
  }
}

void put_between(std::string& svg, std::string_view open, std::string_view close,
                 std::string_view content) {
  const std::size_t first = svg.find(open);
  const std::size_t last = svg.find(close);
  if (first == std::string::npos || last == std::string::npos || last < first) return;
  const std::size_t start = first + open.size();
  svg.replace(start, last - start, content);
}

}  // namespace

std::string escape_markup(std::string_view text) {
  std::string escaped;
  for (const char c : printable_utf8(text)) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string tidy_svg(std::string_view svg, std::string_view title, std::string_view description) {
  const std::vector<std::string_view> lines = split_lines(svg);
  std::string tidy;
  tidy.reserve(svg.size());
  bool in_body = false;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (in_body && is_empty_group(lines, i)) {
      ++i;
    } else if (is_polygon(lines[i])) {
      std::size_t last = i;
      while (last < lines.size() && is_polygon(lines[last])) ++last;
      tidy += gather_cells(lines, i, last);
      i = last - 1;
    } else {
      tidy += in_body ? with_own_markers(without_tool_tip(lines[i])) : std::string(lines[i]);
    }
    in_body = in_body || lines[i].find("</desc>") != std::string_view::npos;
  }
  remove_markers(tidy);
  put_between(tidy, "<title>", "</title>", escape_markup(title));
  put_between(tidy, "<desc>", "</desc>", escape_markup(description));
  return tidy;
}

std::string inline_svg(std::string_view svg, std::string_view prefix) {
  const auto width = between(svg, " width=\"", "\"");
  const auto view_box = between(svg, "viewBox=\"", "\"");
  const auto title = between(svg, "<title>", "</title>");
  const std::size_t body = svg.find("<g id=\"gnuplot_canvas\">");
  if (!width || !view_box || !title || body == std::string_view::npos) {
    throw Error(
        "svg: expected a drawing by gnuplot's svg terminal, got another format. HINT: "
        "check that `gnuplot --version` says 5.4 or newer");
  }
  std::string part(svg.substr(body));
  const std::size_t background = part.find("<rect x=\"0\" y=\"0\"");
  if (background != std::string::npos) {
    part.erase(background, part.find("/>", background) + 2 - background);
  }
  for (const std::string_view black : {"rgb(  0,   0,   0)", "rgb(0,0,0)"}) {
    replace_all(part, black, "currentColor");
  }
  for (const std::string_view quote : {"\"", "'"}) {
    for (const std::string_view attribute : {"fill", "stroke", "color"}) {
      replace_all(part, fmt::format(" {}={}black{}", attribute, quote, quote),
                  fmt::format(" {}={}currentColor{}", attribute, quote, quote));
    }
    replace_all(part, fmt::format("id={}", quote), fmt::format("id={}{}-", quote, prefix));
    replace_all(part, fmt::format("href={}#", quote), fmt::format("href={}#{}-", quote, prefix));
  }
  replace_all(part, "url(#", fmt::format("url(#{}-", prefix));
  // xlink:href needs a namespace that HTML pages need not declare; href is SVG 2.
  replace_all(part, "xlink:href", "href");
  return fmt::format(
      "<svg class=\"drawing\" role=\"img\" aria-label=\"{}\" viewBox=\"{}\" "
      "style=\"max-width:{}px\">\n{}",
      *title, *view_box, *width, part);
}

}  // namespace blockscope
