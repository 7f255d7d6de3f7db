#include "viewer/model/step_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/math/position_sets.h"
#include "analysis/metrics/selection.h"
#include "decode_record/base/error.h"
#include "decode_record/read/end_of_text.h"

namespace blockscope {
namespace {

constexpr float kNoKey = -std::numeric_limits<float>::infinity();

/// Reads the sets of one layer and KV head.
class SetReader {
 public:
  SetReader(const TraceReader& trace, std::size_t layer, std::size_t kv_head)
      : trace_(trace), layer_(static_cast<std::int64_t>(layer)), kv_head_(kv_head) {}

  /// The set without padding; empty if the trace has no such dataset.
  std::vector<std::int32_t> set(Field field, const StepRef& step) {
    if (!trace_.has(field) || !step.recorded) return {};
    std::vector<std::int32_t> set = part(trace_.read_ints_at(field, step.row, layer_));
    try {
      set.resize(checker_.check(set));
    } catch (const Error& error) {
      throw CorruptTrace(where(field, step) + error.what());
    }
    const TraceMeta& meta = trace_.info().meta;
    const std::int64_t first =
        meta.first_key(meta.layers[static_cast<std::size_t>(layer_)], step.context_length);
    for (const std::int32_t position : set) {
      if (position >= first && position < step.context_length) continue;
      throw CorruptTrace(fmt::format("{}expected keys of the prefix, {} to {}, got {}",
                                     where(field, step), first, step.context_length - 1, position));
    }
    return set;
  }

  std::vector<float> probabilities(const StepRef& step, std::size_t count) {
    std::vector<float> values =
        part(trace_.read_floats_at(Field::set_probability, step.row, layer_));
    values.resize(count);
    return values;
  }

 private:
  /// Reduces values [KV heads, rank] to those of the one head.
  template <typename T>
  std::vector<T> part(const std::vector<T>& values) const {
    const TraceMeta& meta = trace_.info().meta;
    const std::size_t size = values.size() / meta.kv_slots_at(static_cast<std::size_t>(layer_));
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(kv_head_ * size);
    return {begin, begin + static_cast<std::ptrdiff_t>(size)};
  }

  std::string where(Field field, const StepRef& step) const {
    return fmt::format("{}:{}: row {}, layer slot {}: ", trace_.info().path, spec_of(field).path,
                       step.row, layer_);
  }

  const TraceReader& trace_;
  std::int64_t layer_;
  std::size_t kv_head_;
  SetChecker checker_;
};

std::vector<std::uint8_t> valid_of(const TraceReader& trace, std::int64_t row) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(trace.info().meta.block_length));
  trace.read_raw(Field::step_valid, row, 1, TraceReader::kAllLayersOfRow, bytes);
  std::vector<std::uint8_t> valid;
  for (const std::byte byte : bytes) valid.push_back(std::to_integer<std::uint8_t>(byte));
  return valid;
}

/// Fills in `heads`, and decides what an empty set means.
void read_heads(const TraceReader& trace, const StepRef& step, std::size_t layer, StepKeys& keys) {
  const TraceMeta& meta = trace.info().meta;
  const auto slot = static_cast<std::int64_t>(layer);
  const auto used = trace.read_floats_at(Field::attention_lse_external, step.row, slot);
  const bool shadow = trace.has(Field::shadow_lse_external);
  std::vector<float> exact, error;
  if (shadow) exact = trace.read_floats_at(Field::shadow_lse_external, step.row, slot);
  if (shadow) error = trace.read_floats_at(Field::shadow_output_error, step.row, slot);
  const std::vector<std::uint8_t> valid = valid_of(trace, step.row);
  bool reads = false;
  bool known = false;
  for (std::size_t head = 0; head < meta.heads.size(); ++head) {
    if (meta.kv_head_of(meta.layers[layer], meta.heads[head]) != keys.kv_head) continue;
    StepKeys::Head& out = keys.heads.emplace_back();
    out.head = meta.heads[head];
    const auto of_head = [&](const std::vector<float>& values) {
      return std::span(values).subspan(head * valid.size(), valid.size());
    };
    for (std::size_t i = 0; i < valid.size(); ++i) {
      if (valid[i] == 0) continue;
      reads = reads || of_head(used)[i] > kNoKey;
      known = known || !std::isnan(of_head(used)[i]);
    }
    if (!shadow || step.context_length == 0) continue;
    const CoveredShare share = covered_share(of_head(used), of_head(exact), valid);
    if (share.terms > 0) out.covered = share.sum / static_cast<double>(share.terms);
    out.error = double{error[head]};
  }
  keys.read = !keys.selected.empty() ? KeysRead::some
              : !known               ? KeysRead::unknown
              : reads                ? KeysRead::everything
                                     : KeysRead::nothing;
}

}  // namespace

std::size_t PrefixText::bytes() const {
  std::size_t sum = sizeof(*this) + runs.size() * sizeof(std::int32_t);
  for (const std::string& token : tokens) sum += sizeof(token) + token.capacity();
  return sum;
}

std::shared_ptr<const PrefixText> read_prefix_text(const TraceReader& trace,
                                                   const BlockSteps& block) {
  auto text = std::make_shared<PrefixText>();
  text->has_pieces = trace.num_pieces() > 0;
  if (block.steps.empty()) return text;
  const Frame frame = trace.frame_before(block.steps.front().row);
  std::vector<std::int64_t> tokens = frame.prompts.at(0);
  text->prompt_length = tokens.size();
  tokens.insert(tokens.end(), frame.generated_tokens.begin(), frame.generated_tokens.end());
  if (trace.info().meta.bidirectional) {  // the keys are everything outside the block
    const auto begin = tokens.begin() + block.steps.front().block_start;
    tokens.erase(begin, begin + trace.info().meta.block_length);
  }
  std::int32_t length = 0;
  for (const StepRef& step : block.steps) length = std::max(length, step.context_length);
  tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(length)));
  for (const std::int64_t token : tokens) text->tokens.push_back(readable_token(trace, token));
  const EndOfText ends(trace);
  const std::span<const std::int64_t> all(tokens);
  const std::size_t prompt = std::min(text->prompt_length, tokens.size());
  text->runs = end_of_text_runs(all.first(prompt), ends);
  const auto rest = end_of_text_runs(all.subspan(prompt), ends);
  text->runs.insert(text->runs.end(), rest.begin(), rest.end());
  return text;
}

std::size_t StepKeys::bytes() const {
  return sizeof(*this) + (selected.size() + exact.size() * 2 + first.size()) * 4 +
         heads.size() * sizeof(Head);
}

std::shared_ptr<const StepKeys> read_step_keys(const TraceReader& trace, const BlockSteps& block,
                                               const StepRef& step, std::size_t layer,
                                               std::size_t kv_head) {
  auto keys = std::make_shared<StepKeys>();
  const TraceMeta& meta = trace.info().meta;
  keys->kv_head = meta.kv_heads.at(kv_head);
  keys->context_length = step.context_length;
  keys->external_keys = static_cast<std::int32_t>(meta.keys_at(layer, step.context_length));
  keys->selected_size = static_cast<std::size_t>(meta.selected_size);
  if (!step.recorded) return keys;
  SetReader sets(trace, layer, kv_head);
  keys->selected = sets.set(Field::attention_selected, step);
  keys->exact = sets.set(Field::set_topk, step);
  if (!keys->exact.empty()) keys->probability = sets.probabilities(step, keys->exact.size());
  if (!block.steps.empty() && block.steps.front().step == 1) {
    keys->first = sets.set(Field::set_topk, block.steps.front());
  }
  if (trace.has(Field::attention_selected)) read_heads(trace, step, layer, *keys);
  return keys;
}

Data<PrefixText> request_prefix_text(ViewModel& model) {
  if (model.block() == nullptr) return {};
  return model.ask<PrefixText>("prefix", fmt::format("prefix/{}", model.selection().block),
                               [block = *model.block()](const TraceReader& trace, JobControl&) {
                                 return read_prefix_text(trace, block);
                               });
}

Data<StepKeys> request_step_keys(ViewModel& model) {
  if (model.step() == nullptr) return {};
  const auto kv_head = model.kv_head_slot();
  if (!kv_head) return {DataState::failed, nullptr, 0.0, kNoKvHead};
  const std::size_t layer = model.selection().layer;
  return model.ask<StepKeys>("keys",
                             fmt::format("keys/{}/{}/{}", model.step()->row, layer, *kv_head),
                             [block = *model.block(), step = *model.step(), layer, slot = *kv_head](
                                 const TraceReader& trace, JobControl&) {
                               return read_step_keys(trace, block, step, layer, slot);
                             });
}

KeysAgainst possible(const StepKeys& keys, KeysAgainst wanted) {
  if (keys.read == KeysRead::unknown) return KeysAgainst::first;
  return keys.exact.empty() || keys.first.empty() ? KeysAgainst::read : wanted;
}

KeyView compare_keys(const StepKeys& keys, KeysAgainst against, std::size_t k) {
  KeyView view;
  view.against = possible(keys, against);
  std::vector<std::int32_t> chosen = keys.selected;
  std::size_t compared = chosen.size();
  if (view.against == KeysAgainst::first) {
    chosen = keys.first;
    compared = k == 0 ? keys.exact.size() : k;
    chosen.resize(std::min(chosen.size(), compared));
  } else if (keys.read != KeysRead::some) {
    // As many exact keys as a step of this trace reads. They are all hits, or all missed.
    compared = std::min(keys.selected_size, keys.exact.size());
    if (keys.read == KeysRead::everything) {
      chosen.assign(keys.exact.begin(), keys.exact.begin() + static_cast<std::ptrdiff_t>(compared));
    }
  }
  view.sets = compare_sets(chosen, keys.exact, compared);
  view.compares = !keys.exact.empty() && !chosen.empty() &&
                  (view.against == KeysAgainst::first || keys.read == KeysRead::some);
  for (std::size_t i = 0; i < view.sets.compared; ++i) {
    view.exact_share += double{keys.probability[i]};
  }
  return view;
}

const char* name_of(KeyMark mark, const KeyView& view) {
  const bool read = view.against == KeysAgainst::read;
  switch (mark) {
    case KeyMark::both:
      return !read ? "kept" : view.compares ? "hit" : "exact";
    case KeyMark::exact_only:
      return read ? "missed" : "new";
    case KeyMark::chosen_only:
      break;
  }
  return !read ? "gone" : view.compares ? "extra" : "read";
}

CsvTable step_keys_table(const StepKeys& keys, const KeyView& view, const PrefixText& text) {
  CsvTable table(
      {"position in the prefix", "token", "mark",
       view.against == KeysAgainst::read ? "rank among the keys read" : "rank in step 1's set",
       "rank in the exact set", "probability"});
  const auto rank = [](std::int32_t from_zero) {
    return from_zero < 0 ? CsvTable::Cell{} : CsvTable::Cell{std::int64_t{from_zero} + 1};
  };
  for (const ComparedKey& key : view.sets.keys) {
    const auto position = static_cast<std::size_t>(key.position);
    table.add(
        {std::int64_t{key.position},
         position < text.tokens.size() ? CsvTable::Cell{text.tokens[position]} : CsvTable::Cell{},
         std::string(name_of(key.mark, view)), rank(key.chosen_rank), rank(key.exact_rank),
         key.exact_rank < 0
             ? CsvTable::Cell{}
             : CsvTable::Cell{double{keys.probability[static_cast<std::size_t>(key.exact_rank)]}}});
  }
  return table;
}

}  // namespace blockscope
