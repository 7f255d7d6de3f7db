#include "probe/study/measured_reuse.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {

MeasuredReuse measured_reuse(const std::string& trace, int64_t block_length) {
  const TraceReader reader(trace);
  const TraceInfo& info = reader.info();
  if (info.meta.block_length != block_length) {
    throw TraceError(
        fmt::format("--trace: {}: expected a trace with B {}, got B {}. HINT: "
                    "--block-length {}",
                    trace, block_length, info.meta.block_length, info.meta.block_length));
  }
  if (!reader.has(Field::attention_reused)) {
    throw TraceError(fmt::format(
        "--trace: {}: expected /attention/reused, got a trace without it. HINT: capture --policy "
        "flashblock --record summary",
        trace));
  }
  const StepColumns steps = reader.steps(0, info.num_rows);
  std::set<std::pair<int32_t, int32_t>> blocks;
  int64_t denoising = 0;
  double reused = 0.0, cells = 0.0;
  for (int64_t row = 0; row < steps.count; ++row) {
    const auto i = static_cast<size_t>(row);
    if (static_cast<PassKind>(steps.kind[i]) != PassKind::denoise) continue;
    ++denoising;
    blocks.emplace(steps.sequence[i], steps.block[i]);
    if (steps.recorded[i] == 0) {
      throw TraceError(
          fmt::format("--trace: {}: expected every denoising step recorded, got row {} without. "
                      "HINT: capture without --steps, --blocks and --sequences",
                      trace, row));
    }
    // Some rows may read where all heads keep their pair (refresh=rows): the keys are read.
    const bool reads_rows = !steps.rows_read.empty() && steps.rows_read[i] > 0;
    for (const int32_t value : reader.read_ints(Field::attention_reused, row, 1)) {
      reused += reads_rows ? 0.0 : value;
      cells += 1.0;
    }
  }
  if (cells == 0.0) {
    throw TraceError(
        fmt::format("--trace: {}: expected recorded denoising steps, got none", trace));
  }
  return {static_cast<double>(denoising) / static_cast<double>(blocks.size()), reused / cells};
}

}  // namespace blockscope
