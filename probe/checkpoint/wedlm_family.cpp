// WeDLM (Tencent): Qwen2.5's or Qwen3's layers with causal attention over tokens in another order.
#include "probe/checkpoint/family_table.h"

namespace blockscope {

Family wedlm_family() {
  Family family;
  family.name = "wedlm";
  family.architectures = {"WeDLMForCausalLM"};
  family.meaning = "WeDLM, causal attention over reordered tokens";
  family.source = "WeDLM, engine/wedlm_decoder.py:WeDLMDecoder";
  family.refusal =
      "it decodes in a sliding window that moves the decided tokens in front of the masks, with "
      "causal attention over this order; the runtime's blocks keep their order";
  return family;
}

}  // namespace blockscope
