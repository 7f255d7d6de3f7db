#include "analysis/metrics/teacher_quantities.h"

namespace blockscope {

const std::vector<TeacherQuantityEntry>& teacher_quantities() {
  using Q = TeacherQuantity;
  using H = TeacherHeads;
  static const std::vector<TeacherQuantityEntry> entries{
      {Q::hidden, "hidden", "hidden", Field::hidden, H::none, true,
       "the layer before: its feed-forward part, its output projection or a residual; at layer 0 "
       "the embedding"},
      {Q::query, "query", "query", Field::query, H::query, true,
       "this layer's input norm, query projection, QK-norm or RoPE"},
      {Q::key, "key", "key", Field::block_key, H::kv, true,
       "this layer's key projection, QK-norm or RoPE"},
      {Q::value, "value", "value", Field::block_value, H::kv, true,
       "this layer's value projection or value norm"},
      {Q::lse_internal, "lse_internal", "L_in", Field::attention_lse_internal, H::query, true,
       "the mask inside the block, the softmax scale, or the keys if they are not recorded"},
      {Q::lse_external, "lse_external", "L_out", Field::attention_lse_external, H::query, true,
       "the keys before the block: how many are read (a window, a mask), their positions, or how "
       "the cache stores them"},
      {Q::internal, "internal", "A_in", Field::attention_internal, H::query, true,
       "the values of the block, or how the weights are applied to them"},
      {Q::external, "external", "A_out", Field::attention_external, H::query, true,
       "the values before the block: which keys they belong to, or how the cache stores them"},
      {Q::merged, "merged", "merged", Field::attention_external, H::query, true,
       "how the two parts of the attention are merged"},
      {Q::expert, "expert", "experts", Field::router_expert, H::none, true,
       "a near-tie if the gap is tiny; else the router's input (output projection, norm), its "
       "weights, or its groups"},
      {Q::router_weight, "router_weight", "weights", Field::router_weight, H::none, true,
       "how the chosen experts' weights are normalised or scaled"},
      {Q::token, "token", "token", Field::prediction_token, H::none, false,
       "a near-tie if the confidences are close; else the last layer, the final norm or the LM "
       "head"},
      {Q::confidence, "confidence", "confidence", Field::prediction_confidence, H::none, false,
       "the last layer, the final norm, the LM head, or a soft cap of the logits"}};
  return entries;
}

const TeacherQuantityEntry& entry_of(TeacherQuantity quantity) {
  return teacher_quantities().at(static_cast<std::size_t>(quantity));
}

}  // namespace blockscope
