#include "probe/run/run_flags.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "command_line/options.h"
#include "decode_record/base/error.h"
#include "probe/run/device_option.h"
#include "probe/run/frequencies_file.h"
#include "probe/run/ranks.h"

namespace blockscope {
namespace {

constexpr int64_t kSubBlockLength = 8;  // as generate() of Fast-dLLM v2
constexpr const char* kDraftRevision = "main";
constexpr uint64_t kLargestSeed = std::numeric_limits<uint64_t>::max();

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
  flags.command = app.get_name();
  app.add_option("model", flags.model, "Checkpoint folder, or a model id in the local hub cache")
      ->required();
  flags.asked_revision =
      app.add_option("--revision", flags.revision, "Revision of a model id")->capture_default_str();
  app.add_option("--dtype", flags.dtype, "auto (the checkpoint's), float32, bfloat16, float16")
      ->capture_default_str();
  app.add_option("--device", flags.device,
                 "Where the model runs: cpu, cuda (of several ranks: its own GPU) or cuda:N")
      ->capture_default_str();
  add_ranks_option(app, flags.ranks);
  app.add_option("--mask-token-id", flags.overrides.mask_token_id, "Overrides the mask token id")
      ->check(whole_number(0));
  app.add_option("--block-length", flags.overrides.block_length, "Overrides the block length B")
      ->check(whole_number(1));
  add_threads_option(app, flags.threads);
}

LoadedModel load_model(const ModelFlags& flags, const Environment& environment) {
  if (!flags.shares_prompts) {
    refuse_ranks(flags.command, choose_ranks(flags.ranks, environment.launcher));
  }
  if (flags.threads > 0) at::set_num_threads(flags.threads);
  LoadedModel loaded;
  loaded.device = open_device(flags.device, local_rank(environment.launcher));
  loaded.source = resolve_model(flags.model, flags.revision, environment.hub);
  if (loaded.source.revision.empty() && flags.asked_revision != nullptr &&
      flags.asked_revision->count() > 0) {
    throw UsageError(fmt::format(
        "--revision: does nothing for a folder, and {} is one. HINT: leave it out", flags.model));
  }
  const Checkpoint checkpoint = Checkpoint::open(loaded.source.folder, flags.overrides);
  if (checkpoint.config().draft) {
    throw CheckpointError(fmt::format(
        "{}: is a DFlash draft, which needs the hidden states of its target. HINT: blockscope "
        "capture TARGET --draft {}",
        loaded.source.folder.string(), flags.model));
  }
  loaded.config = checkpoint.config();
  loaded.digest = checkpoint.digest();
  loaded.checkpoint_bytes = checkpoint.total_bytes();
  loaded.dtype = resolve_dtype(flags.dtype, loaded.config.dtype);
  loaded.model = std::make_shared<BlockDiffusionModel>(
      BlockDiffusionModel::load(checkpoint, loaded.dtype, loaded.device).packed());
  return loaded;
}

void check_draft_flags(const CLI::App& app) {
  for (const char* option : {"--strategy", "--denoising-steps", "--rank-by", "--quota",
                             "--threshold", "--density-sigma", "--cache", "--policy", "--shadow",
                             "--mask-token-id", "--no-graphs", "--predictions", "--steps"}) {
    const CLI::Option* given = app.get_option_no_throw(option);
    if (given == nullptr || given->count() == 0) continue;
    throw UsageError(
        fmt::format("{}: does nothing with --draft, whose rounds are one pass of the draft and one "
                    "of its target. "
                    "HINT: leave it out",
                    option));
  }
}

ModelFlags flags_of_target(ModelFlags flags) {
  flags.overrides = {};
  return flags;
}

std::filesystem::path draft_folder(const std::string& name, const Environment& environment) {
  return resolve_model(name, kDraftRevision, environment.hub).folder;
}

void check_round_length(const std::string& option, int64_t length, const ModelConfig& draft) {
  if (length <= draft.draft->block_size) return;
  throw UsageError(fmt::format("{}: expected at most the draft's {}, got {}", option,
                               draft.draft->block_size, length));
}

LoadedDraft load_draft(const std::string& name, const ModelFlags& flags, const LoadedModel& target,
                       const Environment& environment) {
  if (!target.config.attention_causal || target.config.mask_token_id) {
    throw UsageError(fmt::format(
        "--draft: expected a target that decodes token by token, got model_type \"{}\"{}. HINT: a "
        "DFlash draft's target is a plain Qwen3",
        target.config.model_type, target.config.mask_token_id ? " with a mask token" : ""));
  }
  LoadedDraft loaded;
  LoadedModel& recorded = loaded.recorded;
  recorded.device = target.device;
  recorded.dtype = target.dtype;
  recorded.source = resolve_model(name, kDraftRevision, environment.hub);
  const Checkpoint checkpoint = Checkpoint::open(recorded.source.folder, flags.overrides);
  if (!checkpoint.config().draft) {
    throw CheckpointError(
        fmt::format("--draft: {}: expected a DFlash draft (dflash_config, or "
                    "speculators_model_type \"dflash\", in "
                    "config.json), got model_type \"{}\"",
                    recorded.source.folder.string(), checkpoint.config().model_type));
  }
  recorded.config = checkpoint.config();
  recorded.digest = checkpoint.digest();
  recorded.checkpoint_bytes = checkpoint.total_bytes();
  loaded.draft = std::make_shared<DraftModel>(
      DraftModel::load(checkpoint, recorded.dtype, recorded.device).packed());
  loaded.draft->check_target(target.config, target.digest);
  check_round_length("--block-length", recorded.config.block_length->value, recorded.config);
  return loaded;
}

std::string LoadedModel::model_json() const {
  nlohmann::json json = {
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
  if (!device.is_cpu()) json["device"] = device.str();
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void add_decoding_flags(CLI::App& app, DecodingFlags& flags) {
  const auto add = [&app](const char* name, auto& value, const CLI::Validator& range,
                          const char* text) {
    app.add_option(name, value, text)->check(range)->capture_default_str();
  };
  add("--gen-length", flags.gen_length, whole_number(1),
      "Positions to generate; the last block is completed. Fast-dLLM v2: max_new_tokens, prompt "
      "remainder included");
  app.add_option("--strategy,--remasking", flags.strategy,
                 "sequential, low_confidence_static, low_confidence_dynamic, entropy_bounded, "
                 "threshold, factor, prefix_ordered, klass, pc_sampler or wino")
      ->capture_default_str();
  add("--denoising-steps", flags.denoising_steps, whole_number(0),
      "At most this many denoising steps a block (0: the block length)");
  app.add_option("--rank-by", flags.rank_by,
                 "What low_confidence_*, threshold, factor and prefix_ordered rank positions by "
                 "and compare: confidence, margin (p1 - p2) or negative_entropy (nats)")
      ->capture_default_str();
  app.add_option("--threshold", flags.threshold,
                 "Score for low_confidence_dynamic, klass, wino (>), threshold and prefix_ordered "
                 "(>=); default 0.85, klass 0.9, wino 0.6")
      ->check(real_number(-kAnyReal, 1.0));
  app.add_option("--quota", flags.quota,
                 "Tokens due at a step: even (of the block length), linear (of the masks left, "
                 "Dream's) or, with threshold, carry (what was not taken is due next)")
      ->capture_default_str();
  app.add_option("--density-sigma", flags.density_sigma,
                 "Multiply scores by the certainty density of the answer, a Gaussian of this width "
                 "in positions")
      ->check(real_number(0.0, kAnyReal, false));
  add("--eb-threshold", flags.eb_threshold, real_number(0.0, kAnyReal),
      "Summed entropy in nats, entropy_bounded");
  add("--factor", flags.factor, real_number(0.0, kAnyReal, false), "Fast-dLLM's factor f");
  add("--kl-threshold", flags.kl_threshold, real_number(0.0, kAnyReal, false),
      "klass: nats that a position may have moved at a step");
  add("--kl-history", flags.kl_history, whole_number(1), "klass: steps that must be below it");
  app.add_option("--klass-choose", flags.klass_choose,
                 "klass: of several positions that are ready take all, the most confident one "
                 "(max_conf) or the one that moved least (min_kl)")
      ->capture_default_str();
  add("--threshold-back", flags.threshold_back, real_number(0.0, 1.0, false),
      "wino: probability below which a second look takes a token back");
  add("--pc-lambda", flags.pc_lambda, real_number(0.0, kAnyReal), "pc_sampler: decay per position");
  add("--pc-alpha", flags.pc_alpha, real_number(0.0, kAnyReal, false),
      "pc_sampler: the largest debiased confidence");
  app.add_option("--frequencies", flags.frequencies,
                 "pc_sampler: the file that `blockscope frequencies` wrote for this vocabulary");
  app.add_option("--cache", flags.cache,
                 "commit, blockd (block-causal models); block (Fast-dLLM v2); none, prefix, dual, "
                 "dllm-cache or d2cache "
                 "(bidirectional models)");
  CacheOptions& cache = flags.cache_options;
  add("--prompt-interval", cache.prompt_interval, whole_number(1),
      "dllm-cache: steps from one refresh of the prompt to the next");
  add("--answer-interval", cache.answer_interval, whole_number(1),
      "dllm-cache: steps from one refresh of the answer to the next");
  add("--transfer-ratio", cache.transfer_ratio, real_number(0.0, 1.0),
      "dllm-cache: share of the answer's rows computed between refreshes");
  add("--current-k", cache.current_k, whole_number(1),
      "d2cache: masks computed at a step, at most");
  add("--certainty-sigma", cache.sigma, real_number(0.0, kAnyReal, false),
      "d2cache: width of the certainty density, in positions");
  add("--rollout-p", cache.rollout_p, real_number(0.0, 1.0),
      "d2cache: attention rollout that other computed rows cover");
  add("--inflate-window", cache.inflate_window, whole_number(0),
      "d2cache: gaps up to this wide between computed rows are filled; 0: none");
  app.add_flag("--as-released", cache.as_released,
               "d2cache: rank masks by their first confidence, as the released code does");
  add("--sub-block-length", flags.sub_block_length, whole_number(0),
      "Fast-dLLM v2: positions filled before the next ones, a divisor of the block length (0: 8, "
      "or what of it divides)");
  add("--temperature", flags.sampling.temperature, real_number(0.0, kAnyReal), "0 is greedy");
  add("--top-k", flags.sampling.top_k, whole_number(0), "0: off");
  add("--top-p", flags.sampling.top_p, real_number(0.0, 1.0, false), "1: off");
  add("--seed", flags.sampling.seed, whole_number(0, kLargestSeed), "Seed of the random streams");
  app.add_option("--stop-id", flags.stop_ids, "Stop token ids (default: the checkpoint's)")
      ->check(whole_number(0));
  app.add_flag("--no-stop", flags.no_stop, "Ignore stop tokens");
  app.add_flag("--no-graphs", flags.no_graphs,
               "On a GPU: launch every step anew, where it could be a CUDA graph");
  add("--batch-size", flags.batch_size, whole_number(1), "Prompts decoded together");
}

void check_decoding_flags(const CLI::App& app, const DecodingFlags& flags, bool draws) {
  const Strategy strategy = parse_strategy(flags.strategy);
  refuse_idle(app, "--rank-by", heeds_rank_by(strategy),
              "--strategy low_confidence_static, low_confidence_dynamic, threshold, factor or "
              "prefix_ordered");
  refuse_idle(app, "--threshold", heeds_threshold(strategy),
              "--strategy low_confidence_dynamic, threshold, prefix_ordered, klass or wino");
  refuse_idle(app, "--density-sigma", heeds_density(strategy),
              "a strategy that ranks: low_confidence_static, low_confidence_dynamic, threshold, "
              "factor, prefix_ordered or pc_sampler");
  const Quota quota = parse_quota(flags.quota);
  refuse_idle(
      app, "--quota", heeds_quota(strategy, quota),
      quota == Quota::kCarry
          ? "--strategy threshold"
          : "a strategy with a schedule: not entropy_bounded, factor or wino; threshold has "
            "--quota carry");
  for (const char* option : {"--kl-threshold", "--kl-history", "--klass-choose"}) {
    refuse_idle(app, option, strategy == Strategy::kKlass, "--strategy klass");
  }
  for (const char* option : {"--pc-lambda", "--pc-alpha", "--frequencies"}) {
    refuse_idle(app, option, strategy == Strategy::kPcSampler, "--strategy pc_sampler");
  }
  refuse_idle(app, "--threshold-back", strategy == Strategy::kWino, "--strategy wino");
  refuse_idle(app, "--eb-threshold", strategy == Strategy::kEntropyBounded,
              "--strategy entropy_bounded");
  refuse_idle(app, "--factor", strategy == Strategy::kFactor, "--strategy factor");
  const bool dllm = flags.cache == "dllm-cache";
  for (const char* option : {"--prompt-interval", "--answer-interval", "--transfer-ratio"}) {
    refuse_idle(app, option, dllm, "--cache dllm-cache");
  }
  const bool d2 = flags.cache == "d2cache";
  for (const char* option :
       {"--current-k", "--certainty-sigma", "--rollout-p", "--inflate-window", "--as-released"}) {
    refuse_idle(app, option, d2, "--cache d2cache");
  }
  const bool sampled = flags.sampling.temperature > 0.0;
  refuse_idle(app, "--top-k", sampled, "--temperature above 0");
  refuse_idle(app, "--top-p", sampled, "--temperature above 0");
  refuse_idle(app, "--seed", sampled || draws, "--temperature above 0");
}

void check_decoding_fits(const CLI::App& app, const DecodeOptions& options) {
  constexpr const char* kBlocks = "a block-diffusion model, and this one decodes token by token";
  for (const char* option :
       {"--strategy", "--denoising-steps", "--rank-by", "--quota", "--density-sigma", "--cache"}) {
    refuse_idle(app, option, !options.autoregressive(), kBlocks);
  }
  refuse_idle(app, "--sub-block-length", options.sub_blocks(),
              "a model with sub-blocks (Fast_dLLM_Qwen)");
}

DecodeOptions decode_options(const DecodingFlags& flags, const LoadedModel& model) {
  const ModelConfig& config = model.config;
  DecodeOptions options;
  const bool blocks = !config.attention_causal || config.mask_token_id.has_value();
  options.mask_token_id = blocks ? require_mask_token_id(config) : -1;
  UnmaskingOptions& unmasking = options.unmasking;
  unmasking.block_length = blocks ? require_block_length(config) : 1;
  unmasking.strategy = parse_strategy(flags.strategy);
  unmasking.rank_by = parse_rank_by(flags.rank_by);
  unmasking.denoising_steps =
      flags.denoising_steps == 0 ? unmasking.block_length : flags.denoising_steps;
  unmasking.quota = parse_quota(flags.quota);
  unmasking.threshold = flags.threshold.value_or(default_threshold(unmasking.strategy));
  unmasking.eb_threshold = flags.eb_threshold;
  unmasking.factor = flags.factor;
  unmasking.density_sigma = flags.density_sigma;
  unmasking.kl_threshold = flags.kl_threshold;
  unmasking.kl_history = flags.kl_history;
  unmasking.klass_choose = parse_klass_choose(flags.klass_choose);
  unmasking.threshold_back = flags.threshold_back;
  unmasking.pc_lambda = flags.pc_lambda;
  unmasking.pc_alpha = flags.pc_alpha;
  if (blocks && !flags.frequencies.empty()) {
    unmasking.frequencies =
        read_frequencies(flags.frequencies, vocabulary_id(model.source.folder, config.vocab_size));
  }
  options.bidirectional = config.attention_bidirectional;
  options.cache = flags.cache_options;
  if (blocks && !options.bidirectional && config.logit_shift == 1) {
    options.sub_block_length = flags.sub_block_length > 0
                                   ? flags.sub_block_length
                                   : std::gcd(kSubBlockLength, unmasking.block_length);
  }
  const bool fuses = blocks && unmasking.block_length > 1 && !options.sub_blocks();
  options.cache.kind = !flags.cache.empty()               ? parse_cache(flags.cache)
                       : options.bidirectional            ? CacheKind::kNone
                       : fuses && !flags.separate_commits ? CacheKind::kBlockd
                                                          : CacheKind::kCommit;
  options.sampling = flags.sampling;
  if (flags.no_stop && !flags.stop_ids.empty()) {
    throw UsageError("--no-stop and --stop-id contradict each other: give one of them");
  }
  if (!flags.no_stop) {
    options.stop_ids = flags.stop_ids.empty() ? config.stop_token_ids : flags.stop_ids;
  }
  if (flags.no_graphs && model.device.is_cpu()) {
    throw UsageError(
        "--no-graphs: does nothing on the CPU, which has no graphs. HINT: leave it out, or "
        "--device cuda");
  }
  options.graphs = !flags.no_graphs;
  check_decode_options(options, config);
  return options;
}

DecodeOptions drafted_options(const DecodingFlags& flags, const LoadedModel& draft,
                              const LoadedModel& target) {
  DecodingFlags own = flags;
  own.cache = "commit";
  DecodeOptions options = decode_options(own, draft);
  options.drafted = true;
  if (!flags.no_stop && flags.stop_ids.empty()) options.stop_ids = target.config.stop_token_ids;
  return options;
}

std::string drafted_model_json(const LoadedModel& draft, const LoadedModel& target,
                               RecordedModel recorded) {
  const bool of_draft = recorded == RecordedModel::draft;
  nlohmann::json json = nlohmann::json::parse((of_draft ? draft : target).model_json());
  json[of_draft ? "target" : "draft"] =
      nlohmann::json::parse((of_draft ? target : draft).model_json());
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace blockscope
