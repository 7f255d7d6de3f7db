#include "probe/run/run_flags.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "command_line/options.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "probe/checkpoint/family_table.h"
#include "probe/run/device_option.h"
#include "probe/run/frequencies_file.h"
#include "probe/run/held_models.h"
#include "probe/run/ranks.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

std::string choice_option_help(const std::string& kind, const std::vector<std::string>& names) {
  return fmt::format("{}, with options as NAME,option=value; `blockscope help {} NAME` lists them",
                     list_of(names), kind);
}

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
      app.add_option("--revision", flags.revision, "Use this revision of a model id")
          ->capture_default_str();
  app.add_option("--adapter", flags.adapter,
                 "Add this LoRA adapter (folder in PEFT's format) to the weights");
  app.add_option("--dtype", flags.dtype, "auto (the checkpoint's), float32, bfloat16, float16")
      ->capture_default_str();
  app.add_option("--device", flags.device, "Run on cpu, cuda (each rank on its own GPU) or cuda:N")
      ->capture_default_str();
  add_ranks_option(app, flags.ranks);
  app.add_option("--mask-token-id", flags.overrides.mask_token_id, "Override the mask token id")
      ->check(whole_number(0));
  app.add_option("--block-length", flags.overrides.block_length, "Override the block length B")
      ->check(whole_number(1));
  add_threads_option(app, flags.threads);
  less_usual(app, "Model", {"--revision", "--ranks", "--mask-token-id"});
}

void refuse_revision(const ModelFlags& flags, std::string_view what) {
  if (flags.asked_revision == nullptr || flags.asked_revision->count() == 0) return;
  throw UsageError(
      fmt::format("--revision: does nothing for {}, and {} is one. HINT: leave the option out",
                  what, flags.model));
}

ResolvedModel model_source(const ModelFlags& flags, const Environment& environment) {
  ResolvedModel source = resolve_model(flags.model, flags.revision, environment.hub);
  if (source.revision.empty()) refuse_revision(flags, "a folder");
  return source;
}

LoadedModel load_model(const ModelFlags& flags, const Environment& environment) {
  if (!flags.shares_prompts) {
    refuse_ranks(flags.command, choose_ranks(flags.ranks, environment.launcher));
  }
  if (flags.threads > 0) at::set_num_threads(flags.threads);
  LoadedModel loaded;
  loaded.device = open_device(flags.device, local_rank(environment.launcher));
  loaded.source = model_source(flags, environment);
  if (const auto held = held_model(flags, loaded.source)) return *held;
  Checkpoint checkpoint = Checkpoint::open(loaded.source.folder, flags.overrides);
  if (checkpoint.config().draft) {
    throw CheckpointError(fmt::format(
        "{}: is a DFlash draft, which needs the hidden states of its target. HINT: use blockscope "
        "capture TARGET --draft {}",
        loaded.source.folder.string(), flags.model));
  }
  if (!flags.adapter.empty()) {
    checkpoint.adapt(flags.adapter);
    loaded.adapter = flags.adapter;
    loaded.adapter_digest = checkpoint.adapter()->digest();
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
  for (const char* option :
       {"--adapter", "--strategy", "--denoising-steps", "--cache", "--policy", "--intervene",
        "--shadow", "--mask-token-id", "--no-graphs", "--predictions", "--steps"}) {
    const CLI::Option* given = app.get_option_no_throw(option);
    if (given == nullptr || given->count() == 0) continue;
    throw UsageError(
        fmt::format("{}: does nothing with --draft: a round is one pass of the draft and one of "
                    "its target. HINT: leave the option out",
                    option));
  }
}

ModelFlags flags_of_target(ModelFlags flags) {
  flags.overrides = {};
  return flags;
}

ModelFlags flags_of_backbone(ModelFlags flags, const std::string& backbone) {
  flags.model = backbone;
  flags.adapter.clear();
  flags.asked_revision = nullptr;  // --revision names the other model's
  return flags;
}

void reads_model(CommandFiles& files, const ModelFlags& flags, const Environment& environment) {
  files.reads_checkpoint(resolve_model(flags.model, flags.revision, environment.hub).folder);
  if (flags.adapter.empty()) return;
  for (const char* name : {kAdapterConfigName, kAdapterWeightsName}) {
    files.reads((flags.adapter / name).string());
  }
}

std::filesystem::path draft_folder(const std::string& name, const Environment& environment) {
  return resolve_model(name, kDraftRevision, environment.hub).folder;
}

void check_round_length(const std::string& option, int64_t length, const ModelConfig& draft) {
  const int64_t longest = draft.draft->longest_round();
  if (length <= longest) return;
  throw UsageError(
      fmt::format("{}: expected at most the draft's {}, got {}", option, longest, length));
}

LoadedDraft load_draft(const std::string& name, const ModelFlags& flags, const LoadedModel& target,
                       const Environment& environment) {
  if (!target.config.attention_causal || target.config.mask_token_id) {
    throw UsageError(fmt::format(
        "--draft: expected a target that decodes token by token, got model_type \"{}\"{}. HINT: a "
        "DFlash draft's target is a plain model, such as Qwen3 or Llama",
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
                    "speculators_model_type \"dflash\" or \"dflash2\", in "
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

std::string LoadedModel::text() const {
  return adapter.empty() ? source.requested
                         : fmt::format("{} with adapter {}", source.requested, adapter.string());
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
  if (!adapter.empty())
    json["adapter"] = {{"folder", adapter.string()}, {"digest", adapter_digest}};
  if (!device.is_cpu()) json["device"] = device.str();
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void add_decoding_flags(CLI::App& app, DecodingFlags& flags) {
  const auto add = [&app](const char* name, auto& value, const CLI::Validator& range,
                          const char* text) {
    app.add_option(name, value, text)->check(range)->capture_default_str();
  };
  add("--gen-length", flags.gen_length, whole_number(1),
      "Generate this many positions and complete the last block. Fast-dLLM v2: max_new_tokens, "
      "including left-over prompt tokens");
  app.add_option(
      "--strategy", flags.strategy,
      choice_option_help("strategy", names_of(strategy_table())) +
          fmt::format(" (default: {}; for DiffusionGemma {})", kMaskStrategy, kCanvasStrategy));
  add("--denoising-steps", flags.denoising_steps, whole_number(0),
      "Spread a block's masks over this many denoising steps (0: the block length; strategy "
      "canvas: 48); a block takes no more, except with quota=carry and strategies that edit");
  app.add_option("--cache", flags.cache,
                 choice_option_help("cache", names_of(cache_table())) +
                     " (default: one without approximation)");
  add("--sub-block-length", flags.sub_block_length, whole_number(0),
      "Use sub-blocks of this length, a divisor of the block length, for Fast-dLLM v2 (0: the "
      "greatest common divisor with 8)");
  add("--temperature", flags.sampling.temperature, real_number(0.0, kAnyReal),
      "Sample at this temperature; 0: greedy");
  add("--top-k", flags.sampling.top_k, whole_number(0),
      "Sample from the k most probable tokens; 0: off");
  add("--top-p", flags.sampling.top_p, real_number(0.0, 1.0, false),
      "Sample from the smallest set of tokens with this probability; 1: off");
  add("--seed", flags.sampling.seed, whole_number(0, kLargestSeed),
      "Seed the random streams with this");
  app.add_option("--stop-id", flags.stop_ids, "Stop at these token ids (default: the checkpoint's)")
      ->check(whole_number(0));
  app.add_flag("--no-stop", flags.no_stop, "Ignore stop tokens");
  app.add_flag("--no-graphs", flags.no_graphs, "Do not run steps as CUDA graphs on a GPU");
  add("--batch-size", flags.batch_size, whole_number(1), "Decode this many prompts together");
  less_usual(app, "Decoding",
             {"--sub-block-length", "--top-k", "--top-p", "--seed", "--stop-id", "--no-stop",
              "--no-graphs"});
}

std::vector<std::string> DecodingFlags::files() const {
  return {strategy.empty() ? "" : read_strategy(strategy).frequencies_file};
}

void add_policy_option(CLI::App& app, std::string& text) {
  app.add_option("--policy", text, choice_option_help("policy", names_of(policy_table())))
      ->capture_default_str();
}

void add_intervene_option(CLI::App& app, std::vector<std::string>& texts) {
  app.add_option("--intervene", texts,
                 "Change attention while decoding: NAME,option=value,..., or a JSON file with a "
                 "list (again for more; see `blockscope help intervene`)")
      ->allow_extra_args(false)
      ->option_text("CHANGE");
}

PolicySite policy_site(const DecodeOptions& options) {
  const CacheEntry& cache = cache_entry(options.cache);
  return {options.bidirectional, options.autoregressive(), !cache.single_rows, cache.name,
          options.commits_apart()};
}

PolicyModel policy_model(const LoadedModel& model) {
  const ModelConfig& config = model.config;
  return {config.num_layers, config.num_heads,   config.num_kv_heads,
          config.head_dim,   config.hidden_size, model.digest};
}

void note_shared_keys(const PolicyOptions& options, const LoadedModel& model) {
  const LayerSizes sizes = layer_sizes(model.config);
  for (const Intervention& one : options.interventions) {
    std::set<int64_t> groupings;  // KV heads of the layers that it changes
    for (int64_t layer = 0; layer < sizes.num_layers; ++layer) {
      if (one.layers.empty() || std::ranges::binary_search(one.layers, layer)) {
        groupings.insert(sizes.kv_heads_of(layer));
      }
    }
    for (const int64_t kv_heads : groupings) {
      const std::string text = shared_keys_text(one, sizes.num_heads, kv_heads);
      if (text.empty()) continue;
      const std::string where =
          groupings.size() > 1 ? fmt::format(" (layers of {} KV heads)", kv_heads) : "";
      note("note: {}{}\n", text, where);
    }
  }
}

void check_decoding_flags(const DecodingFlags& flags) {
  if (!flags.strategy.empty()) (void)read_strategy(flags.strategy);
  if (!flags.cache.empty()) (void)read_cache(flags.cache);
}

namespace {

/// A canvas draws tokens at every step, but only the model says that it has one.
void check_drawing_fits(const CLI::App& app, const DecodeOptions& options, bool draws) {
  constexpr const char* kNeeds = "--temperature above 0";
  const bool sampled = options.sampling.temperature > 0.0;
  refuse_idle(app, "--seed", sampled || options.canvas || draws, kNeeds);
  for (const char* option : {"--top-k", "--top-p"}) {
    if (options.canvas && app.get_option(option)->count() > 0) {
      throw UsageError(fmt::format(
          "{}: does nothing with this model, whose canvases draw from all tokens. HINT: leave the "
          "option out",
          option));
    }
    refuse_idle(app, option, sampled, kNeeds);
  }
}

}  // namespace

void check_decoding_fits(const CLI::App& app, const DecodeOptions& options, bool draws) {
  check_drawing_fits(app, options, draws);
  constexpr const char* kBlocks = "a block-diffusion model, but this one decodes token by token";
  for (const char* option : {"--strategy", "--denoising-steps", "--cache"}) {
    refuse_idle(app, option, !options.autoregressive(), kBlocks);
  }
  const CLI::Option* predictions = app.get_option_no_throw("--predictions");
  if (predictions != nullptr && predictions->count() > 0 &&
      predictions->as<std::string>() == "masked" && (options.canvas || options.autoregressive())) {
    throw UsageError(
        "--predictions masked: does nothing with this model, which has no masks: all predictions "
        "are recorded. HINT: leave the option out");
  }
  const auto with_sub_blocks = [](const Family& family) { return family.sub_block_length > 0; };
  refuse_idle(app, "--sub-block-length", options.sub_blocks(),
              fmt::format("a model with sub-blocks ({})", list_of(families_with(with_sub_blocks))));
}

void load_frequencies(UnmaskingOptions& unmasking, const LoadedModel& model) {
  if (unmasking.frequencies_file.empty()) return;
  unmasking.frequencies = read_frequencies(
      unmasking.frequencies_file, vocabulary_id(model.source.folder, model.config.vocab_size));
}

DecodeOptions decode_options(const DecodingFlags& flags, const LoadedModel& model) {
  const ModelConfig& config = model.config;
  DecodeOptions options;
  const bool blocks = !config.attention_causal || config.mask_token_id.has_value();
  options.canvas = config.gemma.has_value();
  options.mask_token_id = blocks && !options.canvas ? require_mask_token_id(config) : -1;
  UnmaskingOptions& unmasking = options.unmasking;
  unmasking =
      read_strategy(!flags.strategy.empty() ? flags.strategy
                    : options.canvas ? std::string(kCanvasStrategy) + config.gemma->strategy_options
                                     : kMaskStrategy);
  unmasking.block_length = blocks ? require_block_length(config) : 1;
  const int64_t asked = options.canvas ? config.gemma->denoising_steps : 0;
  const int64_t usual = asked > 0 ? asked : strategy_entry(unmasking).usual_steps;
  unmasking.denoising_steps = flags.denoising_steps > 0 ? flags.denoising_steps
                              : usual > 0               ? usual
                                                        : unmasking.block_length;
  if (blocks) load_frequencies(unmasking, model);
  options.delete_token_id = config.delete_token_id;
  options.split_token_id = config.split_token_id;
  options.bidirectional = config.attention_bidirectional;
  if (const int64_t sub = family_of(config).sub_block_length; blocks && sub > 0) {
    options.sub_block_length =
        flags.sub_block_length > 0 ? flags.sub_block_length : std::gcd(sub, unmasking.block_length);
  }
  const bool fuses =
      blocks && unmasking.block_length > 1 && !options.sub_blocks() && !options.canvas;
  options.cache = read_cache(!flags.cache.empty()               ? flags.cache
                             : options.bidirectional            ? "none"
                             : fuses && !flags.separate_commits ? "blockd"
                                                                : "commit");
  options.sampling = flags.sampling;
  if (flags.no_stop && !flags.stop_ids.empty()) {
    throw UsageError("--no-stop and --stop-id contradict each other: give one of them");
  }
  if (!flags.no_stop) {
    options.stop_ids = flags.stop_ids.empty() ? config.stop_token_ids : flags.stop_ids;
  }
  if (flags.no_graphs && model.device.is_cpu()) {
    throw UsageError(
        "--no-graphs: does nothing on the CPU, which has no graphs. HINT: leave the option out, or "
        "use --device cuda");
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
