// The rules of a pass over traces: what a metric is shown, in which order, and from which rows.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include "analysis/metrics/metrics.h"
#include "analysis/pass/step_pass.h"
#include "decode_record/repack/repack.h"
#include "tests/analysis/trace_maker.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

using fixture::TempDir;
using testing::make_trace;
using testing::TraceMakerOptions;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::vector<ReuseRule> kRules{{2.0}, {kInfinity}, {2.0, ReuseCount::step}};

struct Call {
  std::int64_t row = -1, previous = -1, first = -1;
  std::vector<std::int64_t> sources;
  std::vector<float> now, before, start, lse;
  std::vector<std::vector<float>> source_values;
};

std::int64_t row_of(const StepRef* step) { return step == nullptr ? -1 : step->row; }

std::vector<float> floats(const ArrayView& view) {
  std::vector<float> values;
  if (!view.empty()) to_floats(view, values);
  return values;
}

/// Writes down every call.
class Recorder final : public StepMetric {
 public:
  Needs begin_trace(const TraceReader&, const TraceShape& shape) override {
    calls.resize(shape.layers.size());
    busy = std::vector<std::atomic<int>>(shape.layers.size());
    return {{Field::attention_external, Field::attention_lse_external}, true, true, kRules};
  }
  void add(const StepView& step) override {
    if (busy[step.layer()].fetch_add(1) != 0) overlapped = true;
    Call call;
    call.row = step.now().row;
    call.previous = row_of(step.previous());
    call.first = row_of(step.first());
    call.now = floats(step.now(Field::attention_external));
    call.before = floats(step.previous(Field::attention_external));
    call.start = floats(step.first(Field::attention_external));
    call.lse = floats(step.now(Field::attention_lse_external));
    for (const ReuseRule& rule : kRules) {
      call.sources.push_back(row_of(step.source(rule)));
      call.source_values.push_back(floats(step.source(Field::attention_external, rule)));
    }
    calls[step.layer()].push_back(std::move(call));
    busy[step.layer()].fetch_sub(1);
  }
  void add_block(const BlockSteps& block) override { steps += block.steps.size(); }
  MetricResult finish() override { return {}; }

  std::vector<std::vector<Call>> calls;  // [layer]
  std::vector<std::atomic<int>> busy;
  std::atomic<bool> overlapped = false;
  std::size_t steps = 0;
};

/// What the calls of one layer must be, from the columns of /steps alone.
std::vector<Call> expected_calls(const TraceReader& trace) {
  const StepColumns columns = trace.steps(0, trace.info().num_rows);
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::size_t>> blocks;
  std::vector<std::pair<std::int32_t, std::int32_t>> order;
  for (std::size_t row = 0; row < columns.kind.size(); ++row) {
    if (columns.kind[row] != 1 || trace.sequence(columns.sequence[row]).aborted) continue;
    const std::pair key{columns.sequence[row], columns.block[row]};
    if (blocks[key].empty()) order.push_back(key);
    blocks[key].push_back(row);
  }
  std::vector<Call> calls;
  for (const auto& key : order) {
    std::int64_t previous = -1;
    std::int64_t first = -1;
    std::vector<std::int64_t> sources(kRules.size(), -1);
    std::vector<std::int64_t> since(kRules.size(), 0);  // tokens decided since the last read
    for (const std::size_t row : blocks[key]) {
      const std::int64_t known = columns.recorded[row] != 0 ? static_cast<std::int64_t>(row) : -1;
      if (columns.step[row] == 1) first = known;
      for (std::size_t i = 0; i < kRules.size(); ++i) {
        if (kRules[i].count == ReuseCount::step) since[i] = 0;
        since[i] += columns.changed[row];
        if (columns.step[row] > 1 && static_cast<double>(since[i]) < kRules[i].tau) continue;
        sources[i] = known;
        since[i] = 0;
      }
      if (known >= 0) {
        Call call;
        call.row = known;
        call.previous = previous;
        call.first = first;
        call.sources = sources;
        calls.push_back(call);
      }
      previous = known;
    }
  }
  return calls;
}

std::vector<float> stored(const TraceReader& trace, std::int64_t row, std::size_t layer) {
  if (row < 0) return {};
  return trace.read_floats_at(Field::attention_external, row, static_cast<std::int64_t>(layer));
}

/// NaNs are equal here.
void expect_same(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_THAT(a, ::testing::Pointwise(::testing::NanSensitiveFloatEq(), b));
}

void check_calls(const Recorder& metric, const TraceReader& trace) {
  const std::vector<Call> expected = expected_calls(trace);
  ASSERT_FALSE(expected.empty());
  EXPECT_FALSE(metric.overlapped);
  for (std::size_t layer = 0; layer < metric.calls.size(); ++layer) {
    ASSERT_EQ(metric.calls[layer].size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const Call& call = metric.calls[layer][i];
      EXPECT_EQ(call.row, expected[i].row);
      EXPECT_EQ(call.previous, expected[i].previous);
      EXPECT_EQ(call.first, expected[i].first);
      EXPECT_EQ(call.sources, expected[i].sources);
      expect_same(call.now, stored(trace, call.row, layer));
      expect_same(call.before, stored(trace, call.previous, layer));
      expect_same(call.start, stored(trace, call.first, layer));
      expect_same(call.lse, trace.read_floats_at(Field::attention_lse_external, call.row,
                                                 static_cast<std::int64_t>(layer)));
      for (std::size_t t = 0; t < kRules.size(); ++t) {
        expect_same(call.source_values[t], stored(trace, call.sources[t], layer));
      }
    }
  }
}

std::vector<TraceMakerOptions> odd_traces() {
  TraceMakerOptions plain;
  plain.steps = 6;
  TraceMakerOptions interleaved = plain;
  interleaved.unequal = interleaved.interleaved = true;
  interleaved.sequences = 4;
  TraceMakerOptions filtered = interleaved;
  filtered.record_steps = {2, 3, 5, 6};
  filtered.record_layers = {0, 2};
  TraceMakerOptions aborted = plain;
  aborted.aborted = true;
  aborted.array_type = ArrayType::f32;
  return {plain, interleaved, filtered, aborted};
}

constexpr std::size_t kLittle = std::size_t{24} << 10U;

TEST(StepPass, ShowsEveryStepWithWhatCameBefore) {
  const TempDir folder;
  int number = 0;
  for (const TraceMakerOptions& options : odd_traces()) {
    const std::string path = folder.file(std::to_string(number++) + ".h5");
    make_trace(path, options);
    for (const std::size_t threads : {1U, 3U}) {
      // Little: not all layers at a time; the default: all layers of a step together.
      for (const std::size_t memory : {kLittle, PassOptions{}.memory_bytes}) {
        const TraceGroup traces({path});
        std::vector<std::unique_ptr<StepMetric>> metrics;
        metrics.push_back(std::make_unique<Recorder>());
        PassOptions pass;
        pass.threads = threads;
        pass.memory_bytes = memory;
        run_pass(traces, metrics, pass);
        check_calls(dynamic_cast<const Recorder&>(*metrics[0]), traces.trace(0));
      }
    }
  }
}

/// Runs a Recorder over the trace and checks its results.
void check_pass(const std::string& path, std::size_t threads) {
  const TraceGroup traces({path});
  std::vector<std::unique_ptr<StepMetric>> metrics;
  metrics.push_back(std::make_unique<Recorder>());
  PassOptions pass;
  pass.threads = threads;
  run_pass(traces, metrics, pass);
  check_calls(dynamic_cast<const Recorder&>(*metrics[0]), traces.trace(0));
}

TEST(StepPass, ReadsFromTheDiskAndWhatIsCompressedOrMerged) {
  const TempDir folder;
  TraceMakerOptions options;
  options.steps = 6;
  for (const std::uint64_t seed : {1U, 2U}) {
    options.seed = seed;
    make_trace(folder.file(std::to_string(seed) + ".h5"), options);
  }
  RepackOptions deflated;
  deflated.deflate = 1;
  repack_traces({folder.file("1.h5")}, folder.file("deflated.h5"), deflated);
  repack_traces({folder.file("1.h5"), folder.file("2.h5")}, folder.file("merged.h5"), {});
  for (const std::size_t threads : {1U, 3U}) {
    const int file = ::open(folder.file("1.h5").c_str(), O_RDONLY | O_CLOEXEC);
    ::fsync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
    for (const char* name : {"1.h5", "deflated.h5", "merged.h5"}) {
      check_pass(folder.file(name), threads);
    }
  }
}

/// Cuts the file off at its first call.
class Cutting final : public StepMetric {
 public:
  explicit Cutting(std::string path) : path_(std::move(path)) {}
  Needs begin_trace(const TraceReader&, const TraceShape&) override {
    return {{Field::attention_external}, true, false, {}};
  }
  void add(const StepView&) override {
    if (calls_++ == 0) std::filesystem::resize_file(path_, 4096);
  }
  MetricResult finish() override { return {}; }

 private:
  std::string path_;
  std::atomic<int> calls_ = 0;
};

TEST(StepPass, SaysThatAFileWasCutOffMeanwhile) {
  const TempDir folder;
  for (const std::size_t threads : {1U, 3U}) {
    const std::string path = folder.file(std::to_string(threads) + ".h5");
    make_trace(path, {});
    std::vector<std::unique_ptr<StepMetric>> metrics;
    metrics.push_back(std::make_unique<Cutting>(path));
    PassOptions pass;
    pass.threads = threads;
    try {
      run_pass(TraceGroup({path}), metrics, pass);
      FAIL() << "expected an error";
    } catch (const TraceError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(path));
    }
  }
}

TEST(StepPass, StopsWhenAskedTo) {
  const TempDir folder;
  make_trace(folder.file("a.h5"), {});
  std::vector<std::unique_ptr<StepMetric>> metrics;
  metrics.push_back(metric_by_name("similarity").make({}));
  PassOptions pass;
  std::int64_t told = -1;
  pass.progress = [&](std::int64_t, std::int64_t total) {
    told = total;
    return false;
  };
  EXPECT_THROW(run_pass(TraceGroup({folder.file("a.h5")}), metrics, pass), InterruptedError);
  EXPECT_EQ(told, 16);  // 2 sequences, 2 blocks, 4 steps
}

/// Throws at its third call.
class Failing final : public StepMetric {
 public:
  Needs begin_trace(const TraceReader&, const TraceShape&) override {
    return {{Field::attention_external}, true, false, {}};
  }
  void add(const StepView&) override {
    if (++calls_ == 3) throw TraceError("the third call");
  }
  MetricResult finish() override { return {}; }

 private:
  std::atomic<int> calls_ = 0;
};

TEST(StepPass, PassesOnWhatAMetricThrows) {
  const TempDir folder;
  make_trace(folder.file("a.h5"), {});
  std::vector<std::unique_ptr<StepMetric>> metrics;
  metrics.push_back(std::make_unique<Failing>());
  EXPECT_THROW(run_pass(TraceGroup({folder.file("a.h5")}), metrics), TraceError);
}

TEST(TraceGroup, RefusesTracesThatDiffer) {
  const TempDir folder;
  TraceMakerOptions options;
  make_trace(folder.file("a.h5"), options);
  options.block_length = 5;
  make_trace(folder.file("b.h5"), options);
  try {
    const TraceGroup traces({folder.file("a.h5"), folder.file("b.h5")});
    FAIL() << "expected a refusal";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                ::testing::AllOf(::testing::HasSubstr("block length"),
                                 ::testing::HasSubstr("expected 4"), ::testing::HasSubstr("got 5"),
                                 ::testing::HasSubstr("a.h5"), ::testing::HasSubstr("b.h5")));
  }
}

}  // namespace
}  // namespace blockscope
