// A trace of one sequence whose tokens are decided one a step from the left; 9 is the stop token.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/write/trace_writer.h"

namespace blockscope::testing {

inline TraceMeta eleven_tokens() {
  TraceMeta meta;
  meta.num_layers = meta.num_heads = meta.num_kv_heads = 1;
  meta.head_dim = meta.hidden_size = 2;
  meta.vocab_size = 11;
  meta.mask_token_id = 10;
  meta.softmax_scale = 1.0;
  meta.block_length = 4;
  meta.record_everything();
  return meta;
}

inline std::string end_of_text_trace(const std::string& path,
                                     const std::vector<std::int64_t>& tokens) {
  TraceMeta meta = eleven_tokens();
  meta.run_json = R"({"version":"test","stop_ids":[9]})";
  meta.pieces = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "</s>", "_"};
  TraceWriter writer(path, meta);
  SequenceStart start;
  start.prompt = {1, 2};
  start.gen_length = static_cast<std::int64_t>(tokens.size());
  const std::int64_t sequence = writer.begin_sequence(std::move(start));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    TraceRow row;
    row.sequence = sequence;
    row.pass = static_cast<std::int64_t>(i);
    row.kind = PassKind::denoise;
    row.block = static_cast<std::int64_t>(i) / 4;
    row.block_start = 2 + 4 * row.block;
    row.step = static_cast<std::int64_t>(i) % 4 + 1;
    row.delta = make_transfer({static_cast<std::int64_t>(i)}, {tokens[i]}, {0.5F});
    writer.append_row(std::move(row));
  }
  writer.end_sequence(sequence, {});
  writer.finish();
  return path;
}

}  // namespace blockscope::testing
