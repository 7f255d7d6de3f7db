// figures(): the drawings of one result, as in the report.
#include <cstring>

#include "analysis/figures/figures.h"
#include "decode_record/base/error.h"
#include "python/bindings.h"
#include "python/drawing.h"

namespace blockscope::python {
namespace {

template <typename Value>
std::vector<Value> to_vector(const nb::handle& bytes) {
  const auto raw = nb::cast<nb::bytes>(bytes);
  std::vector<Value> values(raw.size() / sizeof(Value));
  if (!values.empty()) std::memcpy(values.data(), raw.c_str(), values.size() * sizeof(Value));
  return values;
}

ResultArray to_array(const nb::handle& item) {
  ResultArray array;
  array.name = nb::cast<std::string>(item["name"]);
  array.unit = nb::cast<std::string>(item["unit"]);
  array.description = nb::cast<std::string>(item["description"]);
  std::size_t cells = 1;
  for (const nb::handle axis : item["axes"]) {
    array.axes.push_back({nb::cast<std::string>(axis["name"]),
                          nb::cast<std::vector<double>>(axis["index"]),
                          nb::cast<std::vector<std::string>>(axis["labels"])});
    cells *= array.axes.back().size();
  }
  array.values = to_vector<double>(item["values"]);
  if (!item["terms"].is_none()) array.terms = to_vector<std::int64_t>(item["terms"]);
  if (array.values.size() != cells || (!array.terms.empty() && array.terms.size() != cells)) {
    throw UsageError(array.name + ": its values do not have the size of its axes");
  }
  return array;
}

}  // namespace

MetricResult to_result(const nb::dict& item) {
  MetricResult result;
  result.metric = nb::cast<std::string>(item["metric"]);
  result.title = nb::cast<std::string>(item["title"]);
  result.formula = nb::cast<std::string>(item["formula"]);
  result.source = nb::cast<std::string>(item["source"]);
  result.computed_from = nb::cast<std::string>(item["computed_from"]);
  for (const auto& [reason, count] : nb::cast<nb::dict>(item["left_out"])) {
    result.left_out[nb::cast<std::string>(reason)] = nb::cast<std::int64_t>(count);
  }
  for (const nb::handle array : item["arrays"]) result.arrays.push_back(to_array(array));
  return result;
}

namespace {

nb::list figures(const nb::dict& item, std::size_t threads, const nb::bytes& gnuplot,
                 const nb::bytes& search_path) {
  const std::vector<Figure> drawings = figures_of(to_result(item));
  if (drawings.empty()) return {};
  const Gnuplot drawer({.program = to_string(gnuplot), .search_path = to_string(search_path)});
  return to_list(drawings, render(drawer, drawings, threads));
}

}  // namespace

std::vector<RenderedFigure> render(const Gnuplot& drawer, const std::vector<Figure>& drawings,
                                   std::size_t threads) {
  PythonProgress signals{nb::none()};
  try {
    const nb::gil_scoped_release release;  // no trace is read
    return drawer.render_all(drawings, {.svg = true, .pdf = false, .png = false}, threads);
  } catch (...) {
    signals.rethrow();  // Ctrl-C also ends gnuplot
    throw;
  }
}

nb::list to_list(const std::vector<Figure>& drawings, const std::vector<RenderedFigure>& rendered) {
  nb::list drawn;
  for (std::size_t i = 0; i < drawings.size(); ++i) {
    drawn.append(nb::make_tuple(drawings[i].name, to_bytes(drawings[i].title),
                                to_bytes(drawings[i].caption), to_bytes(rendered[i].svg)));
  }
  return drawn;
}

void bind_figures(nb::module_& module) {
  module.def("figures", &figures, nb::arg("result"), nb::arg("threads"), nb::arg("gnuplot"),
             nb::arg("search_path"));
}

}  // namespace blockscope::python
