#include "decode_record/interchange/loop_comparison.h"

#include <fmt/format.h>

#include "analysis/figures/figures.h"
#include "decode_record/base/text.h"

namespace blockscope {

ReportTable loop_comparison_table(const LoopComparison& found) {
  ReportTable table{.name = "measured",
                    .title = "Measured by blockscope.compare",
                    .caption = fmt::format(
                        "{} in the loop of {}; times are medians of {} runs; n = {}", found.label,
                        found.model, found.repetitions, plural(found.prompts, "prompt")),
                    .table = {{"", "exact", "policy"}, {}}};
  const auto add = [&](const std::string& name, const std::string& exact,
                       const std::string& policy) {
    table.table.rows.push_back({name, exact, policy});
  };
  add("whole run, s", fmt::format("{:.3f}", found.exact_seconds),
      fmt::format("{:.3f}", found.policy_seconds));
  add("external keys read", fmt::format("{}", found.key_rows),
      fmt::format("{}", found.key_rows_read));
  if (found.score) {
    add(found.score->metric, report_number(found.score->exact), report_number(found.score->policy));
  }
  if (found.output_difference) {
    add("difference of the outputs", "", report_number(*found.output_difference));
  }
  if (found.error_reused) {
    add("attention's error where it reuses", "", report_number(*found.error_reused));
  }
  for (const LoopComparison::StepError& step : found.by_step) {
    add(fmt::format("attention's error at step {}", step.step), "",
        report_number(step.relative_l2));
  }
  return table;
}

}  // namespace blockscope
