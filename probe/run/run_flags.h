// The flags that capture, eval, check and bench share, and what they resolve to.
#pragma once

#include <CLI/App.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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
  std::string dtype = "auto";                   // auto | float32 | bfloat16 | float16
  std::string device = "cpu";                   // cpu | cuda | cuda:N
  std::string ranks = "auto";                   // none | auto | R/N
  std::string command;                          // its name
  bool shares_prompts = false;                  // several ranks can share its prompts
  const CLI::Option* asked_revision = nullptr;  // to tell a given one from the default
  ModelOverrides overrides;
  int threads = 0;  // 0: all cores
};
void add_model_flags(CLI::App& app, ModelFlags& flags);

/// A checkpoint ready to run, and everything a trace must say about it.
struct LoadedModel {
  ResolvedModel source;
  ModelConfig config;
  std::string digest;  // Checkpoint::digest()
  at::ScalarType dtype;
  at::Device device = at::kCPU;
  uint64_t checkpoint_bytes = 0;
  std::shared_ptr<BlockDiffusionModel> model;

  /// JSON text for /model/json: source, digest, dtype, every resolved value with its source.
  std::string model_json() const;
};
/// Throws UsageError for one of several ranks of a command that does not share its prompts.
LoadedModel load_model(const ModelFlags& flags, const Environment& environment);

/// A DFlash draft for a target that is loaded already, as the model that a trace records: its
/// config, digest and source. Its weights lie in `draft`.
struct LoadedDraft {
  LoadedModel recorded;  // without `model`
  std::shared_ptr<DraftModel> draft;
};
/// Throws UsageError for an option that means nothing where a draft fills a block in one pass.
void check_draft_flags(const CLI::App& app);
/// The same flags for the target: what overrides the model's config is the draft's.
ModelFlags flags_of_target(ModelFlags flags);
std::filesystem::path draft_folder(const std::string& name, const Environment& environment);
/// `name`: folder or hub id. Throws CheckpointError where the draft is not one, or not this
/// target's.
LoadedDraft load_draft(const std::string& name, const ModelFlags& flags, const LoadedModel& target,
                       const Environment& environment);
/// Throws UsageError where rounds of this length would be longer than the draft's blocks.
void check_round_length(const std::string& option, int64_t length, const ModelConfig& draft);

struct DecodingFlags {
  std::string strategy = "low_confidence_static";  // a choice as text
  int64_t denoising_steps = 0;                     // 0: the block length
  bool no_graphs = false;
  bool separate_commits = false;  // without a cache: commit, because the command times single steps
  int64_t sub_block_length = 0;
  SamplingOptions sampling;
  std::vector<int64_t> stop_ids;  // empty: the checkpoint's
  bool no_stop = false;
  std::string cache;  // a choice as text; empty: what the model allows without approximation
  int64_t gen_length = 128;
  int64_t batch_size = 1;

  /// The files that the choices name.
  std::vector<std::string> files() const;
};
void add_decoding_flags(CLI::App& app, DecodingFlags& flags);
/// Throws UsageError for a strategy or cache that is none, and for an option that greedy decoding
/// would ignore. `draws`: the command draws from the seed itself.
void check_decoding_flags(const CLI::App& app, const DecodingFlags& flags, bool draws = false);
/// Throws UsageError for an option that only block-by-block decoding heeds, and this run has none.
void check_decoding_fits(const CLI::App& app, const DecodeOptions& options);

/// --policy: a choice as text.
void add_policy_option(CLI::App& app, std::string& text);
/// What a policy must fit, and what it is made for.
PolicySite policy_site(const DecodeOptions& options);
PolicyModel policy_model(const LoadedModel& model);

/// Reads the token frequencies of a strategy that names their file. Throws what read_frequencies
/// throws.
void load_frequencies(UnmaskingOptions& unmasking, const LoadedModel& model);

/// Block by block when the model has a mask id and a block length, else autoregressive. Reads the
/// token frequencies where the strategy names their file. Throws UsageError / CheckpointError.
DecodeOptions decode_options(const DecodingFlags& flags, const LoadedModel& model);

/// Of rounds of a draft and its target, whose stop tokens count.
DecodeOptions drafted_options(const DecodingFlags& flags, const LoadedModel& draft,
                              const LoadedModel& target);
/// The recorded model's model_json() with the other's under "target" or "draft".
std::string drafted_model_json(const LoadedModel& draft, const LoadedModel& target,
                               RecordedModel recorded);

}  // namespace blockscope
