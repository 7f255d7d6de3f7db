#include "probe/checkpoint/llada2_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "probe/checkpoint/config_limits.h"

namespace blockscope {
namespace {

constexpr std::int64_t kMaxShared = 1024;
constexpr double kMaxScaling = 1e6;

/// A key that repeats what others say, in some of the published files.
void require_number(const JsonObject& file, const char* key, double expected) {
  const auto value = file.optional_number(key, -kMaxScaling, kMaxScaling);
  if (value && *value != expected) file.fail(key, fmt::format("{} or nothing", expected));
}

void refuse_other_llada2(const JsonObject& file) {
  file.require_switch("use_rmsnorm", true);
  file.require_switch("norm_head", false);
  file.require_switch("norm_softmax", false);
  file.require_switch("using_split_qkv_in_self_attention", false);
  file.require_switch("moe_router_enable_expert_bias", true);
  file.require_switch("norm_topk_prob", true,
                      "the official code normalises whatever this says, other engines do not");
  file.require_text("score_function", "sigmoid");
  file.require_text("scoring_func", "sigmoid");
  file.require_text("topk_method", "noaux_tc");
  file.require_text("router_dtype", "fp32");
  require_number(file, "num_nextn_predict_layers", 0.0);
}

MoeConfig parse_experts(const JsonObject& file, std::int64_t num_layers, std::int64_t max_width) {
  MoeConfig moe;
  moe.sigmoid = true;
  moe.num_experts = file.integer("num_experts", 1, kMaxExperts);
  require_number(file, "num_local_experts", static_cast<double>(moe.num_experts));
  moe.intermediate_size = file.integer("moe_intermediate_size", 1, max_width);
  moe.num_groups = file.integer("n_group", 1, moe.num_experts);
  const std::int64_t group_size = moe.num_experts / moe.num_groups;
  if (moe.num_experts % moe.num_groups != 0 || group_size < 2) {
    file.fail("n_group",
              fmt::format("a divisor of the {} experts that leaves groups of two or more",
                          moe.num_experts),
              "a group's score is the sum of its two best");
  }
  moe.kept_groups = file.integer("topk_group", 1, moe.num_groups);
  moe.experts_per_token = file.integer("num_experts_per_tok", 1, moe.kept_groups * group_size);
  moe.normalise = moe.experts_per_token > 1;  // one expert keeps its score
  moe.scaling = file.number("routed_scaling_factor", 0.0, kMaxScaling);
  require_number(file, "moe_router_topk_scaling_factor", moe.scaling);
  const std::int64_t shared =
      file.optional_integer("num_shared_experts", 0, kMaxShared).value_or(0);
  moe.shared_size = shared * moe.intermediate_size;
  if (moe.shared_size > max_width) {
    file.fail("num_shared_experts", fmt::format("a width of at most {}", max_width));
  }
  require_number(file, "moe_shared_expert_intermediate_size",
                 static_cast<double>(moe.intermediate_size));
  const std::int64_t dense = file.integer("first_k_dense_replace", 0, kMaxExperts);
  for (std::int64_t layer = 0; layer < num_layers; ++layer) moe.sparse.push_back(layer >= dense);
  return moe;
}

}  // namespace

void parse_llada2(const JsonObject& file, std::int64_t max_width, ModelConfig& config) {
  refuse_other_llada2(file);
  config.moe = parse_experts(file, config.num_layers, max_width);
  config.attention_bias = file.optional_boolean("use_qkv_bias").value_or(false);
  config.attention_output_bias = file.optional_boolean("use_bias").value_or(true);
}

}  // namespace blockscope
