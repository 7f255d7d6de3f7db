#include <fmt/format.h>

#include <cmath>

#include "analysis/figures/figures.h"
#include "analysis/figures/terms.h"

namespace blockscope {
namespace {

/// The arrow shows the better direction: S1 to S4 lower (closer to step 1), recall higher.
std::string stage_title(const ResultAxis& stages, std::size_t i) {
  return stages.label(i) + (i + 1 == stages.size() ? " \u2191" : " \u2193");
}

std::string cell(double value, const ResultArray& array, const std::vector<std::size_t>& at) {
  const std::string terms = terms_text(array, at);
  return terms.empty() || terms == "0" ? report_number(value)
                                       : fmt::format("{} (n = {})", report_number(value), terms);
}

NumberTable one_model(const ResultArray& stages) {
  NumberTable table{{"stage", "mean over steps t > 1", "n"}, {}};
  for (std::size_t i = 0; i < stages.axes[0].size(); ++i) {
    table.rows.push_back(
        {stage_title(stages.axes[0], i), report_number(stages.values[i]), terms_text(stages, {i})});
  }
  return table;
}

NumberTable two_models(const ResultArray& stages, const ResultArray* change) {
  const ResultAxis& models = stages.axes[1];
  NumberTable table{{"stage"}, {}};
  for (std::size_t m = models.size(); m-- > 0;) table.header.push_back(models.label(m));
  if (change != nullptr) table.header.emplace_back("change");
  for (std::size_t i = 0; i < stages.axes[0].size(); ++i) {
    std::vector<std::string> row{stage_title(stages.axes[0], i)};
    for (std::size_t m = models.size(); m-- > 0;) {
      row.push_back(cell(stages.at({i, m}), stages, {i, m}));
    }
    if (change != nullptr) {
      const double share = change->values.at(i);
      row.push_back(std::isfinite(share) ? fmt::format("{:+.0f} %", 100.0 * share) : "\u2013");
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace

std::optional<ReportTable> query_stages(const MetricResult& result) {
  const ResultArray& stages = result.array("stages");
  if (range_of(stages).empty()) return std::nullopt;
  ReportTable part;
  part.name = "query-stages";
  const bool compared = stages.axes.size() == 2;
  part.title = compared ? "Five stages, trained model and its backbone"
                        : "Five stages from predictions to key sets";
  part.table = compared ? two_models(stages, result.find("relative_change")) : one_model(stages);
  part.caption =
      "Differences between step 1 (all undecided) and later steps. S1: KL divergence of the "
      "predictions at undecided positions, in nats. S2: L2 gap of unit-normalised hidden states. "
      "S3: L2 gap of queries, per position. S4: L2 gap of the block's mean query. S5: recall of "
      "step 1's top-k set. The arrows show the direction in which step 1 predicts later steps "
      "better. As MAGE, Table 2.";
  if (compared) {
    part.caption +=
        " Both models saw the same frames (--replay). The change is relative to the backbone.";
  }
  return part;
}

}  // namespace blockscope
