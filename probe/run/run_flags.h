// The flags that capture, eval, check and bench share, and the settings made from them.
#pragma once

#include <CLI/App.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "decode_record/files/command_files.h"
#include "probe/decode/decoder.h"
#include "probe/draft/draft_decoder.h"
#include "probe/draft/draft_model.h"
#include "probe/model/block_diffusion_model.h"
#include "probe/policies/policy_table.h"
#include "probe/run/environment.h"

namespace blockscope {

struct ModelFlags {
  std::string model;  // folder or hub id
  std::string revision = "main";
  std::filesystem::path adapter;                // folder of a LoRA adapter; empty: none
  std::string dtype = "auto";                   // auto | float32 | bfloat16 | float16
  std::string device = "cpu";                   // cpu | cuda | cuda:N
  std::string ranks = "auto";                   // none | auto | R/N
  std::string command;                          // name of the command
  bool shares_prompts = false;                  // several ranks can share the command's prompts
  const CLI::Option* asked_revision = nullptr;  // shows whether --revision was given
  ModelOverrides overrides;
  int threads = 0;  // 0: all cores
};
void add_model_flags(CLI::App& app, ModelFlags& flags);

/// A checkpoint that is ready to run, and everything that a trace says about it.
struct LoadedModel {
  ResolvedModel source;
  ModelConfig config;
  std::filesystem::path adapter;  // folder; empty: none
  std::string adapter_digest;     // Adapter::digest()
  std::string digest;             // Checkpoint::digest(), with the adapter
  at::ScalarType dtype;
  at::Device device = at::kCPU;
  uint64_t checkpoint_bytes = 0;
  std::shared_ptr<BlockDiffusionModel> model;

  /// The model as it was asked for, with its adapter: for people.
  std::string text() const;
  /// JSON text for /model/json: source, digest, dtype, every resolved value with its source.
  std::string model_json() const;
};
/// Throws UsageError if --revision was given: the model is `what` ("a folder"), which has none.
void refuse_revision(const ModelFlags& flags, std::string_view what);
/// The folder of the model. Throws what resolve_model and refuse_revision throw.
ResolvedModel model_source(const ModelFlags& flags, const Environment& environment);
/// Throws UsageError if this is one of several ranks and the command can't share its prompts.
LoadedModel load_model(const ModelFlags& flags, const Environment& environment);

/// A DFlash draft for a loaded target. `recorded` has what a trace says about the draft (config,
/// digest, source); `draft` has the weights.
struct LoadedDraft {
  LoadedModel recorded;  // without `model`
  std::shared_ptr<DraftModel> draft;
};
/// Throws UsageError for an option that has no effect with a draft, which fills a block in one
/// pass.
void check_draft_flags(const CLI::App& app);
/// The same flags for the target, without the overrides of the config, which are the draft's.
ModelFlags flags_of_target(ModelFlags flags);
/// The same flags for a backbone, which has no adapter. Without a hub id their revision does
/// nothing.
ModelFlags flags_of_backbone(ModelFlags flags, const std::string& backbone);
/// Names the files of checkpoint and adapter as inputs.
void reads_model(CommandFiles& files, const ModelFlags& flags, const Environment& environment);
std::filesystem::path draft_folder(const std::string& name, const Environment& environment);
/// `name`: folder or hub id. Throws CheckpointError if the checkpoint is not a draft, or not one
/// for this target.
LoadedDraft load_draft(const std::string& name, const ModelFlags& flags, const LoadedModel& target,
                       const Environment& environment);
/// Throws UsageError if rounds of this length would be longer than the draft's blocks.
void check_round_length(const std::string& option, int64_t length, const ModelConfig& draft);

struct DecodingFlags {
  std::string strategy{};       // a choice as text; empty: kMaskStrategy or kCanvasStrategy
  int64_t denoising_steps = 0;  // 0: the block length
  bool no_graphs = false;
  bool separate_commits = false;  // default cache is `commit`: the command times single steps
  int64_t sub_block_length = 0;
  SamplingOptions sampling;
  std::vector<int64_t> stop_ids;  // empty: the checkpoint's
  bool no_stop = false;
  std::string cache;  // a choice as text; empty: one without approximation
  int64_t gen_length = 128;
  int64_t batch_size = 1;

  /// The files that the choices name.
  std::vector<std::string> files() const;
};
void add_decoding_flags(CLI::App& app, DecodingFlags& flags);
/// Throws UsageError for an unknown strategy or cache.
void check_decoding_flags(const DecodingFlags& flags);
/// Throws UsageError for an option of block-by-block decoding if this run decodes token by token,
/// and for options of drawing that nothing heeds. `draws`: the command itself draws from the seed.
void check_decoding_fits(const CLI::App& app, const DecodeOptions& options, bool draws = false);

/// --policy: a choice as text.
void add_policy_option(CLI::App& app, std::string& text);
/// --intervene, as read_policy takes it.
void add_intervene_option(CLI::App& app, std::vector<std::string>& texts);
/// The run that a policy must fit, and the model that it is made for.
PolicySite policy_site(const DecodeOptions& options);
PolicyModel policy_model(const LoadedModel& model);
/// Notes interventions that change some of the heads that share keys and values.
void note_shared_keys(const PolicyOptions& options, const LoadedModel& model);

/// Reads the token frequencies if the strategy names their file. Throws what read_frequencies
/// throws.
void load_frequencies(UnmaskingOptions& unmasking, const LoadedModel& model);

/// Decoding is block by block if the model has a mask id and a block length, else autoregressive.
/// Reads the token frequencies if the strategy names their file. Throws UsageError or
/// CheckpointError.
DecodeOptions decode_options(const DecodingFlags& flags, const LoadedModel& model);

/// The options for rounds of a draft and its target. The target's stop tokens are used.
DecodeOptions drafted_options(const DecodingFlags& flags, const LoadedModel& draft,
                              const LoadedModel& target);
/// The recorded model's model_json() with the other's under "target" or "draft".
std::string drafted_model_json(const LoadedModel& draft, const LoadedModel& target,
                               RecordedModel recorded);

}  // namespace blockscope
