#include "probe/run_flags.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <utility>

#include "decode_record/error.h"
#include "decode_record/reuse_file.h"

namespace blockscope {
namespace {

at::ScalarType resolve_dtype(const std::string& flag, const std::string& config_dtype) {
  const std::string name = flag == "auto" ? config_dtype : flag;
  if (name == "float32" || name.empty()) return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  throw UsageError(
      fmt::format("--dtype: expected auto, float32, bfloat16 or float16, got '{}'", name));
}

}  // namespace

void add_model_flags(CLI::App& app, ModelFlags& flags) {
  app.add_option("model", flags.model, "Checkpoint folder, or a model id in the local hub cache")
      ->required();
  app.add_option("--revision", flags.revision, "Revision of a model id")->capture_default_str();
  app.add_option("--dtype", flags.dtype, "auto (the checkpoint's), float32, bfloat16, float16")
      ->capture_default_str();
  app.add_option("--mask-token-id", flags.overrides.mask_token_id, "Overrides the mask token id");
  app.add_option("--block-length", flags.overrides.block_length, "Overrides the block length B");
  app.add_option("--threads", flags.threads, "CPU threads (0: all)")->capture_default_str();
}

LoadedModel load_model(const ModelFlags& flags, const Environment& environment) {
  if (flags.threads < 0) {
    throw UsageError(fmt::format("--threads: expected 0 (all) or more, got {}", flags.threads));
  }
  if (flags.threads > 0) at::set_num_threads(flags.threads);
  LoadedModel loaded;
  loaded.source = resolve_model(flags.model, flags.revision, environment.hub);
  const Checkpoint checkpoint = Checkpoint::open(loaded.source.folder, flags.overrides);
  loaded.config = checkpoint.config();
  loaded.digest = checkpoint.digest();
  loaded.checkpoint_bytes = checkpoint.total_bytes();
  loaded.dtype = resolve_dtype(flags.dtype, loaded.config.dtype);
  loaded.model =
      std::make_shared<BlockDiffusionModel>(BlockDiffusionModel::load(checkpoint, loaded.dtype));
  return loaded;
}

std::string LoadedModel::model_json() const {
  const nlohmann::json json = {
      {"requested", source.requested},
      {"revision", source.revision},
      {"snapshot", source.snapshot},
      {"digest", digest},
      {"compute_dtype", dtype == at::kFloat  ? "float32"
                        : dtype == at::kHalf ? "float16"
                                             : "bfloat16"},
      {"architecture", config.architecture},
      {"model_type", config.model_type},
      {"layers", config.num_layers},
      {"heads", config.num_heads},
      {"kv_heads", config.num_kv_heads},
      {"head_dim", config.head_dim},
      {"resolved", nlohmann::json::parse(resolved_json(config))},
  };
  return json.dump();
}

void add_decoding_flags(CLI::App& app, DecodingFlags& flags) {
  app.add_option("--gen-length", flags.gen_length,
                 "Positions to generate; the last block is always completed")
      ->capture_default_str();
  app.add_option("--strategy,--remasking", flags.strategy,
                 "sequential, low_confidence_static, low_confidence_dynamic, entropy_bounded, "
                 "threshold or factor")
      ->capture_default_str();
  app.add_option("--denoising-steps", flags.denoising_steps,
                 "At most this many denoising steps a block (0: the block length)")
      ->capture_default_str();
  app.add_option("--threshold", flags.threshold, "Confidence for dynamic (>) and threshold (>=)")
      ->capture_default_str();
  app.add_option("--eb-threshold", flags.eb_threshold, "Summed entropy in nats, entropy_bounded")
      ->capture_default_str();
  app.add_option("--factor", flags.factor, "Fast-dLLM's factor f")->capture_default_str();
  app.add_option("--temperature", flags.sampling.temperature, "0 is greedy")->capture_default_str();
  app.add_option("--top-k", flags.sampling.top_k, "0: off")->capture_default_str();
  app.add_option("--top-p", flags.sampling.top_p, "1: off")->capture_default_str();
  app.add_option("--seed", flags.sampling.seed, "Seed of the random streams")
      ->capture_default_str();
  app.add_option("--stop-id", flags.stop_ids, "Stop token ids (default: the checkpoint's)");
  app.add_flag("--no-stop", flags.no_stop, "Ignore stop tokens");
  app.add_option("--batch-size", flags.batch_size, "Prompts decoded together")
      ->capture_default_str();
}

DecodeOptions decode_options(const DecodingFlags& flags, const ModelConfig& config) {
  DecodeOptions options;
  const bool blocks = !config.attention_causal || config.mask_token_id.has_value();
  options.mask_token_id = blocks ? require_mask_token_id(config) : -1;
  UnmaskingOptions& unmasking = options.unmasking;
  unmasking.block_length = blocks ? require_block_length(config) : 1;
  unmasking.strategy = parse_strategy(flags.strategy);
  unmasking.denoising_steps =
      flags.denoising_steps == 0 ? unmasking.block_length : flags.denoising_steps;
  unmasking.threshold = flags.threshold;
  unmasking.eb_threshold = flags.eb_threshold;
  unmasking.factor = flags.factor;
  options.sampling = flags.sampling;
  if (flags.batch_size < 1) {
    throw UsageError(fmt::format("--batch-size: expected at least 1, got {}", flags.batch_size));
  }
  if (flags.no_stop && !flags.stop_ids.empty()) {
    throw UsageError("--no-stop and --stop-id contradict each other: give one of them");
  }
  if (!flags.no_stop) {
    options.stop_ids = flags.stop_ids.empty() ? config.stop_token_ids : flags.stop_ids;
  }
  check_decode_options(options, config);
  return options;
}

void add_policy_flags(CLI::App& app, PolicyFlags& flags) {
  app.add_option("--policy", flags.policy, "exact or flashblock")->capture_default_str();
  app.add_option("--tau", flags.tau, "flashblock: reuse when fewer than tau tokens changed")
      ->capture_default_str();
  app.add_option("--reuse", flags.reuse_file, "flashblock: calibration file with the heads");
  app.add_flag("--shadow", flags.shadow, "Compute the exact attention beside the policy");
}

std::unique_ptr<AttentionPolicy> make_policy(const PolicyFlags& flags, const LoadedModel& model) {
  if (flags.policy == "exact") {
    if (!flags.reuse_file.empty()) {
      throw UsageError("--reuse: needs --policy flashblock, got --policy exact");
    }
    if (flags.shadow) {
      throw UsageError("--shadow: needs a policy other than exact, which is its own shadow");
    }
    return make_exact_policy();
  }
  if (flags.policy != "flashblock") {
    throw UsageError(fmt::format("--policy: expected exact or flashblock, got '{}'", flags.policy));
  }
  if (flags.tau < 1) {
    throw UsageError(fmt::format("--tau: expected at least 1, got {}", flags.tau));
  }
  FlashBlockOptions options{model.config.num_layers, model.config.num_heads, flags.tau, {}};
  if (!flags.reuse_file.empty()) {
    const ReuseModel this_model{model.config.num_layers, model.config.num_heads,
                                model.config.num_kv_heads, model.digest};
    options.reuse = read_reuse_file(flags.reuse_file, this_model).reuse;
  }
  return make_flashblock_policy(std::move(options));
}

}  // namespace blockscope
