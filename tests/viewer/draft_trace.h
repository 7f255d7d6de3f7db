// A drafted trace whose rounds are written down here: what the Draft panel must show of it can be
// counted by hand.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/write/trace_writer.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope::testing {

inline constexpr std::int64_t kDraftPrompt = 3;  // tokens

/// Tokens of block positions 1 to `drafted`, up to B - 1; without any, the round is the target's
/// pass alone.
struct DraftedRound {
  std::vector<std::int32_t> drafted, target;  ///< -1: not recorded
  std::int32_t accepted = 0;
  std::int64_t next = -1;  ///< the token after the accepted ones; -1: none in the answer
  bool judged = true;      ///< false: neither ranks nor probabilities nor entropies
};

/// The numbers of position p in row `row`, as the trace has them.
inline std::int32_t rank_at(std::int64_t row, std::int64_t p) {
  return static_cast<std::int32_t>((row * 3 + p * p) % 100);
}
inline float share_at(std::int64_t row, std::int64_t p) {
  return static_cast<float>((row * 5 + p * 3) % 17) / 32.0F;
}

class DraftTrace {
 public:
  explicit DraftTrace(std::string path, std::int64_t block_length = 4)
      : path_(std::move(path)), meta_(make_meta(block_length)), writer_(path_, meta_) {}

  /// A prompt of kDraftPrompt tokens, and the prefill's row, which has the answer's first token.
  std::int64_t sequence(std::int64_t gen_length, std::int64_t first_token) {
    SequenceStart start;
    start.name = "task-" + std::to_string(sequence_ + 1);
    start.prompt = {1, 2, 3};
    start.gen_length = gen_length;
    sequence_ = writer_.begin_sequence(std::move(start));
    gen_length_ = gen_length;
    position_ = block_ = 0;
    TraceRow row = make_row(PassKind::prefill);
    row.block = -1;
    row.delta = make_transfer({0}, {first_token}, {0.5F});
    append(std::move(row));
    return sequence_;
  }

  /// The draft's pass and the target's.
  void add(const DraftedRound& round) {
    if (!round.drafted.empty()) add_draft(round);
    TraceRow target = make_row(PassKind::commit);
    target.pass_time_ns = 5'000'000;
    if (round.next >= 0) {
      target.delta = make_transfer({position_ + round.accepted + 1}, {round.next}, {0.25F});
    }
    append(std::move(target));
    position_ += round.accepted + 1;
    ++block_;
  }

  void end() { writer_.end_sequence(sequence_, {}); }
  std::string finish() {
    writer_.finish();
    return path_;
  }

 private:
  void add_draft(const DraftedRound& round) {
    TraceRow draft = make_row(PassKind::denoise);
    draft.step = 1;
    draft.masks_left = meta_.block_length - 1;
    draft.recorded = true;
    draft.pass_time_ns = 2'000'000;
    for (std::int64_t p = 0; p < meta_.block_length; ++p) {
      draft.valid.push_back(std::cmp_less_equal(p, round.drafted.size()) ? 1 : 0);
    }
    std::vector<std::int64_t> positions;
    std::vector<std::int64_t> tokens;
    for (std::int64_t p = 1; p <= round.accepted && position_ + p < gen_length_; ++p) {
      positions.push_back(position_ + p);
      tokens.push_back(round.drafted[static_cast<std::size_t>(p - 1)]);
    }
    draft.delta = make_transfer(positions, tokens, std::vector(positions.size(), 0.5F));
    add_judgement(draft, round);
    append(std::move(draft));
  }

  static TraceMeta make_meta(std::int64_t block_length) {
    TraceMeta meta = fixture::small_meta(RecordLevel::trajectory, ArrayType::f32);
    meta.has_cache = meta.has_revocations = meta.has_kl = false;
    meta.num_layers = meta.num_heads = meta.num_kv_heads = 1;
    meta.head_dim = meta.hidden_size = 2;
    meta.set_size = 0;
    meta.block_length = block_length;
    meta.has_draft = true;
    meta.record_everything();
    meta.pieces[10] = "\n";
    for (std::size_t i = 11; i < 99; ++i) meta.pieces[i] = " word" + std::to_string(i);
    return meta;
  }

  TraceRow make_row(PassKind kind) {
    TraceRow row;
    row.sequence = sequence_;
    row.pass = rows_;
    row.kind = kind;
    row.block = block_;
    row.block_start = kind == PassKind::prefill ? 0 : kDraftPrompt + position_;
    row.context_length = row.block_start;
    return row;
  }

  void append(TraceRow row) {
    writer_.append_row(std::move(row));
    ++rows_;
  }

  void add_judgement(TraceRow& row, const DraftedRound& round) const {
    const auto ints = [&](Field field, std::vector<std::int32_t> values) {
      row.arrays.push_back({field, kAllLayers, make_buffer(std::move(values))});
    };
    const auto per_position = [&](Field field, auto none, const auto& value_at) {
      std::vector<decltype(none)> values{none};
      for (std::int64_t p = 1; p < meta_.block_length; ++p) values.push_back(value_at(p));
      row.arrays.push_back({field, kAllLayers, make_buffer(std::move(values))});
    };
    const auto at = [](const std::vector<std::int32_t>& tokens, std::int64_t p) {
      return std::cmp_less_equal(p, tokens.size()) ? tokens[static_cast<std::size_t>(p - 1)] : -1;
    };
    ints(Field::draft_accepted, {round.accepted});
    for (const Field field : {Field::prediction_token, Field::draft_token}) {
      per_position(field, -1, [&](std::int64_t p) { return at(round.drafted, p); });
    }
    per_position(Field::draft_target_token, -1,
                 [&](std::int64_t p) { return at(round.target, p); });
    if (!round.judged) return;
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
    // Token 0 is not in the draft's vocabulary.
    per_position(Field::target_rank_under_draft, -1,
                 [&](std::int64_t p) { return at(round.target, p) == 0 ? -1 : rank_at(rows_, p); });
    per_position(Field::target_probability_under_draft, kNaN, [&](std::int64_t p) {
      return at(round.target, p) == 0 ? kNaN : share_at(rows_, p);
    });
    per_position(Field::drafted_rank_under_target, -1,
                 [&](std::int64_t p) { return rank_at(rows_, p + 1); });
    int shift = 2;
    for (const Field field : {Field::drafted_probability_under_target, Field::draft_entropy,
                              Field::draft_target_entropy, Field::draft_confidence}) {
      per_position(field, kNaN, [&](std::int64_t p) { return share_at(rows_, p + shift); });
      ++shift;
    }
  }

  std::string path_;
  TraceMeta meta_;
  TraceWriter writer_;
  std::int64_t sequence_ = -1, gen_length_ = 0, position_ = 0, block_ = 0, rows_ = 0;
};

/// Rows of the rounds below: 0 is the prefill; 1, 3 and 5 are the drafts' of the first sequence.
///   round  certain  drafted   target's   accepted  next
///   0      5        16 17 18  16 19 0    1         19   (positions 0..3 of the answer)
///   1      19       21 22 23  21 22 23   3         10
///   2      10       25 26 27  25 26 28   2         none: the answer has 8 positions
/// and a second sequence, as another engine's, without ranks, probabilities and entropies:
///   0      7        31 - 33    34 - -    0         34
///   1      34       none                 0         35
///   2      35       36         36        1         37
inline std::string draft_trace(const std::string& path) {
  DraftTrace trace(path);
  trace.sequence(8, 5);
  trace.add({{16, 17, 18}, {16, 19, 0}, 1, 19});
  trace.add({{21, 22, 23}, {21, 22, 23}, 3, 10});
  trace.add({{25, 26, 27}, {25, 26, 28}, 2, -1});
  trace.end();
  trace.sequence(9, 7);
  trace.add({{31, -1, 33}, {34, -1, -1}, 0, 34, false});
  trace.add({{}, {}, 0, 35});
  trace.add({{36}, {36}, 1, 37, false});
  trace.end();
  return trace.finish();
}

/// A sequence of `rounds` rounds that accept 0, 1, .. B - 1 tokens in turn.
inline std::string long_draft_trace(const std::string& path, std::int64_t rounds,
                                    std::int64_t block_length) {
  DraftTrace trace(path, block_length);
  std::int64_t length = 1;
  for (std::int64_t i = 0; i < rounds; ++i) length += i % block_length + 1;
  trace.sequence(length, 11);
  for (std::int64_t i = 0; i < rounds; ++i) {
    DraftedRound round;
    round.accepted = static_cast<std::int32_t>(i % block_length);
    for (std::int64_t p = 1; p < block_length; ++p) {
      const auto token = static_cast<std::int32_t>(11 + (i * 7 + p) % 80);
      round.drafted.push_back(token);
      round.target.push_back(p <= round.accepted ? token : token + 1);
    }
    round.next = round.accepted + 1 < block_length
                     ? round.target[static_cast<std::size_t>(round.accepted)]
                     : 12;
    trace.add(round);
  }
  trace.end();
  return trace.finish();
}

}  // namespace blockscope::testing
