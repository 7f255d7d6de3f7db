// Decodes with the tiny model while a Recorder writes a trace, and opens the trace.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/read/trace_reader.h"
#include "decode_record/write/trace_writer.h"
#include "probe/record/late_recorder.h"
#include "probe/record/recorder.h"
#include "tests/support/tiny_model.h"

namespace blockscope::testing {

inline RecorderOptions recorder_options(const ModelConfig& config, RecordLevel level,
                                        const DecodeOptions& decode = tiny_options()) {
  RecorderOptions options;
  TraceMeta& meta = options.meta;
  meta.num_layers = config.num_layers;
  meta.num_heads = config.num_heads;
  meta.num_kv_heads = config.num_kv_heads;
  meta.head_dim = config.head_dim;
  meta.hidden_size = config.hidden_size;
  meta.vocab_size = config.vocab_size;
  meta.mask_token_id = decode.mask_token_id;
  meta.logit_shift = decode.autoregressive() ? 1 : 0;
  meta.softmax_scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  meta.block_length = decode.block_length();
  meta.level = level;
  meta.record_everything();
  meta.has_since_read = true;
  meta.set_size = level >= RecordLevel::sets ? 5 : 0;
  meta.array_type = ArrayType::f32;
  options.autoregressive = decode.autoregressive();
  return options;
}

struct RecordedRun {
  std::vector<DecodeOutcome> outcomes;
  TraceReader trace;
};

/// `recorded`: the sequences that the recorder gets; empty means all.
inline RecordedRun record_run(const BlockDiffusionModel& model, AttentionPolicy& policy,
                              const DecodeOptions& decode,
                              const std::vector<DecodeRequest>& requests,
                              const RecorderOptions& options, const std::string& path,
                              const std::set<int64_t>& recorded = {}) {
  std::vector<DecodeOutcome> outcomes;
  {
    TraceWriter writer(path, options.meta);
    Recorder recorder(options, writer);
    std::map<int64_t, int64_t> traced;
    for (const DecodeRequest& request : requests) {
      if (!recorded.empty() && recorded.count(request.sequence) == 0) continue;
      const int64_t length = static_cast<int64_t>(request.prompt.size());
      SequenceStart start;
      start.name = "sequence " + std::to_string(request.sequence);
      start.prompt = request.prompt;
      start.gen_length = generated_positions(length, request.gen_length, decode);
      traced[request.sequence] = writer.begin_sequence(std::move(start));
      recorder.begin_sequence(request.sequence, traced[request.sequence], length);
    }
    LateRecorder late(recorder, model.device());
    outcomes = decode_all(model, policy, decode, requests, &late);
    late.drain();
    for (const DecodeOutcome& outcome : outcomes) {
      if (traced.count(outcome.sequence) == 0) continue;
      writer.end_sequence(traced[outcome.sequence], {outcome.reason, "", {}});
    }
    writer.finish();
  }
  return {std::move(outcomes), TraceReader(path)};
}

inline std::vector<double> doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

}  // namespace blockscope::testing
