// Times the set metrics for scripts/bench/sets_torch.py, which runs torch on the same data:
//   bench_sets make --output T.h5 [--rows 24 --layers 4 --kv-heads 8 --block 32 --k 512
//                                  --context 32768]
//   bench_sets metric --trace T.h5 --metric recall [--threads T --repeat 5]
// `make` writes a trace of level full that holds sets and little else. The other prints JSON:
// the best time in seconds, and numbers to compare the results by.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "analysis/metrics/metrics.h"
#include "decode_record/write/trace_writer.h"
#include "tests/support/seed.h"

namespace blockscope {
namespace {

using Flags = std::map<std::string, std::string>;
using testing::SeededRandom;

std::int64_t integer(const Flags& flags, const std::string& name, std::int64_t otherwise) {
  const auto found = flags.find(name);
  return found == flags.end() ? otherwise : std::stoll(found->second);
}

/// k of n positions: mostly the first ones of a shuffled order, so that sets overlap as real ones.
class SetSource {
 public:
  SetSource(std::uint64_t seed, std::int64_t n, std::int64_t k)
      : random_(seed), order_(static_cast<std::size_t>(n)), k_(static_cast<std::size_t>(k)) {
    std::iota(order_.begin(), order_.end(), 0);
    shuffle(order_.size());
  }
  void append(std::vector<std::int32_t>& out) {
    // One in eight members is replaced each time, and their order changes.
    for (std::size_t i = 0; i < k_ / 8 + 1; ++i) {
      std::swap(order_[below(k_)], order_[below(order_.size())]);
      std::swap(order_[below(k_)], order_[below(k_)]);
    }
    out.insert(out.end(), order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(k_));
  }

 private:
  std::size_t below(std::size_t size) { return static_cast<std::size_t>(random_.next() % size); }
  void shuffle(std::size_t size) {
    for (std::size_t i = size; i > 1; --i) std::swap(order_[i - 1], order_[below(i)]);
  }
  SeededRandom random_;
  std::vector<std::int32_t> order_;
  std::size_t k_;
};

TraceMeta bench_meta(const Flags& flags) {
  TraceMeta meta;
  meta.num_layers = integer(flags, "layers", 4);
  meta.num_kv_heads = integer(flags, "kv-heads", 8);
  meta.num_heads = meta.num_kv_heads;
  meta.head_dim = 2;
  meta.hidden_size = 2;
  meta.vocab_size = 10;
  meta.mask_token_id = 9;
  meta.softmax_scale = 1.0;
  meta.block_length = integer(flags, "block", 32);
  meta.level = RecordLevel::full;
  meta.record_everything();
  meta.set_size = integer(flags, "k", 512);
  meta.run_json = R"({"version":"test","policy":"exact","decoding":"block_diffusion"})";
  return meta;
}

void add_sets(TraceRow& row, const TraceMeta& meta, std::vector<SetSource>& sources) {
  const auto heads = static_cast<std::size_t>(meta.num_kv_heads);
  for (std::int64_t layer = 0; layer < meta.num_layers; ++layer) {
    std::vector<std::int32_t> block_sets, token_sets;
    std::vector<float> probability;
    for (std::size_t head = 0; head < heads; ++head) {
      SetSource& source = sources[static_cast<std::size_t>(layer) * heads + head];
      source.append(block_sets);
      for (std::int64_t i = 0; i < meta.block_length; ++i) source.append(token_sets);
      for (std::int64_t j = 0; j < meta.set_size; ++j) {
        probability.push_back(1.0F / static_cast<float>(2 * meta.set_size + j));
      }
    }
    row.arrays.push_back({Field::set_topk, layer, make_buffer(std::move(block_sets))});
    row.arrays.push_back({Field::set_probability, layer, make_buffer(std::move(probability))});
    row.arrays.push_back({Field::set_topk_token, layer, make_buffer(std::move(token_sets))});
  }
}

void make_trace(const Flags& flags) {
  const TraceMeta meta = bench_meta(flags);
  const std::int64_t context = integer(flags, "context", 32768);
  TraceWriterOptions options;
  options.force = true;
  TraceWriter writer(flags.at("output"), meta, options);
  const std::int64_t rows = integer(flags, "rows", 24);
  SequenceStart start;
  start.prompt.assign(static_cast<std::size_t>(context), 1);
  start.gen_length = rows;
  const std::int64_t sequence = writer.begin_sequence(start);
  std::vector<SetSource> sources;
  for (std::int64_t i = 0; i < meta.num_layers * meta.num_kv_heads; ++i) {
    sources.emplace_back(static_cast<std::uint64_t>(i) + 1, context, meta.set_size);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    TraceRow row;
    row.sequence = sequence;
    row.pass = r;
    row.kind = PassKind::denoise;
    row.block = 0;
    row.block_start = context;
    row.step = r + 1;
    row.context_length = context;
    row.changed = r == 0 ? 0 : 1;
    row.masks_left = std::max<std::int64_t>(meta.block_length - r, 0);
    row.recorded = true;
    row.delta = make_transfer({r}, {1}, {0.5F});
    add_sets(row, meta, sources);
    writer.append_row(std::move(row));
  }
  writer.end_sequence(sequence, {FinishReason::length, "", std::nullopt});
  writer.finish();
}

/// Best of some runs, in seconds.
double best_time(std::int64_t repeat, const std::function<void()>& body) {
  double best = std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < repeat; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count());
  }
  return best;
}

nlohmann::json time_metric(const Flags& flags) {
  const std::string name = flags.at("metric");
  const TraceGroup group({flags.at("trace")});
  PassOptions options;
  options.threads = static_cast<std::size_t>(integer(flags, "threads", 0));
  MetricOptions metric_options;
  metric_options.set_sizes = {group.shape().set_size};
  MetricResult result;
  const double seconds = best_time(integer(flags, "repeat", 5), [&] {
    std::vector<std::unique_ptr<StepMetric>> metrics;
    metrics.push_back(metric_by_name(name).make(metric_options));
    result = run_pass(group, metrics, options).at(0);
  });
  std::vector<double> means = mean_over_others(result.array(name), {"layer"}).values;
  if (name == "recall") {
    const std::vector<double> covered = mean_over_others(result.array("covered"), {"layer"}).values;
    means.insert(means.end(), covered.begin(), covered.end());
  }
  return {{"seconds", seconds}, {"means", means}};
}

int run(const std::vector<std::string>& words) {
  Flags flags;
  for (std::size_t i = 1; i + 1 < words.size(); i += 2) flags[words[i].substr(2)] = words[i + 1];
  const std::string command = words.empty() ? "" : words[0];
  if (command == "make") {
    make_trace(flags);
  } else if (command == "metric") {
    std::cout << time_metric(flags) << "\n";
  } else {
    throw UsageError("bench_sets: expected make or metric; see the top of bench_sets.cpp");
  }
  return 0;
}

}  // namespace
}  // namespace blockscope

int main(int argc, char** argv) {
  try {
    return blockscope::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
