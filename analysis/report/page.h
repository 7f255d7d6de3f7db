// The report as one HTML file: style, figures and tables inside, nothing loaded from elsewhere and
// no script, so that it opens on any machine, prints, and reads in light and dark.
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
  std::string lead;  ///< one or two sentences, plain text: what there is to see
  std::vector<ReportPart> parts;
};

struct ReportPage {
  std::string title;
  std::string subtitle;
  std::vector<std::string> findings;                       ///< plain sentences
  std::vector<std::pair<std::string, std::string>> facts;  ///< what ran: name, value
  std::vector<ReportSection> sections;
  std::string footer;
};

/// All figures of the page, in order; rendered[i] belongs to the i-th.
std::vector<Figure> figures_of(const ReportPage& page);

/// The whole file. `rendered`: figures_of(page), with SVG.
std::string page_html(const ReportPage& page, const std::vector<RenderedFigure>& rendered);

}  // namespace blockscope
