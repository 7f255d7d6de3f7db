// The report as one HTML file with style, figures, tables and a script inside. It loads no other
// file, so it opens on any machine. Without scripts and in print it shows everything but what the
// script adds. It has light and dark colours.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "analysis/figures/report_figure.h"

namespace blockscope {

/// Finished HTML.
struct ReportHtml {
  std::string html;
};

using ReportPart = std::variant<ReportFigure, ReportTable, ReportHtml>;

struct ReportSection {
  std::string id;
  std::string title;
  std::string lead;  ///< one to three sentences of plain text: what the section shows
  std::vector<ReportPart> parts;
};

struct ReportPage {
  std::string title;
  std::string subtitle;
  std::vector<std::string> findings;                       ///< plain sentences
  std::vector<std::pair<std::string, std::string>> facts;  ///< what ran: names and values
  std::vector<ReportSection> sections;
  std::string footer;
  std::string explore;  ///< script_json(explore_data()); empty: a page without a script
};

/// All figures of the page, in order. In page_html(), rendered[i] belongs to the i-th.
std::vector<Figure> figures_of(const ReportPage& page);

/// The whole file. `rendered`: figures_of(page), rendered as SVG.
std::string page_html(const ReportPage& page, const std::vector<RenderedFigure>& rendered);

}  // namespace blockscope
