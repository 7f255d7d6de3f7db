// report(): the page of `blockscope report`, and its figures.
#include "analysis/report/report.h"
#include "python/bindings.h"
#include "python/drawing.h"

namespace blockscope::python {
namespace {

/// "html", "title", "findings", and "figures": name, title, caption and SVG of each.
nb::dict report(const std::vector<nb::bytes>& traces, const nb::bytes& title,
                std::optional<std::int64_t> layer, std::optional<std::int64_t> head,
                std::optional<std::int64_t> sequence, std::optional<std::int64_t> block,
                const nb::bytes& backbone, const nb::bytes& compare,
                const std::vector<nb::dict>& own, std::size_t threads, const nb::bytes& gnuplot,
                const nb::bytes& search_path, nb::object progress) {
  ReportOptions options;
  options.title = to_string(title);
  options.layer = layer;
  options.head = head;
  options.sequence = sequence;
  options.block = block;
  options.backbone = to_string(backbone);
  options.compare = to_string(compare);
  for (const nb::dict& one : own) options.own.push_back(to_result(one));
  options.threads = threads;
  const Gnuplot drawer({.program = to_string(gnuplot), .search_path = to_string(search_path)});
  PythonProgress shown(std::move(progress));
  options.progress = shown.callback();
  const ReportPage page = run_shown(shown, [&, paths = to_strings(traces)] {
    close_unfinished();
    const TraceGroup group(paths);
    return make_report(group, options);
  });
  const std::vector<Figure> drawings = figures_of(page);
  const std::vector<RenderedFigure> rendered = render(drawer, drawings, threads);
  nb::list findings;
  for (const std::string& finding : page.findings) findings.append(to_bytes(finding));
  nb::dict result;
  result["title"] = to_bytes(page.title);
  result["html"] = to_bytes(page_html(page, rendered));
  result["findings"] = findings;
  result["figures"] = to_list(drawings, rendered);
  return result;
}

}  // namespace

void bind_report(nb::module_& module) {
  module.def("report", &report, nb::arg("traces"), nb::arg("title"), nb::arg("layer").none(),
             nb::arg("head").none(), nb::arg("sequence").none(), nb::arg("block").none(),
             nb::arg("backbone"), nb::arg("compare"), nb::arg("own"), nb::arg("threads"),
             nb::arg("gnuplot"), nb::arg("search_path"), nb::arg("progress").none());
}

}  // namespace blockscope::python
