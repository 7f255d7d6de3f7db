// Runs llama.cpp's own diffusion decoder (examples/diffusion/diffusion.cpp) over token ids and
// prints its times a step; llama_cpp_pair.py has the commands that build and run it.
//
//   driver MODEL.gguf THREADS LENGTH BLOCK_LENGTH MASK_ID LOGITS_FILE|- < ids of the prompt
//
// The whole canvas is one batch, as llama-diffusion-cli has it; as many steps as blocks.
// LOGITS_FILE gets the logits of the first pass, LENGTH x vocabulary float32.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "common.h"
#include "diffusion.h"

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  const int threads = std::atoi(argv[2]);
  const int length = std::atoi(argv[3]);
  std::vector<llama_token> prompt;
  for (int id = 0; std::scanf("%d", &id) == 1;) prompt.push_back(id);
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr || !llama_model_is_diffusion(model)) return 1;
  llama_context_params options = llama_context_default_params();
  options.n_ctx = options.n_batch = options.n_ubatch = static_cast<uint32_t>(length);
  llama_context* context = llama_init_from_model(model, options);
  if (context == nullptr) return 1;
  llama_set_n_threads(context, threads, threads);

  diffusion_params params;
  char shift[8] = "true";
  llama_model_meta_val_str(model, "diffusion.shift_logits", shift, sizeof(shift));
  params.shift_logits = std::strcmp(shift, "true") == 0;
  params.schedule = DIFFUSION_TRANSFER_SCHEDULE_BLOCK_BASED;
  params.block_length = std::atoi(argv[4]);
  params.steps = length / params.block_length;
  params.algorithm = DIFFUSION_ALGORITHM_CONFIDENCE_BASED;
  params.max_length = length;
  params.top_p = 1.0F;
  params.mask_token_id = std::atoi(argv[5]);  // a file without a vocabulary names none
  std::vector<llama_token> output(static_cast<size_t>(length));
  int32_t generated = 0;

  if (std::string(argv[6]) != "-") {
    llama_set_causal_attn(context, false);
    common_batch batch(context);
    for (int i = 0; i < length; ++i) {
      const auto at = static_cast<size_t>(i);
      batch.add(at < prompt.size() ? prompt[at] : params.mask_token_id, i, 0, true);
    }
    if (llama_process(context, LLAMA_PROCESS_TYPE_DECODE, batch.get()) != 0) return 1;
    const int32_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::FILE* file = std::fopen(argv[6], "wb");
    std::fwrite(llama_get_logits(context), sizeof(float),
                static_cast<size_t>(length) * static_cast<size_t>(vocabulary), file);
    std::fclose(file);
    return 0;
  }
  for (int run = 0; run < 2; ++run) {  // the first one warms up
    diffusion_generate(context, prompt.data(), output.data(), static_cast<int32_t>(prompt.size()),
                       params, generated);
  }
  for (const llama_token id : output) std::printf("%d ", id);
  std::printf("\n");
  return generated > 0 ? 0 : 1;
}
