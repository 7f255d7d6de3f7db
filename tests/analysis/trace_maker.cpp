#include "tests/analysis/trace_maker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "decode_record/base/nan.h"
#include "tests/analysis/trace_rows.h"

namespace blockscope::testing {
namespace {

bool among(const std::vector<std::int64_t>& list, std::int64_t value) {
  return list.empty() || std::ranges::find(list, value) != list.end();
}

TraceMeta make_meta(const TraceMakerOptions& o) {
  TraceMeta meta;
  static_cast<LayerSizes&>(meta) = sizes_of(o);
  meta.hidden_size = o.hidden_size;
  meta.vocab_size = kVocabulary + 1;
  meta.mask_token_id = o.noise ? -1 : kVocabulary;
  meta.noise_canvas = o.noise;
  meta.softmax_scale = 1.0 / std::sqrt(static_cast<double>(o.head_dim));
  meta.block_length = o.block_length;
  meta.level = o.level;
  meta.record_everything();
  if (!o.record_layers.empty()) meta.layers = o.record_layers;
  if (!o.record_heads.empty()) meta.heads = o.record_heads;
  if (!o.record_kv_heads.empty()) meta.kv_heads = o.record_kv_heads;
  meta.set_size = o.set_size;
  meta.set_normaliser = o.set_normaliser;
  meta.has_shadow = o.shadow;
  meta.has_since_read = true;
  meta.array_type = o.array_type;
  meta.model_json = fmt::format(R"({{"requested":"","name":"made","digest":"{}"}})", o.digest);
  meta.run_json = fmt::format(R"({{"version":"test","policy":"{}","tau":{}}})", o.policy, o.tau);
  for (std::int64_t i = 0; i <= kVocabulary; ++i) meta.pieces.push_back(fmt::format("t{} ", i));
  return meta;
}

/// One sequence, row by row.
class Sequence {
 public:
  Sequence(const TraceMakerOptions& o, const TraceMeta& meta, TraceWriter& writer, std::int64_t i)
      : o_(o),
        meta_(meta),
        writer_(writer),
        random_(o.seed * 1000003 + static_cast<std::uint64_t>(i)),
        model_(o, random_()),
        rows_(o, meta) {
    prompt_ = o.prompt + (o.unequal ? i : 0);
    blocks_ = o.unequal && o.blocks > 1 ? 1 + (o.blocks - 1 + i) % o.blocks : o.blocks;
    SequenceStart start;
    start.name = fmt::format("made-{}", i);
    for (std::int64_t t = 0; t < prompt_; ++t) start.prompt.push_back((t * 5 + i) % kVocabulary);
    start.gen_length = blocks_ * o.block_length;
    frame_ = make_initial_frame(start.prompt, u(start.gen_length), meta.mask_token_id);
    start.answer = fmt::format("answer {}", i);
    start.metric = "exact_match";
    index_ = writer.begin_sequence(std::move(start));
  }

  /// False: the sequence is over.
  bool write_row(std::int64_t pass) {
    if (!prefilled_) {
      prefill(pass);
    } else if (step_ < steps_) {
      denoise(pass);
    } else if (steps_ > 0) {
      commit(pass);
    }
    if (steps_ == 0 && block_ < blocks_) begin_block();
    return block_ < blocks_;
  }

  bool in_middle_of_last_block() const {
    return block_ + 1 == blocks_ && steps_ > 0 && 2 * step_ >= steps_ && step_ > 0;
  }

  void end() { writer_.end_sequence(index_, {FinishReason::length, "text", 1.0F}); }

 private:
  TraceRow new_row(std::int64_t pass, PassKind kind) const {
    TraceRow row;
    row.sequence = index_;
    row.pass = pass;
    row.kind = kind;
    row.block = kind == PassKind::prefill ? -1 : block_;
    row.block_start = kind == PassKind::prefill ? 0 : prompt_ + block_ * o_.block_length;
    row.context_length = kind == PassKind::prefill ? 0 : model_.context_length();
    // No two runs take the same time.
    row.pass_time_ns = 1000 + pass + static_cast<std::int64_t>(o_.seed % 1'000'000) * 1'000'000;
    return row;
  }

  void add_prefix(TraceRow& row, const SequenceModel::Committed& committed, std::int64_t start,
                  std::int64_t count) const {
    if (o_.level != RecordLevel::full || count == 0) return;
    row.prefix_start = start;
    row.prefix_length = count;
    for (std::size_t slot = 0; slot < meta_.layers.size(); ++slot) {
      const auto layer = u(meta_.layers[slot]);
      for (const auto& [field, all] : {std::pair{Field::prefix_key, &committed.key[layer]},
                                       std::pair{Field::prefix_value, &committed.value[layer]}}) {
        Values kept;
        const std::int64_t kv_heads = meta_.kv_heads_of(meta_.layers[slot]);
        const std::int64_t dim = meta_.channels_at(slot);
        for (std::int64_t n = 0; n < count; ++n) {
          for (const std::int64_t kv : meta_.kv_heads) {
            const std::int64_t own = kv < kv_heads ? dim : 0;
            const auto first =
                all->begin() + static_cast<std::ptrdiff_t>((n * kv_heads + kv) * own);
            kept.insert(kept.end(), first, first + static_cast<std::ptrdiff_t>(own));
            kept.insert(kept.end(), u(meta_.channels() - own), kNaN);
          }
        }
        row.arrays.push_back(
            {field, static_cast<std::int64_t>(slot), to_file_type(kept, spec_of(field), meta_)});
      }
    }
  }

  void prefill(std::int64_t pass) {
    prefilled_ = true;
    if (prompt_ == 0) return;
    const auto committed = model_.commit_random(prompt_);
    TraceRow row = new_row(pass, PassKind::prefill);
    add_prefix(row, committed, 0, prompt_);
    if (o_.noise) row.delta = draw_canvas(0);
    writer_.append_row(std::move(row));
  }

  void begin_block() {
    std::uniform_int_distribution<std::int64_t> length(1, o_.steps);
    steps_ = o_.unequal ? length(random_) : o_.steps;
    step_ = 0;
    changed_ = 0;
    masked_.assign(u(o_.block_length), true);
    model_.begin_block();
    rows_.begin_block();
  }

  void denoise(std::int64_t pass) {
    ++step_;
    const ModelStep& step = model_.next_step();
    TraceRow row = new_row(pass, PassKind::denoise);
    row.step = step_;
    row.changed = changed_;
    row.masks_left = std::ranges::count(masked_, true);
    row.valid.assign(u(o_.block_length), 1);
    std::fill(row.valid.end() - o_.invalid, row.valid.end(), std::uint8_t{0});
    row.recorded = among(o_.record_steps, step_) && among(o_.record_blocks, block_);
    const RowValues values = rows_.next(step, row.context_length, changed_, masked_);
    row.since_read = rows_.since_read();
    row.rows_read = rows_.read() ? o_.block_length : 0;
    if (row.recorded) {
      row.arrays = to_slices(values, meta_, o_, random_);
    } else {
      RowValues predictions;
      for (const Field field : {Field::prediction_token, Field::prediction_confidence}) {
        predictions[field] = values.at(field);
      }
      TraceMakerOptions clean = o_;
      clean.nan = clean.inf = clean.zero = 0.0;
      row.arrays = to_slices(predictions, meta_, clean, random_);
    }
    row.delta = o_.noise ? accept(step) : decide(step);
    writer_.append_row(std::move(row));
  }

  /// Some masks become tokens, all that are left in the last step.
  FrameDelta decide(const ModelStep& step) {
    const std::int64_t left = std::ranges::count(masked_, true);
    std::uniform_int_distribution<std::int64_t> some(0, std::min<std::int64_t>(left, 3));
    changed_ = step_ == steps_ ? left : some(random_);
    std::vector<std::int64_t> positions;
    std::vector<std::int64_t> tokens;
    std::vector<float> confidence;
    for (std::size_t i = 0; std::cmp_less(positions.size(), changed_); ++i) {
      if (!masked_[i]) continue;
      masked_[i] = false;
      positions.push_back(block_ * o_.block_length + static_cast<std::int64_t>(i));
      tokens.push_back(step.top1[i]);
      confidence.push_back(0.5F);
    }
    return make_transfer(std::move(positions), std::move(tokens), std::move(confidence));
  }

  /// Noise at every position of a canvas.
  FrameDelta draw_canvas(std::int64_t block) {
    std::uniform_int_distribution<std::int64_t> any(0, kVocabulary - 1);
    const std::vector<std::int64_t> none(u(o_.block_length), -1);
    return move_to(block, none, any);
  }

  /// Every position is accepted or not, whatever it was; the last step accepts all.
  FrameDelta accept(const ModelStep& step) {
    std::uniform_int_distribution<std::int64_t> any(0, kVocabulary - 1);
    std::bernoulli_distribution accepts(0.6);
    std::vector<std::int64_t> accepted(u(o_.block_length), -1);
    for (std::size_t i = 0; i < accepted.size(); ++i) {
      masked_[i] = step_ != steps_ && !accepts(random_);
      if (!masked_[i]) accepted[i] = step.top1[i];
    }
    return move_to(block_, accepted, any);
  }

  /// The delta to a canvas of these tokens, and noise where they are -1; M of the next step.
  FrameDelta move_to(std::int64_t block, const std::vector<std::int64_t>& accepted,
                     std::uniform_int_distribution<std::int64_t>& any) {
    std::vector<std::int64_t> positions;
    std::vector<std::int64_t> tokens;
    std::vector<float> confidence;
    changed_ = 0;
    for (std::size_t i = 0; i < accepted.size(); ++i) {
      const std::size_t at = u(block * o_.block_length) + i;
      const bool noise = accepted[i] < 0;
      const std::int64_t token = noise ? any(random_) : accepted[i];
      changed_ += frame_.generated_tokens[at] != token ? 1 : 0;
      positions.push_back(static_cast<std::int64_t>(at));
      tokens.push_back(token);
      confidence.push_back(noise ? kUntouchedConfidence : 0.5F);
    }
    FrameDelta delta =
        make_canvas(frame_, std::move(positions), std::move(tokens), std::move(confidence));
    apply_delta(frame_, delta);
    return delta;
  }

  void commit(std::int64_t pass) {
    TraceRow row = new_row(pass, PassKind::commit);
    row.changed = changed_;
    add_prefix(row, model_.commit_block(), row.block_start, o_.block_length);
    if (o_.noise && block_ + 1 < blocks_) row.delta = draw_canvas(block_ + 1);
    writer_.append_row(std::move(row));
    ++block_;
    steps_ = 0;
  }

  const TraceMakerOptions& o_;
  const TraceMeta& meta_;
  TraceWriter& writer_;
  std::mt19937_64 random_;
  SequenceModel model_;
  RowMaker rows_;
  std::int64_t index_ = 0, prompt_ = 0, blocks_ = 0, block_ = 0, steps_ = 0, step_ = 0;
  std::int64_t changed_ = 0;  // M of the next step
  std::vector<bool> masked_;
  Frame frame_;  // of a canvas without masks
  bool prefilled_ = false;
};

using Sequences = std::vector<std::unique_ptr<Sequence>>;

/// Sequences of a batch, a row of each in turn; those that are over leave it. True: stopped early,
/// in the middle of the last sequence's last block.
bool write_batch(Sequences batch, std::int64_t& pass, bool stop_early) {
  while (!batch.empty()) {
    for (auto at = batch.begin(); at != batch.end();) {
      if ((*at)->write_row(pass)) {
        if (stop_early && batch.size() == 1 && (*at)->in_middle_of_last_block()) return true;
        ++at;
      } else {
        (*at)->end();
        at = batch.erase(at);
      }
    }
    ++pass;
  }
  return false;
}

}  // namespace

LayerSizes sizes_of(const TraceMakerOptions& options) {
  LayerSizes sizes;
  sizes.num_layers = options.layers;
  sizes.num_heads = options.heads;
  sizes.num_kv_heads = options.kv_heads;
  sizes.head_dim = options.head_dim;
  sizes.layer_kv_heads = options.layer_kv_heads;
  sizes.layer_head_dim = options.layer_head_dim;
  sizes.layer_window = options.layer_window;
  return sizes;
}

void make_trace(const std::string& path, const TraceMakerOptions& options) {
  const TraceMeta meta = make_meta(options);
  auto writer = std::make_unique<TraceWriter>(path, meta, TraceWriterOptions{.force = true});
  const bool cut = options.partial || options.aborted;
  std::int64_t pass = 0;
  bool stopped = false;
  Sequences batch;
  for (std::int64_t i = 0; i < options.sequences; ++i) {
    batch.push_back(std::make_unique<Sequence>(options, meta, *writer, i));
    if (options.interleaved && i + 1 < options.sequences) continue;
    stopped = write_batch(std::exchange(batch, {}), pass, cut && i + 1 == options.sequences);
  }
  if (!stopped && !options.partial) {
    writer->finish();
    return;
  }
  writer->suspend();
  if (!options.aborted) return;
  ResumeState state;
  TraceWriter again = TraceWriter::resume(path, meta, state);
  pass = state.next_pass;
  batch.push_back(std::make_unique<Sequence>(options, meta, again, options.sequences - 1));
  write_batch(std::move(batch), pass, false);
  again.finish();
}

}  // namespace blockscope::testing
