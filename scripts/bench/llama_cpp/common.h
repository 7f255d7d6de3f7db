// What llama.cpp's examples/diffusion/diffusion.cpp uses of its common library: a batch of tokens.
#pragma once

#include <cstdint>

#include "llama-cpp.h"

class common_batch {
 public:
  explicit common_batch(llama_context* context) : batch_(llama_batch_ext_init(context)) {}
  void clear() { llama_batch_ext_clear(batch_.get()); }
  void add(llama_token id, llama_pos position, llama_seq_id sequence, bool output) {
    const int32_t index = llama_batch_ext_add_token(batch_.get(), sequence, id);
    llama_batch_ext_set_pos(batch_.get(), index, &position);
    if (output) llama_batch_ext_set_output_logits(batch_.get(), index, true);
  }
  llama_batch_ext* get() { return batch_.get(); }

 private:
  llama_batch_ext_ptr batch_;
};
