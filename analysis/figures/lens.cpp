#include "analysis/figures/figures.h"
#include "analysis/figures/head_map.h"

namespace blockscope {

std::optional<ReportFigure> lens_map(const MetricResult& result) {
  return head_map(result.array("lens_probability"),
                  {.name = "lens",
                   .title = "From which layer on the final token is predicted",
                   .caption = "Probability of the final token if the model ended before the layer: "
                              "{}. Mean over undecided positions and blocks.",
                   .value = "probability",
                   .columns = "step",
                   .x_label = "denoising step t"},
                  result.formula);
}

}  // namespace blockscope
