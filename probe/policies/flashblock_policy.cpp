#include "probe/policies/flashblock_policy.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "decode_record/base/sha256.h"
#include "decode_record/interchange/reuse_file.h"
#include "decode_record/schema/reuse_rule.h"
#include "kernels/ops.h"
#include "probe/policies/exact_policy.h"
#include "probe/policies/policy_table.h"

namespace blockscope {
namespace {

class FlashBlockPolicy : public AttentionPolicy {
 public:
  explicit FlashBlockPolicy(FlashBlockOptions options) : options_(std::move(options)) {
    cached_.resize(static_cast<size_t>(options_.num_layers));
  }

  std::string name() const override { return "flashblock"; }

  void begin_pass(const PassContext& context) override {
    may_reuse_.clear();
    for (const SequencePass& sequence : context.sequences) {
      const bool denoise = sequence.kind == PassKind::denoise;
      may_reuse_.push_back(denoise && reuses_external(sequence.step, sequence.changed,
                                                      static_cast<double>(options_.tau)));
    }
    refreshes_ = std::find(may_reuse_.begin(), may_reuse_.end(), false) != may_reuse_.end();
    if (refreshes_) ++generation_;
  }

  AttentionParts attend(const AttentionInput& input, const ExternalKeys& external) override {
    CachedPair& cached = cached_[static_cast<size_t>(input.layer)];
    const at::Tensor mask = reuse_mask(input.layer);
    AttentionParts parts;
    if (mask.any().item<bool>()) {
      SourcedAttention reuse =
          reuse_attention(input.q, external.key, external.value, external.length, input.k, input.v,
                          cached.external, cached.lse, mask, input.scale, input.spread);
      parts = parts_of(reuse);
      parts.reused = mask;
      parts.keys_read = std::move(reuse.keys_read);
    } else {
      parts = exact_attention(input, external);
    }
    // The pair that this pass used becomes the cached pair: the old one where heads reused it, the
    // new one elsewhere. A commit pass's pair is never read, as the next block's first step
    // recomputes.
    if (refreshes_) cached = {parts.external, parts.lse_external};
    return parts;
  }

  std::optional<std::vector<int64_t>> repeats() const override {
    if (refreshes_) return std::nullopt;
    return std::vector{generation_};
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

  /// Copies instead of writing in place: the recorder may still read the last step's tensors.
  static at::Tensor closed_up(const at::Tensor& rows, int64_t slot) {
    const int64_t last = rows.size(0) - 1;
    at::Tensor kept = rows.narrow(0, 0, last).clone();
    if (slot != last) kept.select(0, slot).copy_(rows.select(0, last));
    return kept;
  }

  at::Tensor reuse_mask(int64_t layer) const {
    const int64_t sequences = static_cast<int64_t>(may_reuse_.size());
    at::Tensor mask = at::zeros({sequences, options_.num_heads}, at::kBool);
    bool* out = mask.data_ptr<bool>();
    for (int64_t s = 0; s < sequences; ++s) {
      if (!may_reuse_[static_cast<size_t>(s)]) continue;
      for (int64_t head = 0; head < options_.num_heads; ++head) {
        out[s * options_.num_heads + head] =
            options_.reuse.empty() ||
            options_.reuse[static_cast<size_t>(layer)][static_cast<size_t>(head)];
      }
    }
    return mask;
  }

  FlashBlockOptions options_;
  std::vector<CachedPair> cached_;  // per layer
  std::vector<bool> may_reuse_;     // per slot, this pass
  bool refreshes_ = true;           // in this pass, some slot may not reuse
  int64_t generation_ = 0;          // changes when the cached pairs do
};

}  // namespace

std::unique_ptr<AttentionPolicy> make_flashblock_policy(FlashBlockOptions options) {
  return std::make_unique<FlashBlockPolicy>(std::move(options));
}

PolicyEntry flashblock_entry() {
  PolicyEntry entry;
  entry.name = "flashblock";
  entry.example = "flashblock,tau=3,reuse=reuse.json";
  entry.meaning = "reuses the external pair of an earlier step while few tokens change";
  entry.source = "FlashBlock, arXiv 2602.05305, section 4.2";
  entry.options = {
      whole_option(
          "tau", &PolicyOptions::tau, 1,
          "reuse when fewer than tau tokens changed (default: that of the reuse file, or 2)"),
      file_option("reuse", &PolicyOptions::reuse_file,
                  "calibration file with the heads that may reuse; without it all heads may")};
  entry.within_block = [](const PolicyOptions&) { return true; };
  entry.make = [](const PolicyOptions& asked, const PolicyModel& model, nlohmann::json& settings) {
    FlashBlockOptions options;
    options.num_layers = model.num_layers;
    options.num_heads = model.num_heads;
    std::optional<int64_t> tau_of_file;
    std::string digest;
    if (!asked.reuse_file.empty()) {
      const ReuseModel this_model{model.num_layers, model.num_heads, model.num_kv_heads,
                                  model.digest};
      const ReuseFile file = read_reuse_file(asked.reuse_file, this_model);
      options.reuse = file.reuse;
      tau_of_file = file.tau;
      digest = sha256_hex(to_json(file));
    }
    options.tau = reuse_tau(asked.tau, tau_of_file);
    settings["tau"] = options.tau;
    settings["reuse_file"] = asked.reuse_file;
    settings["reuse_digest"] = digest;
    return make_flashblock_policy(std::move(options));
  };
  return entry;
}

}  // namespace blockscope
