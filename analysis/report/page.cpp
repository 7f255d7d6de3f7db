#include "analysis/report/page.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <span>

#include "analysis/figures/svg.h"
#include "analysis/report/attention_html.h"
#include "analysis/report/explore.h"
#include "analysis/report/html.h"
#include "analysis/report/trajectory.h"
#include "decode_record/base/sha256.h"

namespace blockscope {
namespace {

constexpr std::string_view kCss = R"(:root{color-scheme:light dark;--text:#1b1f24;--faint:#656d76;
--line:#c9ced6;--soft:#eef1f4;--ground:#ffffff;--accent:#0072b2}
@media (prefers-color-scheme:dark){:root{--text:#e6e9ed;--faint:#9aa4af;--line:#48505a;
--soft:#262c33;--ground:#14181d;--accent:#56b4e9}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--text);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",sans-serif}
main{max-width:1020px;margin:0 auto;padding:2.5rem 1.5rem 4rem}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 .2rem;overflow-wrap:anywhere}
h2{font-size:1.3rem;margin:3rem 0 .3rem;padding-top:.8rem;border-top:1px solid var(--line)}
.subtitle,.lead,.note{color:var(--faint)}
.subtitle{margin:0 0 1.5rem}.lead{margin:.2rem 0 1rem;max-width:46rem}.note{font-size:.875rem}
.findings{list-style:none;margin:0 0 1.5rem;padding:.9rem 1.2rem;background:var(--soft);
border-left:4px solid var(--accent);border-radius:0 6px 6px 0;font-size:1.08rem}
.findings li{margin:.4rem 0}
nav{font-size:.9rem;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:1.2rem 0}
a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.2rem;margin:0 0 1rem;
font-size:.9rem}
.facts dt{color:var(--faint)}.facts dd{margin:0;overflow-wrap:anywhere}
figure{margin:1.2rem 0 2rem;break-inside:avoid}
figcaption{font-size:.9rem;color:var(--faint);max-width:52rem;margin-top:.5rem}
figcaption b{color:var(--text)}
.drawing{display:block;width:100%;height:auto;font-family:inherit}
.scroll{overflow-x:auto}
.frames th{font-size:.72rem;font-weight:400;text-align:left;padding-right:.6rem;white-space:nowrap}
.frames td{padding:1px}
.frames img{display:block;width:64px;image-rendering:pixelated}
table.numbers{border-collapse:collapse;font-size:.82rem;font-variant-numeric:tabular-nums;
margin:.5rem 0}
.numbers th,.numbers td{padding:.18rem .7rem;text-align:right;border-bottom:1px solid var(--line);
white-space:nowrap}
.numbers th[scope=row],.numbers th:first-child{text-align:left;font-weight:600}
.numbers thead th{border-bottom:2px solid var(--line)}
sub{font-size:.75em;line-height:0}
.prose th,.prose td{white-space:normal;text-align:left;vertical-align:top}
table.wide{font-size:.95rem}
details{font-size:.85rem;margin:.4rem 0}summary{cursor:pointer;color:var(--accent)}
footer{margin-top:3rem;padding-top:1rem;border-top:1px solid var(--line);color:var(--faint);
font-size:.85rem}
@media print{:root{--text:#000;--faint:#444;--line:#bbb;--soft:#f0f0f0;--ground:#fff;
color-scheme:light}body{font-size:11pt}main{max-width:none;padding:0}nav{display:none}
h2,.lead{break-after:avoid}details{display:none}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
)";

/// The digest of the page's script, in base64. The page allows no other script to run, whatever a
/// token or a prompt contains.
std::string script_digest() {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  Sha256 digest;
  digest.update(std::span(reinterpret_cast<const std::uint8_t*>(kExploreScript.data()),
                          kExploreScript.size()));
  const std::array<std::uint8_t, 32> bytes = digest.finish();
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t word = 0;
    for (std::size_t k = 0; k < 3; ++k) word = word << 8U | (i + k < 32 ? bytes[i + k] : 0U);
    for (std::size_t k = 0; k < 4; ++k) text += kDigits[word >> (18U - 6U * k) & 63U];
  }
  text.back() = '=';  // 32 bytes are two more than a multiple of three
  return text;
}

std::string script_html(const ReportPage& page, const std::vector<Figure>& figures) {
  if (page.explore.empty()) return "";
  nlohmann::json plots;
  for (const Figure& figure : figures) plots[figure.name] = plots_of(figure);
  return fmt::format(
      "<script type=\"application/json\" id=\"explore-data\">{}</script>\n"
      "<script type=\"application/json\" id=\"explore-plots\">{}</script>\n"
      "<script>{}</script>\n",
      page.explore, script_json(plots), kExploreScript);
}

std::string table_figure(const ReportTable& table, std::size_t number) {
  return fmt::format(
      "<figure id=\"{}\"><div class=\"scroll\">{}</div><figcaption><b>Table {}. {}.</b> {}"
      "</figcaption></figure>\n",
      escape_markup(table.name),
      html_table(table.table, table.prose ? "numbers prose" : "numbers wide"), number,
      html_prose(table.title), html_prose(table.caption));
}

std::string drawn_figure(const ReportFigure& part, const RenderedFigure& rendered,
                         std::size_t number) {
  const std::string numbers =
      part.numbers.empty() ? "" : html_details("The numbers", html_table(part.numbers));
  return fmt::format(
      "<figure id=\"{}\">\n{}<figcaption><b>Figure {}. {}.</b> {}</figcaption>\n{}</figure>\n",
      escape_markup(part.figure.name), inline_svg(rendered.svg, part.figure.name), number,
      html_prose(part.figure.title), html_prose(part.figure.caption), numbers);
}

/// Numbers figures and tables through the whole page.
class PartWriter {
 public:
  explicit PartWriter(const std::vector<RenderedFigure>& rendered) : rendered_(rendered) {}

  std::string operator()(const ReportFigure& part) {
    const std::size_t index = figures_++;
    return drawn_figure(part, rendered_.at(index), index + 1);
  }
  std::string operator()(const ReportTable& part) { return table_figure(part, ++tables_); }
  std::string operator()(const ReportHtml& part) { return part.html; }

 private:
  const std::vector<RenderedFigure>& rendered_;
  std::size_t figures_ = 0;
  std::size_t tables_ = 0;
};

std::string header_html(const ReportPage& page) {
  std::string html = fmt::format("<h1>{}</h1>\n<p class=\"subtitle\">{}</p>\n",
                                 escape_markup(page.title), escape_markup(page.subtitle));
  if (!page.findings.empty()) {
    html += "<ul class=\"findings\">\n";
    for (const std::string& finding : page.findings) {
      html += fmt::format("<li>{}</li>\n", html_prose(finding));
    }
    html += "</ul>\n";
  }
  html += "<dl class=\"facts\">\n";
  for (const auto& [name, value] : page.facts) {
    html += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escape_markup(name), escape_markup(value));
  }
  html += "</dl>\n<nav>\n";
  for (const ReportSection& section : page.sections) {
    html += fmt::format("<a href=\"#{}\">{}</a>\n", escape_markup(section.id),
                        escape_markup(section.title));
  }
  return html + "</nav>\n";
}

}  // namespace

std::vector<Figure> figures_of(const ReportPage& page) {
  std::vector<Figure> figures;
  for (const ReportSection& section : page.sections) {
    for (const ReportPart& part : section.parts) {
      if (const auto* drawing = std::get_if<ReportFigure>(&part)) {
        figures.push_back(drawing->figure);
      }
    }
  }
  return figures;
}

std::string page_html(const ReportPage& page, const std::vector<RenderedFigure>& rendered) {
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; "
      "style-src "
      "'unsafe-inline'; script-src 'sha256-{}'\">\n"
      "<title>{}</title>\n<style>\n{}{}{}</style>\n</head>\n<body>\n<main>\n",
      script_digest(), escape_markup(page.title), kCss, trajectory_css() + attention_css(),
      page.explore.empty() ? "" : kExploreStyle);
  html += header_html(page);
  PartWriter write(rendered);
  for (const ReportSection& section : page.sections) {
    html += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n", escape_markup(section.id),
                        escape_markup(section.title));
    if (!section.lead.empty()) html += html_paragraph(section.lead, "lead");
    for (const ReportPart& part : section.parts) html += std::visit(write, part);
    html += "</section>\n";
  }
  html += fmt::format("<footer>{}</footer>\n</main>\n{}</body>\n</html>\n",
                      escape_markup(page.footer), script_html(page, figures_of(page)));
  return html;
}

}  // namespace blockscope
