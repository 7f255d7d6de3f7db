// Writes an imported trajectory as a trace of level `trajectory`: see imported_trajectory.h.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "decode_record/interchange/import_state.h"
#include "decode_record/interchange/imported_trajectory.h"

namespace blockscope {
namespace {

constexpr const char* kImportedKey = "imported_from";

/// Writes the rows of one sequence, and keeps the frame before each row.
class RowWriter {
 public:
  RowWriter(const ImportedTrajectory& facts, const ImportedSequence& sequence, TraceWriter& writer)
      : facts_(facts),
        writer_(writer),
        index_(writer.begin_sequence(sequence.start)),
        prompt_length_(static_cast<std::int64_t>(sequence.start.prompt.size())),
        frame_(make_initial_frame(sequence.start.prompt,
                                  static_cast<std::size_t>(sequence.start.gen_length),
                                  facts.mask_token_id)) {}

  void before(const SequenceDelta& delta, std::int64_t& pass) {
    if (delta.empty()) return;
    TraceRow row;
    row.kind = PassKind::prefill;
    append(std::move(row), delta, pass);
  }

  void step(const ImportedStep& step, std::int64_t& pass) {
    if (step.block != block_) input_.clear();
    step_ = step.block == block_ ? step_ + 1 : 1;
    block_ = step.block;
    const std::int64_t length = facts_.block_length;
    const std::int64_t origin = facts_.block_causal ? 0 : prompt_length_;
    const auto positions = prompt_length_ + static_cast<std::int64_t>(frame_.gen_length);
    TraceRow row;
    row.block = step.block;
    row.block_start = std::min(origin + step.block * length, positions);
    row.step = step_;
    const std::int64_t end = std::min(row.block_start + length, positions);
    row.context_length =
        facts_.block_causal ? row.block_start : positions - (end - row.block_start);
    row.recorded = true;
    row.valid.assign(static_cast<std::size_t>(length), 0);
    std::fill_n(row.valid.begin(), end - row.block_start, std::uint8_t{1});
    count(row, end);
    add_best(step, row);
    // KLASS's divergences stay in `kept`, as text: the file has them for single positions only.
    row.revoked = step.revoked;
    append(std::move(row), step.delta, pass);
  }

  void end(const SequenceEnd& end) { writer_.end_sequence(index_, end); }

 private:
  /// Sets the masks in the block's input, and the number of its tokens that differ from the step
  /// before.
  void count(TraceRow& row, std::int64_t end) {
    std::vector<std::int64_t> input;
    for (std::int64_t at = std::max(row.block_start, prompt_length_); at < end; ++at) {
      input.push_back(frame_.generated_tokens[static_cast<std::size_t>(at - prompt_length_)]);
    }
    row.masks_left = std::count(input.begin(), input.end(), facts_.mask_token_id);
    for (std::size_t i = 0; i < std::min(input.size(), input_.size()); ++i) {
      row.changed += input[i] != input_[i] ? 1 : 0;
    }
    row.since_read = row.changed;  // the other engine may keep anything: every pass reads
    row.rows_read = facts_.block_length;
    input_ = std::move(input);
  }

  void add_best(const ImportedStep& step, TraceRow& row) const {
    if (step.best.empty()) return;
    const auto length = static_cast<std::size_t>(facts_.block_length);
    std::vector<std::int32_t> tokens(length, -1);
    std::vector<float> confidence(length, std::numeric_limits<float>::quiet_NaN());
    for (const BestToken& best : step.best) {
      const auto at = static_cast<std::size_t>(best.position + prompt_length_ - row.block_start);
      tokens.at(at) = static_cast<std::int32_t>(best.token);
      confidence.at(at) = best.confidence;
    }
    row.arrays.push_back({Field::prediction_token, kAllLayers, make_buffer(std::move(tokens))});
    row.arrays.push_back(
        {Field::prediction_confidence, kAllLayers, make_buffer(std::move(confidence))});
  }

  void append(TraceRow row, const SequenceDelta& delta, std::int64_t& pass) {
    FrameDelta change;
    change.rows.front() = delta;
    row.sequence = index_;
    row.pass = pass++;
    row.delta = change;
    writer_.append_row(std::move(row));
    apply_delta(frame_, change);
  }

  const ImportedTrajectory& facts_;
  TraceWriter& writer_;
  std::int64_t index_;
  std::int64_t prompt_length_;
  Frame frame_;
  std::int64_t block_ = -1;
  std::int64_t step_ = 0;
  std::vector<std::int64_t> input_;  // input of the block's previous step
};

}  // namespace

TraceMeta imported_model(const std::string& tool, std::int64_t vocab_size,
                         std::int64_t mask_token_id) {
  TraceMeta meta;
  // A trace must have a shape. knows_model_shape() says that this one has no meaning.
  meta.num_layers = meta.num_heads = meta.num_kv_heads = meta.head_dim = meta.hidden_size = 1;
  meta.softmax_scale = 1.0;
  meta.vocab_size = vocab_size;
  meta.mask_token_id = mask_token_id;
  meta.level = RecordLevel::trajectory;
  meta.record_everything();
  const nlohmann::ordered_json model = {{kImportedKey, tool}};
  meta.model_json = model.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return meta;
}

TraceMeta imported_meta(const ImportedTrajectory& trajectory) {
  TraceMeta meta = imported_model(trajectory.tool, trajectory.vocab_size, trajectory.mask_token_id);
  meta.bidirectional = !trajectory.block_causal;
  meta.block_length = trajectory.block_length;
  meta.has_since_read = true;
  for (const ImportedSequence& sequence : trajectory.sequences) {
    for (const ImportedStep& step : sequence.steps) {
      meta.has_revocations = meta.has_revocations || !step.revoked.empty();
    }
  }
  return meta;
}

bool knows_model_shape(const TraceMeta& meta) {
  const auto model = nlohmann::json::parse(meta.model_json, nullptr, /*allow_exceptions=*/false);
  return !model.is_object() || !model.contains(kImportedKey);
}

void write_imported(const ImportedTrajectory& trajectory, TraceWriter& writer,
                    const std::function<void()>& between) {
  std::int64_t pass = 0;
  for (const ImportedSequence& sequence : trajectory.sequences) {
    between();
    RowWriter rows(trajectory, sequence, writer);
    rows.before(sequence.before, pass);
    for (const ImportedStep& step : sequence.steps) rows.step(step, pass);
    rows.end(sequence.end);
  }
}

}  // namespace blockscope
