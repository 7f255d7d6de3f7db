// Traces of one layer and one head whose sets and summaries a test writes down by hand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "analysis/metrics/metrics.h"
#include "decode_record/write/trace_writer.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope::testing {

constexpr const char* kSmallRun =
    R"({"version":"test","policy":"exact","strategy":"threshold","threshold":0.9})";

struct SmallStep {
  std::int64_t block = 0;
  std::int64_t step = 1;
  std::int64_t context_length = 10;
  std::int64_t changed = 0;
  std::vector<std::int64_t> decides = {};  ///< positions after the prompt
  std::int64_t token = 1;                  ///< what they become
  std::map<Field, std::vector<std::int32_t>> ints = {};
  std::map<Field, std::vector<float>> floats = {};
  bool recorded = true;
  std::vector<std::uint8_t> valid = {};  ///< [block]; empty: all
};

class SmallSetTrace {
 public:
  SmallSetTrace(std::string path, std::int64_t block_length, std::int64_t k,
                RecordLevel level = RecordLevel::full, std::string run_json = kSmallRun,
                std::int64_t selected_size = 0,  ///< of a sparse policy, with exact attention too
                std::int64_t num_experts = 0)    ///< a router chooses two of them
      : path_(std::move(path)),
        meta_(make_meta(block_length, k, level, std::move(run_json), selected_size, num_experts)),
        writer_(path_, meta_) {}

  std::int64_t sequence(std::vector<std::int64_t> prompt = {1, 2}) {
    SequenceStart start;
    prompt_length_ = static_cast<std::int64_t>(prompt.size());
    start.prompt = std::move(prompt);
    // Long enough for the contexts that the tests make up.
    start.gen_length = std::max<std::int64_t>(4 * meta_.block_length, 16);
    return sequence_ = writer_.begin_sequence(std::move(start));
  }

  void add(const SmallStep& step) {
    TraceRow row;
    row.sequence = sequence_;
    row.pass = pass_++;
    row.kind = PassKind::denoise;
    row.block = step.block;
    row.block_start = prompt_length_ + step.block * meta_.block_length;
    row.step = step.step;
    row.context_length = step.context_length;
    row.changed = step.changed;
    row.masks_left = meta_.block_length;
    row.recorded = step.recorded;
    row.valid = step.valid;
    row.delta = make_transfer(step.decides, std::vector(step.decides.size(), step.token),
                              std::vector(step.decides.size(), 0.5F));
    for (const auto& [field, values] : step.ints) {
      row.arrays.push_back({field, kAllLayers, make_buffer(values)});
    }
    for (const auto& [field, values] : step.floats) {
      row.arrays.push_back({field, kAllLayers, make_buffer(values)});
    }
    writer_.append_row(std::move(row));
  }

  void end(float score, FinishReason reason = FinishReason::length) {
    writer_.end_sequence(sequence_, {reason, "", score});
  }

  std::string finish() {
    writer_.finish();
    return path_;
  }

 private:
  static TraceMeta make_meta(std::int64_t block_length, std::int64_t k, RecordLevel level,
                             std::string run_json, std::int64_t selected_size,
                             std::int64_t num_experts) {
    TraceMeta meta = fixture::small_meta(level, ArrayType::f32);
    meta.has_cache = false;  // its rows say nothing of one
    meta.num_layers = meta.num_heads = meta.num_kv_heads = 1;
    meta.head_dim = meta.hidden_size = 2;
    meta.block_length = block_length;
    meta.set_size = k;
    meta.run_json = std::move(run_json);
    meta.selected_size = selected_size;
    meta.has_shadow = selected_size > 0;
    meta.num_experts = num_experts;
    meta.experts_per_token = num_experts > 0 ? 2 : 0;
    meta.record_everything();
    return meta;
  }

  std::string path_;
  TraceMeta meta_;
  TraceWriter writer_;
  std::int64_t sequence_ = 0, pass_ = 0, prompt_length_ = 0;
};

inline MetricResult run(const std::string& name, const std::vector<std::string>& paths,
                        const MetricOptions& options = {}) {
  std::vector<std::unique_ptr<StepMetric>> metrics;
  metrics.push_back(metric_by_name(name).make(options));
  return run_pass(TraceGroup(paths), metrics).at(0);
}

template <typename Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace blockscope::testing
