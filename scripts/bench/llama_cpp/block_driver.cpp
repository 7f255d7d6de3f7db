// Decodes block by block with libllama as `blockscope --cache commit` does, one token a step,
// greedy by confidence, and prints its times; llama_block_pair.py has the commands that build and
// run it.
//
//   block_driver MODEL.gguf THREADS GEN_LENGTH BLOCK_LENGTH MASK_ID f16|f32 FLASH(0|1)
//   LOGITS_FILE|- < ids of the prompt
//
// A block is one batch after the KV cache, without causal attention. The prefill, block after
// block, is therefore exactly block-causal. A denoising pass requests the logits of masked
// positions only, and its KV entries are removed before the next pass. LOGITS_FILE gets the logits
// of the whole blocks of the prompt and of one block of masks after them, positions x vocabulary
// float32.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "llama.h"

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Decoder {
  llama_context* context;
  int block_length;
  llama_token mask;
  int32_t vocabulary;
  llama_batch batch = llama_batch_init(block_length, 0, 1);
  double in_decode = 0;

  enum class Logits { none, masked, all };

  /// One pass over the block that starts at this position.
  void forward(const llama_token* block, int start, Logits logits) {
    batch.n_tokens = block_length;
    for (int i = 0; i < block_length; ++i) {
      batch.token[i] = block[i];
      batch.pos[i] = start + i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = logits == Logits::all || (logits == Logits::masked && block[i] == mask);
    }
    const double begin = now();
    if (llama_decode(context, batch) != 0) {
      std::fprintf(stderr, "llama_decode failed\n");
      std::exit(1);
    }
    llama_synchronize(context);
    in_decode += now() - begin;
  }

  /// Decides the masked position whose best token is most probable.
  void decide(llama_token* block) const {
    double best = -1;
    int position = 0;
    llama_token decided = 0;
    for (int i = 0; i < block_length; ++i) {
      if (block[i] != mask) continue;
      const float* row = llama_get_logits_ith(context, i);
      const float* top = std::max_element(row, row + vocabulary);
      float sum = 0;
      for (int32_t v = 0; v < vocabulary; ++v) sum += std::exp(row[v] - *top);
      if (1 / sum > best) {
        best = 1 / sum;
        position = i;
        decided = static_cast<llama_token>(top - row);
      }
    }
    block[position] = decided;
  }
};

/// Logits of the blocks of the prompt and of the block after them.
int write_logits(Decoder& decoder, const std::vector<llama_token>& canvas, int prefix,
                 const char* path) {
  std::FILE* file = std::fopen(path, "wb");
  const int length = decoder.block_length;
  for (int start = 0; start <= prefix && start < static_cast<int>(canvas.size()); start += length) {
    decoder.forward(canvas.data() + start, start, Decoder::Logits::all);
    std::fwrite(llama_get_logits(decoder.context), sizeof(float),
                static_cast<size_t>(length) * decoder.vocabulary, file);
  }
  return std::fclose(file) == 0 ? 0 : 1;
}

/// One context of block_length tokens a batch; null: it could not be made.
llama_context* make_context(llama_model* model, size_t canvas, int block_length, bool float32,
                            bool flash, int threads) {
  llama_context_params options = llama_context_default_params();
  options.n_ctx = static_cast<uint32_t>(canvas);
  options.n_batch = options.n_ubatch = static_cast<uint32_t>(block_length);
  options.type_k = options.type_v = float32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
  options.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* context = llama_init_from_model(model, options);
  if (context == nullptr) return nullptr;
  llama_set_n_threads(context, threads, threads);
  llama_set_causal_attn(context, false);
  return context;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) return 2;
  const int threads = std::atoi(argv[2]), gen_length = std::atoi(argv[3]),
            block_length = std::atoi(argv[4]);
  const llama_token mask = std::atoi(argv[5]);
  std::vector<llama_token> canvas;
  for (int id = 0; std::scanf("%d", &id) == 1;) canvas.push_back(id);
  const int prefix = static_cast<int>(canvas.size()) / block_length * block_length;
  const int blocks =
      (static_cast<int>(canvas.size()) + gen_length + block_length - 1) / block_length;
  canvas.resize(static_cast<size_t>(blocks) * block_length, mask);
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) return 1;
  llama_context* context =
      make_context(model, canvas.size(), block_length, std::string(argv[6]) == "f32",
                   std::atoi(argv[7]) != 0, threads);
  if (context == nullptr) return 1;
  llama_memory_t memory = llama_get_memory(context);
  Decoder decoder{context, block_length, mask, llama_vocab_n_tokens(llama_model_get_vocab(model))};

  if (std::string(argv[8]) != "-") return write_logits(decoder, canvas, prefix, argv[8]);
  const std::vector<llama_token> prompt = canvas;
  for (int run = 0; run < 2; ++run) {  // the first one warms up
    canvas = prompt;
    llama_memory_clear(memory, true);
    const double begin = now();
    for (int start = 0; start < prefix; start += block_length) {
      decoder.forward(canvas.data() + start, start, Decoder::Logits::none);
    }
    const double prefilled = now();
    decoder.in_decode = 0;
    int steps = 0;
    for (int start = prefix; start < static_cast<int>(canvas.size()); start += block_length) {
      llama_token* block = canvas.data() + start;
      for (; std::count(block, block + block_length, mask) > 0; ++steps) {
        decoder.forward(block, start, Decoder::Logits::masked);
        decoder.decide(block);
        llama_memory_seq_rm(memory, 0, start, -1);
      }
      decoder.forward(block, start, Decoder::Logits::none);
    }
    if (run == 0) continue;
    const double seconds = now() - prefilled;
    std::printf(
        "{\"prefill_s\": %.6f, \"blocks_s\": %.6f, \"forward_s\": %.6f, \"denoising_passes\": %d, "
        "\"block_passes\": %d, \"tokens\": [",
        prefilled - begin, seconds, decoder.in_decode, steps,
        steps + blocks - prefix / block_length);
    for (size_t i = 0; i < canvas.size(); ++i) std::printf(i == 0 ? "%d" : ", %d", canvas[i]);
    std::printf("]}\n");
  }
}
