// KLASS's steps. An imported trace keeps the file's texts and KL divergences in /run/json, under
// `imported`. For other traces, texts come from the vocabulary's pieces and KL divergences from
// /prediction/kl, if the trace has them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cli/export_formats.h"
#include "decode_record/base/error.h"
#include "decode_record/interchange/import_klass.h"

namespace blockscope {
namespace {

using nlohmann::ordered_json;

/// Rounds as Python's round(): to the decimal nearest to the exact value.
ordered_json rounded(float value, int digits) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.{}f}", value, digits).c_str(), nullptr);
}

/// The KL divergences of a row to the step before, if this build and the trace have them.
std::optional<Field> kl_field(const TraceReader& reader) {
  const auto* spec = std::ranges::find(kDatasets, "/prediction/kl", &DatasetSpec::path);
  if (spec == kDatasets.end() || !reader.has(spec->field)) return std::nullopt;
  return spec->field;
}

/// What the imported file said; null if nothing was kept, or if it is not for these steps.
ordered_json kept_of(const TraceReader& reader) {
  const auto run = ordered_json::parse(reader.info().meta.run_json, nullptr, false);
  const auto member = [](const ordered_json& from, const char* key) {
    return from.is_object() && from.contains(key) ? from[key] : ordered_json(nullptr);
  };
  const ordered_json imported = member(run, "imported");
  if (member(imported, "tool") != "KLASS" || reader.info().num_sequences != 1) return nullptr;
  return member(imported, "kept");
}

class KlassWriter {
 public:
  KlassWriter(const TraceReader& reader, std::int64_t index)
      : reader_(reader), index_(index), info_(reader.sequence(index)), kl_field_(kl_field(reader)) {
    kept_ = kept_of(reader);
    const bool dream = kept_.is_object() && kept_.contains("dialect")
                           ? kept_["dialect"] == kKlassDream.name
                           : reader.info().meta.logit_shift == 1;
    dialect_ = dream ? kKlassDream : kKlassLlada;
  }

  ordered_json write() {
    if (reader_.info().meta.mask_token_id < 0) {
      refuse(reader_.info().meta.noise_canvas ? "was decoded without masks, from noise"
                                              : "was decoded token by token, without masks");
    }
    ordered_json steps = ordered_json::array();
    Frame frame = make_initial_frame(info_.prompt, static_cast<std::size_t>(info_.gen_length),
                                     reader_.info().meta.mask_token_id);
    for (const std::int64_t row : reader_.rows_of(index_)) {
      const FrameDelta delta = reader_.delta(row);
      const bool denoises =
          static_cast<PassKind>(reader_.steps(row, 1).kind[0]) == PassKind::denoise;
      check(row, denoises, delta.rows.front(), frame);
      if (!denoises) continue;
      ordered_json step = masks_of(row, delta.rows.front(), frame, steps.size());
      apply_delta(frame, delta);
      add_text(frame, steps.size(), step);
      steps.push_back(std::move(step));
    }
    return steps;
  }

 private:
  struct Mask {
    std::int64_t token = -1;
    float confidence = std::nanf("");
    ordered_json kl;
  };

  [[noreturn]] void refuse(const std::string& what) const {
    throw TraceError(fmt::format(
        "{}: sequence {} {}, which KLASS's form can't express. HINT: --format {}",
        reader_.info().path, index_, what, reader_.info().meta.noise_canvas ? "json" : "frames"));
  }

  void check(std::int64_t row, bool denoises, const SequenceDelta& delta,
             const Frame& before) const {
    if (!denoises && !delta.empty()) {
      refuse(fmt::format("has decided tokens in row {}, which is no denoising step", row));
    }
    if (!delta.insert_index.empty() || !delta.delete_index.empty()) {
      refuse(fmt::format("has insertions or deletions in row {}", row));
    }
    for (const std::int64_t position : delta.transfer_index) {
      const auto at = static_cast<std::size_t>(position);
      if (before.generated_tokens.at(at) != before.mask_token_id) {
        refuse(fmt::format("changes a decided token in row {}", row));
      }
    }
  }

  /// A list of the imported file for step `step`, if it has as many elements as the trace.
  const ordered_json* kept_list(std::size_t step, const char* key, std::size_t count) const {
    if (!kept_.is_object() || !kept_.contains("steps") || !kept_["steps"].is_array())
      return nullptr;
    const ordered_json& steps = kept_["steps"];
    if (step >= steps.size() || !steps[step].is_object() || !steps[step].contains(key)) {
      return nullptr;
    }
    const ordered_json& list = steps[step][key];
    return list.is_array() && list.size() == count ? &list : nullptr;
  }

  /// `text`: of a decoded token; null in all_tokens. LLaDA and Dream place it differently.
  ordered_json entry(std::int64_t position, const Mask& mask, const ordered_json* text) const {
    const bool dream = dialect_.name == kKlassDream.name;
    ordered_json item;
    item["position"] = position + static_cast<std::int64_t>(info_.prompt.size());
    item["token_id"] = mask.token < 0 ? ordered_json(nullptr) : ordered_json(mask.token);
    if (text != nullptr && !dream) item["decoded_token"] = *text;
    item["confidence"] = rounded(mask.confidence, dialect_.confidence_digits);
    item["kl_divergence"] = mask.kl;
    if (text != nullptr && dream) item["decoded_token"] = *text;
    return item;
  }

  ordered_json piece(std::int64_t token) const {
    if (reader_.num_pieces() == 0) return nullptr;
    return reader_.piece(token);
  }

  /// decoded_tokens and all_tokens of a row.
  ordered_json masks_of(std::int64_t row, const SequenceDelta& delta, const Frame& before,
                        std::size_t step) const {
    std::map<std::int64_t, Mask> masks;
    const std::vector<std::int32_t> tokens = reader_.read_ints(Field::prediction_token, row, 1);
    const std::vector<float> sure = reader_.read_floats(Field::prediction_confidence, row, 1);
    std::vector<float> kl;
    if (kl_field_) kl = reader_.read_floats(*kl_field_, row, 1);
    const std::int64_t first =
        reader_.steps(row, 1).block_start[0] - static_cast<std::int64_t>(info_.prompt.size());
    for (std::size_t b = 0; b < tokens.size(); ++b) {
      const std::int64_t position = first + static_cast<std::int64_t>(b);
      if (position < 0 || position >= static_cast<std::int64_t>(before.gen_length)) continue;
      if (before.generated_tokens[static_cast<std::size_t>(position)] != before.mask_token_id) {
        continue;
      }
      Mask& mask = masks[position];
      mask.token = tokens[b];
      mask.confidence = sure[b];
      if (b < kl.size() && !std::isnan(kl[b])) {
        mask.kl = std::isinf(kl[b]) ? ordered_json("inf") : rounded(kl[b], dialect_.kl_digits);
      }
    }
    for (std::size_t i = 0; i < delta.transfer_index.size(); ++i) {
      const auto source = static_cast<std::size_t>(delta.transfer_src_index.at(i));
      Mask& mask = masks[delta.transfer_index[i]];
      mask.token = delta.decoded_tokens.at(source);
      mask.confidence = delta.confidence.at(source);
    }
    if (const ordered_json* kept = kept_list(step, "kl_divergence", masks.size())) {
      std::size_t i = 0;
      for (auto& [position, mask] : masks) mask.kl = (*kept)[i++];
    }
    ordered_json all = ordered_json::array();
    for (const auto& [position, mask] : masks) {
      all.push_back(entry(position, mask, nullptr));
    }
    const ordered_json* texts = kept_list(step, "decoded_token", delta.transfer_index.size());
    ordered_json decoded = ordered_json::array();
    for (std::size_t i = 0; i < delta.transfer_index.size(); ++i) {
      const Mask& mask = masks.at(delta.transfer_index[i]);
      const ordered_json text = texts != nullptr ? (*texts)[i] : piece(mask.token);
      decoded.push_back(entry(delta.transfer_index[i], mask, &text));
    }
    ordered_json item;
    item["step"] = static_cast<std::int64_t>(step) + dialect_.first_step;
    if (dialect_.name == kKlassLlada.name) item["decoded_text"] = nullptr;
    item["decoded_tokens_num"] = delta.transfer_index.size();
    item["decoded_tokens"] = std::move(decoded);
    item["all_tokens"] = std::move(all);
    item["decoded_text"];  // Dream's order of members
    return item;
  }

  /// The text after the step. LLaDA: the tokens decided so far. Dream: the prompt first, and a
  /// space for each mask.
  void add_text(const Frame& after, std::size_t step, ordered_json& item) const {
    if (kept_.is_object() && kept_.contains("steps") && kept_["steps"].is_array() &&
        step < kept_["steps"].size() && kept_["steps"][step].is_object() &&
        kept_["steps"][step].contains("decoded_text")) {
      item["decoded_text"] = kept_["steps"][step]["decoded_text"];
      return;
    }
    if (reader_.num_pieces() == 0) return;
    const bool dream = dialect_.name == kKlassDream.name;
    std::string text;
    for (const std::int64_t token : info_.prompt) text += dream ? reader_.piece(token) : "";
    for (const std::int64_t token : after.generated_tokens) {
      const bool masked = token == after.mask_token_id;
      text += masked ? (dream ? " " : "") : reader_.piece(token);
    }
    item["decoded_text"] = text;
  }

  const TraceReader& reader_;
  std::int64_t index_;
  SequenceInfo info_;
  std::optional<Field> kl_field_;
  ordered_json kept_;
  KlassDialect dialect_ = kKlassLlada;
};

}  // namespace

ordered_json klass_json(const TraceReader& reader, std::int64_t index) {
  return KlassWriter(reader, index).write();
}

}  // namespace blockscope
