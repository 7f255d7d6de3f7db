// Times the attention map of the first recorded row, layer and head of a trace of level full:
//   bench_attention_map TRACE
// Prints milliseconds as JSON, the least of 50 runs: `keys`, reading the keys outside the block;
// `map`, the weights from them, with reading the block's queries and keys.
// scripts/bench/attention_map.py compares them with torch.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

#include "analysis/metrics/attention_map.h"
#include "decode_record/base/error.h"

namespace blockscope {
namespace {

std::int64_t first_recorded_row(const TraceReader& trace) {
  const StepColumns steps = trace.steps(0, trace.info().num_rows);
  for (std::size_t row = 0; row < steps.kind.size(); ++row) {
    if (steps.kind[row] == 1 && steps.recorded[row] != 0) return static_cast<std::int64_t>(row);
  }
  throw TraceError(trace.info().path + ": expected a recorded denoising row, got none");
}

template <typename Work>
double least_milliseconds(const Work& work) {
  double least = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 50; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::milli> passed =
        std::chrono::steady_clock::now() - begin;
    least = std::min(least, passed.count());
  }
  return least;
}

int run(const char* path) {
  const TraceReader trace(path);
  const std::int64_t row = first_recorded_row(trace);
  KeysOutside keys;
  const double reading = least_milliseconds([&] { keys = keys_outside(trace, row, 0, 0); });
  const double reading_block = least_milliseconds([&] {
    (void)trace.read_floats_at(Field::query, row, 0);
    (void)trace.read_floats_at(Field::block_key, row, 0);
  });
  AttentionMap map;
  const double computing = least_milliseconds([&] { map = attention_map(trace, row, 0, 0, keys); });
  fmt::print("{{\"row\": {}, \"num_keys\": {}, \"keys\": {}, \"block\": {}, \"map\": {}}}\n", row,
             map.num_keys(), reading, reading_block, computing);
  return 0;
}

}  // namespace
}  // namespace blockscope

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: bench_attention_map TRACE\n", stderr);
    return 2;
  }
  try {
    return blockscope::run(argv[1]);
  } catch (const blockscope::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
