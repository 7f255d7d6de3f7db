#include "probe/policies/flashblock_policy.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/base/sha256.h"
#include "decode_record/interchange/reuse_file.h"
#include "kernels/ops.h"
#include "probe/policies/exact_policy.h"
#include "probe/policies/policy_table.h"

namespace blockscope {
namespace {

class FlashBlockPolicy : public AttentionPolicy {
 public:
  explicit FlashBlockPolicy(FlashBlockOptions options) : options_(std::move(options)) {
    cached_.resize(static_cast<size_t>(options_.num_layers));
    for (size_t range = 0; range < options_.reuse.ranges.size(); ++range) {
      read_early_.push_back(reads_for_later(range));
    }
  }

  std::string name() const override { return "flashblock"; }

  void begin_pass(const PassContext& context) override {
    kept_.clear();
    ranges_.clear();
    read_rows_.clear();
    refresh_rows_ = at::Tensor();
    num_sequences_ = std::ssize(context.sequences);
    refreshes_ = false;
    for (const SequencePass& sequence : context.sequences) add_sequence(sequence);
  }

  int64_t rows_read(int64_t slot, int64_t rows) const override {
    const size_t at = static_cast<size_t>(slot);
    return kept_[at] ? read_rows_[at] : rows;
  }

  AttentionParts attend(const AttentionInput& input, const ExternalKeys& external) override {
    CachedPair& cached = cached_[static_cast<size_t>(input.layer)];
    const at::Tensor mask = reuse_mask(input.layer);
    AttentionParts parts;
    if (mask.any().item<bool>()) {
      SourcedAttention reuse = reuse_attention(
          input.q, external.key, external.value, external.length, input.k, input.v, cached.external,
          cached.lse, mask, input.scale, input.spread, refresh_rows_);
      parts = parts_of(reuse);
      parts.reused = mask;
      parts.refreshed = refresh_rows_;
      parts.keys_read = std::move(reuse.keys_read);
    } else {
      parts = exact_attention(input, external);
    }
    // The pair that this pass used becomes the cached pair: the old one where rows reused it, the
    // new one elsewhere. A commit pass's pair is never read, as the next block's first step
    // recomputes.
    if (refreshes_) keep(parts, cached);
    return parts;
  }

  std::optional<std::vector<int64_t>> repeats() const override {
    if (refreshes_) return std::nullopt;
    std::vector<int64_t> key{generation_};  // every slot reuses, with the mask of its range
    for (const size_t range : ranges_) key.push_back(static_cast<int64_t>(range));
    return key;
  }

  void remove(int64_t slot) override {
    ++generation_;
    for (CachedPair& cached : cached_) {
      if (!cached.external.defined()) continue;
      cached.external = closed_up(cached.external, slot);
      cached.lse = closed_up(cached.lse, slot);
    }
  }

 private:
  struct CachedPair {
    at::Tensor external;  // [S, H, B, D] float32
    at::Tensor lse;       // [S, H, B] float32
  };

  /// A device's pairs stay where they are, so that one graph serves all steps that reuse.
  void keep(const AttentionParts& parts, CachedPair& cached) {
    const bool in_place = cached.external.defined() && !parts.external.is_cpu() &&
                          cached.external.sizes() == parts.external.sizes();
    if (in_place) {
      cached.external.copy_(parts.external);
      cached.lse.copy_(parts.lse_external);
      return;
    }
    ++generation_;
    cached = {parts.external, parts.lse_external};
    if (parts.external.is_cpu()) return;
    cached = {parts.external.clone(), parts.lse_external.clone()};  // observers may read the others
  }

  /// Copies instead of writing in place: the recorder may still read the last step's tensors.
  static at::Tensor closed_up(const at::Tensor& rows, int64_t slot) {
    const int64_t last = rows.size(0) - 1;
    at::Tensor kept = rows.narrow(0, 0, last).clone();
    if (slot != last) kept.select(0, slot).copy_(rows.select(0, last));
    return kept;
  }

  /// Decides what a sequence reads in this pass.
  void add_sequence(const SequencePass& sequence) {
    const bool denoise = sequence.kind == PassKind::denoise;
    const bool sure = sequence.sure_left >= options_.sure;
    const bool reuses =
        denoise && sure &&
        (options_.bound ? options_.bound->reuses(sequence.step, sequence.masked, sequence.unread)
                        : reuses_external(options_.rule, sequence.step, sequence.changed,
                                          sequence.since_read));
    const bool by_rows = options_.rule.refresh != ReuseRefresh::all && denoise && sure && !reuses &&
                         !sequence.first_step();
    const auto slot = static_cast<int64_t>(kept_.size());
    const size_t range = options_.reuse.ranges.of(std::max<int64_t>(sequence.step, 1));
    ranges_.push_back(range);
    std::vector<bool> rows;
    if (by_rows) rows = refreshed_rows(options_.rule.refresh, sequence.unread, sequence.masked);
    kept_.push_back(reuses || by_rows);
    read_rows_.push_back(std::count(rows.begin(), rows.end(), true));
    refreshes_ = refreshes_ || !kept_.back() || read_rows_.back() > 0 || read_early_[range];
    if (read_rows_.back() > 0) add_rows(slot, rows);
  }

  /// Whether some head reads in this range and reuses that pair in a later one.
  bool reads_for_later(size_t range) const {
    const auto& masks = options_.reuse.heads;
    for (size_t later = range + 1; later < masks.size(); ++later) {
      for (size_t layer = 0; layer < masks[range].size(); ++layer) {
        for (size_t head = 0; head < masks[range][layer].size(); ++head) {
          if (!masks[range][layer][head] && masks[later][layer][head]) return true;
        }
      }
    }
    return false;
  }

  /// The tensor has all slots, also those that are not decided yet.
  void add_rows(int64_t slot, const std::vector<bool>& rows) {
    const auto block = static_cast<int64_t>(rows.size());
    if (!refresh_rows_.defined()) refresh_rows_ = at::zeros({num_sequences_, block}, at::kBool);
    bool* out = refresh_rows_.data_ptr<bool>() + slot * block;
    std::copy(rows.begin(), rows.end(), out);
  }

  at::Tensor reuse_mask(int64_t layer) const {
    const int64_t sequences = static_cast<int64_t>(kept_.size());
    at::Tensor mask = at::zeros({sequences, options_.num_heads}, at::kBool);
    bool* out = mask.data_ptr<bool>();
    for (int64_t s = 0; s < sequences; ++s) {
      if (!kept_[static_cast<size_t>(s)]) continue;
      const auto& masks = options_.reuse.heads;
      for (int64_t head = 0; head < options_.num_heads; ++head) {
        out[s * options_.num_heads + head] =
            masks.empty() || masks[ranges_[static_cast<size_t>(s)]][static_cast<size_t>(layer)]
                                  [static_cast<size_t>(head)];
      }
    }
    return mask;
  }

  FlashBlockOptions options_;
  std::vector<CachedPair> cached_;  // per layer
  std::vector<bool> read_early_;    // [ranges], reads_for_later()
  // This pass, by slot.
  int64_t num_sequences_ = 0;
  std::vector<bool> kept_;          // heads that may reuse keep their pair, but for read_rows_ rows
  std::vector<size_t> ranges_;      // of the masks
  std::vector<int64_t> read_rows_;  // rows that read the prefix in these heads
  at::Tensor refresh_rows_;         // [S, B] bool, on the host: these rows; undefined: none
  bool refreshes_ = true;           // some slot's pair changes
  int64_t generation_ = 0;          // changes when the cached pairs move
};

}  // namespace

ErrorBound error_bound(double bound, const ReuseFile& file, const std::string& path) {
  if (file.row_errors.empty()) {
    throw CalibrationError(
        fmt::format("{}: row_errors: expected the errors of rows, which bound predicts with, got "
                    "none. HINT: calibrate with traces of `--record outputs`",
                    path));
  }
  return {bound, file.reuse.ranges, file.row_errors};
}

std::unique_ptr<AttentionPolicy> make_flashblock_policy(FlashBlockOptions options) {
  return std::make_unique<FlashBlockPolicy>(std::move(options));
}

PolicyEntry flashblock_entry() {
  PolicyEntry entry;
  entry.name = "flashblock";
  entry.example = "flashblock,tau=2,reuse=reuse.json";
  entry.meaning = "reuses the external pair of an earlier step while few tokens are decided";
  entry.source = "FlashBlock, arXiv 2602.05305, section 4.2, and its released code (scheduler.py)";
  entry.options = {
      whole_option(
          "tau", &PolicyOptions::tau, 1,
          "reuse when fewer than tau tokens are counted (default: that of the reuse file, or 2)"),
      word_option("count", &PolicyOptions::count, {kReuseCounts.begin(), kReuseCounts.end()},
                  "tokens that tau counts: decided since the last pass that read the prefix, or "
                  "changed by this step (default: that of the reuse file, or since_read)"),
      word_option(
          "refresh", &PolicyOptions::refresh, {kReuseRefreshes.begin(), kReuseRefreshes.end()},
          "rows that read the prefix when tau is reached: all, those decided since they last "
          "read it, or these and the masks next to them"),
      real_option("bound", &PolicyOptions::bound, {0.0, 1e3, true},
                  "in place of tau: reuse while the predicted relative L2 error of the attention "
                  "output is below this; needs a reuse file with row_errors"),
      real_option("sure", &PolicyOptions::sure, {0.0, 1.0, true},
                  "read everything unless the step before left tokens undecided that are at least "
                  "this probable"),
      file_option("reuse", &PolicyOptions::reuse_file,
                  "calibration file with the heads that may reuse; without it all heads may")};
  entry.within_block = [](const PolicyOptions&) { return true; };
  entry.check = [](const PolicyOptions& asked) {
    if (!asked.bound) return;
    if (asked.tau || asked.count) {
      throw UsageError(
          "flashblock: expected bound or tau and count, got both: bound decides in their place");
    }
    if (asked.reuse_file.empty()) {
      throw UsageError(
          "flashblock: expected a reuse file with row_errors for bound, got none. HINT: "
          "flashblock,bound=0.1,reuse=reuse.json");
    }
  };
  entry.make = [](const PolicyOptions& asked, const PolicyModel& model, nlohmann::json& settings) {
    FlashBlockOptions options;
    options.num_layers = model.num_layers;
    options.num_heads = model.num_heads;
    ReuseFile file;
    std::string digest;
    if (!asked.reuse_file.empty()) {
      const ReuseModel this_model{model.num_layers, model.num_heads, model.num_kv_heads,
                                  model.digest};
      file = read_reuse_file(asked.reuse_file, this_model);
      options.reuse = file.reuse;
      digest = sha256_hex(to_json(file));
    }
    options.rule = reuse_rule(asked.tau, asked.count, file);
    options.rule.refresh = asked.refresh;
    if (asked.bound) {
      options.bound = error_bound(*asked.bound, file, asked.reuse_file);
    } else {
      settings["tau"] = static_cast<int64_t>(options.rule.tau);
      settings["count"] = to_string(options.rule.count);
    }
    options.sure = asked.sure.value_or(0.0);
    settings["reuse_file"] = asked.reuse_file;
    settings["reuse_digest"] = digest;
    return make_flashblock_policy(std::move(options));
  };
  return entry;
}

}  // namespace blockscope
