// Writes rounds of another engine as a trace: see round_records.h.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "decode_record/base/nan.h"
#include "decode_record/interchange/imported_trajectory.h"
#include "decode_record/write/round_records.h"

namespace blockscope {
namespace {

/// Writes the rows of one sequence, as decode_drafted() reports them: a denoising row for the
/// draft's pass and a commit row for the target's. Without drafted tokens there is only a commit
/// row.
class RoundWriter {
 public:
  RoundWriter(const ImportedRounds& run, const DraftedSequence& sequence, TraceWriter& writer,
              std::int64_t& pass)
      : sequence_(sequence),
        block_(static_cast<std::size_t>(run.block_length)),
        candidates_(run.draft_candidates),
        writer_(writer),
        pass_(pass),
        index_(writer.begin_sequence(sequence.start)),
        prompt_length_(static_cast<std::int64_t>(sequence.start.prompt.size())) {}

  void write() {
    first();
    for (const RoundRecord& round : sequence_.rounds) {
      if (!round.drafted.empty()) draft(round);
      verify(round);
      ++number_;
    }
    writer_.end_sequence(index_, sequence_.end);
  }

 private:
  void first() {
    if (sequence_.first_token == kUnknown) return;
    TraceRow row;
    row.kind = PassKind::prefill;
    decide(row, {0}, {sequence_.first_token}, {sequence_.first_confidence});
    append(std::move(row));
  }

  TraceRow row_of(const RoundRecord& round, PassKind kind) const {
    TraceRow row;
    row.kind = kind;
    row.block = number_;
    row.block_start = row.context_length = round.position;
    row.valid.assign(block_, 0);
    std::fill_n(row.valid.begin(), round.drafted.size() + 1, std::uint8_t{1});
    return row;
  }

  void draft(const RoundRecord& round) {
    TraceRow row = row_of(round, PassKind::denoise);
    row.step = 1;
    row.masks_left = static_cast<std::int64_t>(round.drafted.size());
    row.recorded = true;
    row.pass_time_ns = round.draft_ns;
    for (const Field field : {Field::prediction_token, Field::draft_token}) {
      ints(row, field, round.drafted);
    }
    ints(row, Field::draft_target_token, round.target);
    row.arrays.push_back({Field::draft_accepted, kAllLayers,
                          make_buffer(std::vector{static_cast<std::int32_t>(round.accepted)})});
    for (std::size_t i = 0; i < kRoundRanks.size(); ++i) {
      ints(row, kRoundRanks[i].field, round.ranks[i]);
    }
    for (std::size_t i = 0; i < kRoundValues.size(); ++i) {
      spread(row, kRoundValues[i].field, round.values[i], kNaN);
    }
    candidates(row, round);
    spread(row, Field::prediction_confidence, round.values[kDraftConfidence], kNaN);
    std::vector<std::int64_t> positions;
    std::vector<std::int64_t> tokens;
    std::vector<float> confidence;
    const std::vector<float>& sure = round.values[kDraftConfidence];
    for (std::int64_t i = 0; i < round.accepted; ++i) {
      // Tokens after the answer's end were accepted too, but are not part of the answer.
      const std::int64_t at = round.position + 1 + i - prompt_length_;
      if (at >= sequence_.start.gen_length) break;
      const auto k = static_cast<std::size_t>(i);
      positions.push_back(at);
      tokens.push_back(round.drafted[k]);
      confidence.push_back(sure.empty() ? kNaN : sure[k]);
    }
    decide(row, std::move(positions), std::move(tokens), std::move(confidence));
    append(std::move(row));
  }

  void verify(const RoundRecord& round) {
    TraceRow row = row_of(round, PassKind::commit);
    row.pass_time_ns = round.target_ns;
    const std::int64_t at = round.after() - prompt_length_;
    if (round.next != kUnknown && at < sequence_.start.gen_length) {
      decide(row, {at}, {round.next}, {round.next_confidence});
    }
    append(std::move(row));
  }

  void candidates(TraceRow& row, const RoundRecord& round) const {
    const RoundCandidates& known = round.candidates;
    if (known.tokens.empty()) return;
    std::vector<std::int64_t> chosen;
    std::vector<std::int64_t> target;
    for (std::size_t i = 0; i < round.drafted.size(); ++i) {
      chosen.push_back(known.find(i, round.drafted[i], candidates_));
      target.push_back(known.find(i, round.target[i], candidates_));
    }
    ints(row, Field::candidate_chosen, chosen);
    ints(row, Field::candidate_target, target);
    ints(row, Field::candidate_token, known.tokens, candidates_);
    spread(row, Field::candidate_probability, known.probabilities, kNaN, candidates_);
    spread(row, Field::candidate_score, known.scores, kNaN, candidates_);
  }

  static void decide(TraceRow& row, std::vector<std::int64_t> positions,
                     std::vector<std::int64_t> tokens, std::vector<float> confidence) {
    if (positions.empty()) return;
    row.delta = make_transfer(std::move(positions), std::move(tokens), std::move(confidence));
  }

  void ints(TraceRow& row, Field field, const std::vector<std::int64_t>& values,
            std::int64_t width = 1) const {
    spread(row, field, std::vector<std::int32_t>(values.begin(), values.end()),
           static_cast<std::int32_t>(kUnknown), width);
  }

  /// Values of the drafted tokens, `width` for each, at their block positions, which begin at 1.
  template <typename Value>
  void spread(TraceRow& row, Field field, const std::vector<Value>& values, Value none,
              std::int64_t width = 1) const {
    if (values.empty()) return;
    std::vector<Value> block(block_ * static_cast<std::size_t>(width), none);
    std::copy(values.begin(), values.end(), block.begin() + width);
    row.arrays.push_back({field, kAllLayers, make_buffer(std::move(block))});
  }

  void append(TraceRow row) {
    row.sequence = index_;
    row.pass = pass_++;
    writer_.append_row(std::move(row));
  }

  const DraftedSequence& sequence_;
  const std::size_t block_;
  const std::int64_t candidates_;  // C
  TraceWriter& writer_;
  std::int64_t& pass_;
  std::int64_t index_;
  std::int64_t prompt_length_;
  std::int64_t number_ = 0;  // of the round
};

}  // namespace

TraceMeta rounds_meta(const ImportedRounds& run) {
  TraceMeta meta = imported_model(run.engine, run.vocab_size, run.mask_token_id);
  meta.block_length = run.block_length;
  meta.has_draft = true;
  meta.draft_candidates = run.draft_candidates;
  return meta;
}

void write_rounds(const ImportedRounds& run, TraceWriter& writer,
                  const std::function<void()>& between) {
  std::int64_t pass = 0;
  for (const DraftedSequence& sequence : run.sequences) {
    between();
    RoundWriter(run, sequence, writer, pass).write();
  }
}

}  // namespace blockscope
