// What a decoding run accepts, checked before the first pass.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "decode_record/base/error.h"
#include "probe/checkpoint/family_table.h"
#include "probe/checkpoint/rope.h"
#include "probe/decode/decoder.h"
#include "probe/decode/gen_length.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {

int64_t block_start(int64_t prompt_length, int64_t block, const DecodeOptions& options) {
  return (options.blocks_after_prompt() ? prompt_length : 0) + block * options.block_length();
}

int64_t first_block(int64_t prompt_length, const DecodeOptions& options) {
  return options.blocks_after_prompt() ? 0 : prompt_length / options.block_length();
}

int64_t generated_positions(int64_t prompt_length, int64_t gen_length,
                            const DecodeOptions& options) {
  if (options.autoregressive() || options.bidirectional || options.drafted) return gen_length;
  const int64_t block_length = options.block_length();
  if (options.canvas) return (gen_length + block_length - 1) / block_length * block_length;
  if (options.sub_blocks()) {
    const int64_t blocks = prompt_length / block_length + gen_length / block_length;
    return blocks * block_length + 1 - prompt_length;
  }
  const int64_t blocks = (prompt_length + gen_length + block_length - 1) / block_length;
  return blocks * block_length - prompt_length;
}

int64_t gen_length_of(int64_t prompt_length, int64_t positions, const DecodeOptions& options) {
  if (!options.sub_blocks()) return positions;
  const int64_t block_length = options.block_length();
  const int64_t blocks = (prompt_length + positions - 1) / block_length;
  return (blocks - prompt_length / block_length) * block_length;
}

int64_t cache_positions(int64_t prompt_length, int64_t gen_length, const DecodeOptions& options) {
  return prompt_length + generated_positions(prompt_length, gen_length, options) -
         (options.sub_blocks() ? 1 : 0);
}

int64_t longest_sequence(const std::vector<DecodeRequest>& requests, const DecodeOptions& options) {
  int64_t longest = 0;
  for (const DecodeRequest& request : requests) {
    longest = std::max(longest, cache_positions(static_cast<int64_t>(request.prompt.size()),
                                                request.gen_length, options));
  }
  return longest;
}

KvCacheShape cache_shape(const ModelConfig& config, int64_t slots, int64_t capacity,
                         int64_t stored) {
  KvCacheShape shape{config.num_layers, slots, config.num_kv_heads, capacity, config.head_dim};
  for (const LayerShape& layer : config.layer_shapes) {
    shape.layers.push_back({layer.num_kv_heads, layer.head_dim, layer.window});
  }
  shape.most_stored = stored;
  return shape;
}

KvCacheShape cache_shape(const ModelConfig& config, const std::vector<DecodeRequest>& requests,
                         const DecodeOptions& options) {
  return cache_shape(config, std::ssize(requests), longest_sequence(requests, options),
                     std::max(options.prefill_chunk, options.block_length()));
}

namespace {

std::string with_sub_blocks() {
  return list_of(families_with([](const Family& family) { return family.sub_block_length > 0; }));
}

/// Checks the cache against the model's kind of attention and decoding.
void check_cache_fits(const DecodeOptions& options) {
  const CacheEntry& entry = cache_entry(options.cache);
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("cache {}: {}", entry.name, why));
  };
  if (options.autoregressive() && !entry.any_causal) {
    refuse(
        "does nothing for a model that decodes token by token, which keeps every key as it is. "
        "HINT: leave the option out");
  }
  const bool of_bidirectional = entry.model == CacheModel::bidirectional;
  if (options.bidirectional && !of_bidirectional) {
    refuse(
        fmt::format("keeps finished blocks, but a bidirectional model's keys change with every "
                    "later token. HINT: use {}",
                    caches_of(CacheModel::bidirectional)));
  }
  if (!options.bidirectional && of_bidirectional) {
    refuse(
        fmt::format("is for models whose keys outside the block change; those of a {} don't. HINT: "
                    "leave the option out",
                    options.canvas ? "model with canvases" : "block-causal model"));
  }
  if (entry.model == CacheModel::sub_blocks && !options.sub_blocks()) {
    refuse(
        fmt::format("keeps the keys of a block's other sub-blocks, but only {} has sub-blocks. "
                    "HINT: leave the option out",
                    with_sub_blocks()));
  }
  if (entry.fuses_commits && options.canvas) {
    refuse(
        "commits a block in the pass of the next block's first step, but the keys of a canvas come "
        "from another pass, the encoder's. HINT: use commit, or leave the option out");
  }
  if (entry.fuses_commits && options.sub_blocks()) {
    refuse(
        fmt::format("commits a block in the pass of the next block's first step, but {}'s "
                    "blocks begin with a token that only the commit predicts. HINT: use {}",
                    with_sub_blocks(), caches_of(CacheModel::sub_blocks)));
  }
}

void check_stop_ids(const DecodeOptions& options, int64_t vocab_size) {
  for (const int64_t id : options.stop_ids) {
    if (id < 0 || id >= vocab_size) {
      throw UsageError(
          fmt::format("stop id: expected one in [0, {}), got {}. HINT: leave it out to use the "
                      "checkpoint's own stop tokens",
                      vocab_size, id));
    }
    if (id == options.mask_token_id) {
      throw UsageError(fmt::format(
          "stop id: expected another token than the mask token, got {}: every block would stop. "
          "HINT: leave it out to use the checkpoint's own stop tokens",
          id));
    }
  }
}

}  // namespace

void check_decode_options(const DecodeOptions& options, const ModelConfig& config) {
  check_sampling_options(options.sampling);
  check_cache_fits(options);
  if (options.canvas && options.sampling.temperature != 0.0) {
    throw UsageError(
        "temperature: the steps of a canvas have their own, which fall. HINT: leave "
        "--temperature, --top-k and --top-p out, or give t_max and t_min to the strategy canvas");
  }
  if (options.autoregressive()) {
    if (options.block_length() != 1) {
      throw UsageError(
          fmt::format("autoregressive decoding: expected block length 1, got {}. HINT: give a mask "
                      "token id to decode block by block",
                      options.block_length()));
    }
  } else {
    check_unmasking_options(options.unmasking);
    if (options.mask_token_id >= config.vocab_size) {
      throw UsageError(fmt::format(
          "mask token id: expected one below the vocabulary size {}, got {}. HINT: give "
          "the id of the checkpoint's mask token",
          config.vocab_size, options.mask_token_id));
    }
    const CacheEntry& cache = cache_entry(options.cache);
    const bool edit_tokens = options.delete_token_id >= 0 && options.split_token_id >= 0;
    check_strategy_fits(options.unmasking,
                        {options.bidirectional, options.canvas, config.logit_shift != 0,
                         !cache.approximates, edit_tokens, cache.name});
  }
  if (options.sub_blocks() && options.block_length() % options.sub_block_length != 0) {
    throw UsageError(
        fmt::format("sub-block length: expected a divisor of the block length {}, got {}. HINT: "
                    "leave it out for the greatest common divisor of 8 and the block length",
                    options.block_length(), options.sub_block_length));
  }
  const int64_t routed = config.moe ? config.moe->routing_block : 0;
  if (routed > 0 && options.block_length() % routed != 0) {
    throw UsageError(
        fmt::format("block length: expected a multiple of the checkpoint's block_size {}, whose "
                    "rows choose experts together, got {}. HINT: use {}",
                    routed, options.block_length(), routed));
  }
  check_stop_ids(options, config.vocab_size);
}

namespace {

/// The answer of a replay while its steps are checked.
class ReplayCheck {
 public:
  ReplayCheck(const DecodeRequest& request, const DecodeOptions& options, int64_t vocab_size)
      : request_(request),
        options_(options),
        vocab_size_(vocab_size),
        prompt_length_(std::ssize(request.prompt)) {
    const int64_t length = generated_positions(prompt_length_, request.gen_length, options);
    tokens_ = request.prompt;
    tokens_.resize(static_cast<size_t>(prompt_length_ + length), options.mask_token_id);
  }

  /// Throws PromptError.
  void take(const ReplayStep& step) {
    if (options_.canvas && step.step > options_.unmasking.denoising_steps) {
      throw PromptError(fmt::format(
          "replay: sequence {}, block {}: step {} of at most {}: the temperature of a canvas "
          "depends on that number. HINT: --denoising-steps of the recorded run",
          request_.sequence, step.block, step.step, options_.unmasking.denoising_steps));
    }
    if (!step.noise_positions.empty() && !options_.canvas) {
      throw PromptError(fmt::format(
          "replay: sequence {}: the trace has canvases of random tokens, this model has masks. "
          "HINT: replay it into a model with canvases",
          request_.sequence));
    }
    check_block(step);
    std::set<int64_t> seen;
    for (size_t i = 0; i < step.positions.size(); ++i) {
      const int64_t position = step.positions[i];
      check_position(step, position, 0);
      if (!seen.insert(position).second) {
        refuse(step, fmt::format("position {} was already decided", position));
      }
      take_token(step, position, step.tokens[i]);
    }
    for (size_t i = 0; i < step.noise_positions.size(); ++i) {
      const int64_t position = step.noise_positions[i];
      check_position(step, position, 0);
      if (!seen.insert(position).second) {
        refuse(step, fmt::format("position {} takes no random token", position));
      }
      check_token(step, step.noise_tokens[i]);
      tokens_[static_cast<size_t>(position)] = options_.mask_token_id;
    }
    if (!step.inserted.empty() || !step.deleted.empty()) move(step);
  }

 private:
  [[noreturn]] void refuse(const ReplayStep& step, const std::string& what) const {
    throw PromptError(
        fmt::format("replay: sequence {}, block {}, step {}: {}. HINT: use "
                    "the block length, prompts and gen length of the recorded run",
                    request_.sequence, step.block, step.step, what));
  }

  void check_block(const ReplayStep& step) {
    const bool first = !block_;
    const int64_t expected = block_.value_or(first_block(prompt_length_, options_));
    if (step.block != expected && (first || step.block != expected + 1)) {
      refuse(step, "blocks are not consecutive");
    }
    block_ = step.block;
  }

  /// `beyond`: positions after the block's end that are allowed, too.
  void check_position(const ReplayStep& step, int64_t position, int64_t beyond) const {
    const int64_t end = block_start(prompt_length_, step.block + 1, options_);
    if (position >= std::max(block_start(prompt_length_, step.block, options_), prompt_length_) &&
        position < end + beyond && position < std::ssize(tokens_) + beyond) {
      return;
    }
    refuse(step, fmt::format("position {} is not a generated position of the block", position));
  }

  void take_token(const ReplayStep& step, int64_t position, int64_t token) {
    int64_t& held = tokens_[static_cast<size_t>(position)];
    const bool masked = held == options_.mask_token_id;
    if (token != options_.mask_token_id) check_token(step, token);
    if (token == options_.mask_token_id) {
      if (masked) refuse(step, fmt::format("position {} holds no token to take back", position));
      refuse_kept(step, "takes a token back");
    } else if (held == token) {
      refuse(step, fmt::format("position {} was already decided as token {}", position, token));
    } else if (!masked) {
      refuse_kept(step, "replaces a token");
    }
    held = token;
  }

  void check_token(const ReplayStep& step, int64_t token) const {
    if (token >= 0 && token < vocab_size_) return;
    refuse(step,
           fmt::format("token {} is not in this model's vocabulary of {}", token, vocab_size_));
  }

  /// Sub-blocks and their cache keep rows of decided positions.
  void refuse_kept(const ReplayStep& step, const std::string& what) const {
    if (!options_.sub_blocks()) return;
    refuse(step, "the step " + what + ", which is not defined for a model with sub-blocks");
  }

  void move(const ReplayStep& step) {
    if (options_.bidirectional || options_.sub_blocks()) {
      refuse(step, "positions are inserted and deleted, which only block-causal models do");
    }
    const int64_t begin = block_start(prompt_length_, step.block, options_);
    for (const int64_t position : step.inserted) check_position(step, position, 1);
    const auto grown = std::ssize(step.inserted);
    for (const int64_t position : step.deleted) check_position(step, position, grown);
    if (std::ssize(step.deleted) != grown) {
      refuse(step, fmt::format("expected as many positions deleted as inserted, got {} and {}",
                               step.deleted.size(), grown));
    }
    const auto first = tokens_.begin() + begin;
    std::vector<int64_t> block(first, first + options_.block_length());
    const auto in_block = [&](std::vector<int64_t> positions) {
      for (int64_t& position : positions) position -= begin;
      std::ranges::sort(positions);
      return positions;
    };
    move_tokens(block, in_block(step.inserted), in_block(step.deleted), options_.mask_token_id);
    if (std::ssize(block) != options_.block_length()) refuse(step, "a position is deleted twice");
    std::ranges::copy(block, first);
  }

  const DecodeRequest& request_;
  const DecodeOptions& options_;
  const int64_t vocab_size_;
  const int64_t prompt_length_;
  std::vector<int64_t> tokens_;
  std::optional<int64_t> block_;
};

/// Checks the recorded steps against this run: the blocks are the same, positions lie in them and
/// after the prompt, no token replaces its equal, and only tokens are taken back.
void check_replay(const DecodeRequest& request, const DecodeOptions& options, int64_t vocab_size) {
  ReplayCheck check(request, options, vocab_size);
  for (const ReplayStep& step : request.replay) check.take(step);
}

/// For a drafted run. A replay gives it the answer's tokens, not its rounds.
void check_given_answer(const DecodeRequest& request, int64_t vocab_size) {
  for (const ReplayStep& step : request.replay) {
    for (const int64_t token : step.tokens) {
      if (token >= 0 && token < vocab_size) continue;
      throw PromptError(
          fmt::format("replay: sequence {}, block {}, step {}: token {} is not in this model's "
                      "vocabulary of {}. HINT: replay answers of a model with the same tokenizer",
                      request.sequence, step.block, step.step, token, vocab_size));
    }
  }
}

}  // namespace

void check_request(const DecodeRequest& request, const DecodeOptions& options,
                   const ModelConfig& config) {
  const int64_t length = static_cast<int64_t>(request.prompt.size());
  const auto where = fmt::format("prompt {}", request.sequence);
  if (length == 0) throw PromptError(where + ": expected at least one token, got an empty prompt");
  const std::string refusal = gen_length_refusal(request.gen_length, options);
  if (!refusal.empty()) throw PromptError(fmt::format("{}: gen length: {}", where, refusal));
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    const int64_t id = request.prompt[i];
    if (id < 0 || id >= config.vocab_size) {
      throw PromptError(fmt::format("{}: token {}: expected an id in [0, {}), got {}", where, i,
                                    config.vocab_size, id));
    }
    if (id == options.mask_token_id) {
      throw PromptError(fmt::format(
          "{}: token {} is the mask token {}: a prompt must not contain masks", where, i, id));
    }
  }
  const int64_t total = cache_positions(length, request.gen_length, options);
  if (total > largest_position_count(config)) {
    const bool dynamic = config.rope.type == RopeType::kDynamic;
    throw PromptError(fmt::format(
        "{}: {} prompt tokens and {} to generate need {} positions, but the model has {} "
        "(max_position_embeddings{}). HINT: shorten the prompt or lower the gen length",
        where, length, request.gen_length, total, largest_position_count(config),
        dynamic ? " times the factor of its dynamic RoPE scaling" : ""));
  }
  if (!request.replayed) return;
  if (options.drafted) return check_given_answer(request, config.vocab_size);
  check_replay(request, options, config.vocab_size);
}

}  // namespace blockscope
