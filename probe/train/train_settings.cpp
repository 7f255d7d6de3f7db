#include "probe/train/train_settings.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "decode_record/base/error.h"
#include "decode_record/base/sha256.h"
#include "probe/checkpoint/checkpoint.h"
#include "probe/checkpoint/safetensors.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

enum class Part {
  kAll,
  kBackbone,
  kDiffusion,
  kDraft,
  kReuse
};  // the stages that a setting affects

struct Setting {
  const char* name;  // of the option, without dashes
  Part part;
  std::function<json(const TrainRunOptions&)> get;
  std::function<void(TrainRunOptions&, const json&)> set;
};

/// `access` maps options, const or not, to the member.
template <typename Access>
Setting plain(const char* name, Part part, Access access) {
  return {name, part, [access](const TrainRunOptions& options) { return json(access(options)); },
          [access](TrainRunOptions& options, const json& value) { value.get_to(access(options)); }};
}

template <typename Access>
Setting context(const char* name, Access access) {
  return {name, Part::kAll,
          [access](const TrainRunOptions& options) {
            return json(std::int64_t{64} << access(options));
          },
          [access](TrainRunOptions& options, const json& value) {
            const auto length = value.get<std::int64_t>();
            if (length < 64 || !std::has_single_bit(static_cast<std::uint64_t>(length)) ||
                length > kLongestContext) {
              throw std::out_of_range("not a context length");
            }
            access(options) = std::countr_zero(static_cast<std::uint64_t>(length / 64));
          }};
}

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all{
      plain(
          "seed", Part::kAll, [](auto& o) -> auto& { return o.train.seed; }),
      plain(
          "warmup", Part::kAll, [](auto& o) -> auto& { return o.train.warmup; }),
      plain(
          "decay", Part::kAll, [](auto& o) -> auto& { return o.train.decay_fraction; }),
      plain(
          "batch-tokens", Part::kAll, [](auto& o) -> auto& { return o.train.batch_rows; }),
      plain(
          "drill-share", Part::kAll, [](auto& o) -> auto& { return o.train.drill_share; }),
      plain(
          "device", Part::kAll, [](auto& o) -> auto& { return o.train.device; }),
      context(
          "first-context", [](auto& o) -> auto& { return o.train.first_level; }),
      context(
          "last-context", [](auto& o) -> auto& { return o.train.last_level; }),
      {"precision", Part::kAll,
       [](const TrainRunOptions& o) { return json(o.train.bfloat16 ? "bfloat16" : "float32"); },
       [](TrainRunOptions& o, const json& value) { o.train.bfloat16 = value == "bfloat16"; }},
      plain(
          "family", Part::kAll, [](auto& o) -> auto& { return o.family; }),
      plain(
          "layers", Part::kAll, [](auto& o) -> auto& { return o.model.num_layers; }),
      plain(
          "hidden", Part::kAll, [](auto& o) -> auto& { return o.model.hidden_size; }),
      plain(
          "ffn", Part::kAll, [](auto& o) -> auto& { return o.model.intermediate_size; }),
      plain(
          "heads", Part::kAll, [](auto& o) -> auto& { return o.model.num_heads; }),
      plain(
          "kv-heads", Part::kAll, [](auto& o) -> auto& { return o.model.num_kv_heads; }),
      plain(
          "head-dim", Part::kAll, [](auto& o) -> auto& { return o.model.head_dim; }),
      plain(
          "backbone-steps", Part::kBackbone, [](auto& o) -> auto& { return o.backbone_steps; }),
      plain(
          "learning-rate", Part::kBackbone, [](auto& o) -> auto& { return o.train.learning_rate; }),
      plain(
          "advance-below", Part::kBackbone, [](auto& o) -> auto& { return o.train.advance_below; }),
      plain(
          "diffusion-steps", Part::kDiffusion, [](auto& o) -> auto& { return o.diffusion_steps; }),
      plain(
          "diffusion-learning-rate", Part::kDiffusion,
          [](auto& o) -> auto& { return o.diffusion_learning_rate; }),
      plain(
          "diffusion-advance-below", Part::kDiffusion,
          [](auto& o) -> auto& { return o.diffusion_advance_below; }),
      plain(
          "draft-steps", Part::kDraft, [](auto& o) -> auto& { return o.draft_steps; }),
      plain(
          "draft-learning-rate", Part::kDraft,
          [](auto& o) -> auto& { return o.draft_learning_rate; }),
      plain(
          "draft-advance-below", Part::kDraft,
          [](auto& o) -> auto& { return o.draft_advance_below; }),
      plain(
          "block-size", Part::kDraft, [](auto& o) -> auto& { return o.draft_block; }),
      plain(
          "target-layers", Part::kDraft, [](auto& o) -> auto& { return o.target_layers; }),
      plain(
          "reuse-steps", Part::kReuse, [](auto& o) -> auto& { return o.reuse.steps; }),
      plain(
          "reuse-learning-rate", Part::kReuse,
          [](auto& o) -> auto& { return o.reuse.learning_rate; }),
      plain(
          "weight-decay", Part::kReuse, [](auto& o) -> auto& { return o.reuse.adam.weight_decay; }),
      plain(
          "lora-modules", Part::kReuse, [](auto& o) -> auto& { return o.reuse.lora.modules; }),
      plain(
          "lora-rank", Part::kReuse, [](auto& o) -> auto& { return o.reuse.lora.rank; }),
      plain(
          "lora-alpha", Part::kReuse, [](auto& o) -> auto& { return o.reuse.lora.alpha; }),
      plain(
          "lora-dropout", Part::kReuse, [](auto& o) -> auto& { return o.reuse.lora.dropout; }),
      plain(
          "unroll", Part::kReuse, [](auto& o) -> auto& { return o.reuse.objective.unroll; }),
      plain(
          "quota", Part::kReuse, [](auto& o) -> auto& { return o.reuse.objective.quota; }),
      plain(
          "threshold", Part::kReuse, [](auto& o) -> auto& { return o.reuse.objective.threshold; }),
      plain(
          "reuse-weight", Part::kReuse,
          [](auto& o) -> auto& { return o.reuse.objective.reuse_weight; }),
      plain(
          "dense-weight", Part::kReuse,
          [](auto& o) -> auto& { return o.reuse.objective.dense_weight; }),
      plain(
          "probes", Part::kReuse, [](auto& o) -> auto& { return o.reuse.batch.probes; }),
      plain(
          "start-steps", Part::kReuse,
          [](auto& o) -> auto& { return o.reuse.objective.start_steps; }),
      plain(
          "block-length", Part::kReuse,
          [](auto& o) -> auto& { return o.reuse.batch.block_length; }),
  };
  return all;
}

/// All stages in their order, and whether they run.
std::array<std::pair<TrainStage, bool>, 4> stages(const TrainRunOptions& options) {
  return {{{TrainStage::kBackbone, options.backbone},
           {TrainStage::kDiffusion, options.diffusion},
           {TrainStage::kDraft, options.draft},
           {TrainStage::kReuse, options.reuse_stage}}};
}

bool runs(const TrainRunOptions& options, Part part) {
  switch (part) {
    case Part::kAll:
      return true;
    case Part::kBackbone:
      return options.backbone;
    case Part::kDiffusion:
      return options.diffusion;
    case Part::kDraft:
      return options.draft;
    case Part::kReuse:
      return options.reuse_stage;
  }
  return false;
}

/// The SHA-256 of a file of texts; "" for none.
std::string digest_of_texts(const fs::path& path) {
  if (path.empty()) return "";
  try {
    return sha256_of_file(path);
  } catch (const Error& error) {
    throw UsageError(
        fmt::format("--data: {}. HINT: name a prompt file (JSON Lines)", error.what()));
  }
}

/// The settings in a state; null when there is no state.
json recorded(const fs::path& state) {
  if (!fs::exists(state)) return {};
  const SafetensorsFile file = SafetensorsFile::open(state);
  const auto found = file.metadata().find("settings");
  const json value = found == file.metadata().end()
                         ? json()
                         : json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  if (value.is_object()) return value;
  throw CheckpointError(fmt::format(
      "{}: expected the settings of its run, got none: another version wrote this state. HINT: "
      "finish the run with that version, or start anew; --init takes a finished checkpoint",
      state.string()));
}

[[noreturn]] void refuse(const fs::path& state, const std::string& what, const json& was,
                         const json& is, const std::string& hint) {
  throw UsageError(fmt::format(
      "--resume: {}: {} was {}, and is {} now. HINT: {}, or start anew without --resume (--init "
      "CHECKPOINT begins with trained weights)",
      state.string(), what, was.dump(), is.dump(), hint));
}

}  // namespace

fs::path state_file(const TrainRunOptions& options, TrainStage stage) {
  return options.work / (std::string(train_stage_name(stage)) + ".safetensors");
}

fs::path owner_file(const TrainRunOptions& options, TrainStage stage) {
  return options.work / (std::string(train_stage_name(stage)) + ".out");
}

std::string settings_json(const TrainRunOptions& options) {
  json all;
  for (const Setting& setting : settings()) {
    if (runs(options, setting.part)) all[setting.name] = setting.get(options);
  }
  all["stage"] = options.reuse_stage                     ? "reuse"
                 : options.draft                         ? "draft"
                 : options.backbone && options.diffusion ? "all"
                 : options.backbone                      ? "backbone"
                                                         : "diffusion";
  all["tokenizer"] = tokenizer_digest(options.tokenizer);
  all["tokenizer_folder"] = fs::absolute(options.tokenizer).string();
  if (options.draft) {
    all["target"] = Checkpoint::open(options.train.target).digest();
    all["target_folder"] = fs::absolute(options.train.target).string();
  }
  if (options.reuse_stage) {
    all["base"] = Checkpoint::open(options.init).digest();
    all["base_folder"] = fs::absolute(options.init).string();
    all["data"] = digest_of_texts(options.data);
    all["data_file"] = options.data.empty() ? "" : fs::absolute(options.data).string();
  }
  // A folder's name need not be UTF-8.
  return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

void take_stage(TrainRunOptions& options) {
  for (const TrainStage stage :
       {TrainStage::kReuse, TrainStage::kDraft, TrainStage::kDiffusion, TrainStage::kBackbone}) {
    const json record = recorded(state_file(options, stage));
    if (record.is_null()) continue;
    const std::string name = record.value("stage", "all");
    options.reuse_stage = name == "reuse";
    options.draft = name == "draft";
    options.backbone = name == "backbone" || name == "all";
    options.diffusion = name == "diffusion" || name == "all";
    return;
  }
}

void take_folders(TrainRunOptions& options, const GivenOptions& given) {
  const auto take = [&](const char* option, const json& record, const char* key, const char* holds,
                        fs::path& folder, const fs::path& state) {
    const std::string was = record.value(key, "");
    if (given(option) || was.empty()) return;  // empty: an older version did not record it
    std::error_code error;
    if (!fs::exists(fs::path(was) / holds, error)) {
      throw UsageError(fmt::format(
          "--resume: {}: its run had {} in {}, which no longer has it. HINT: {} names the "
          "folder where it is now",
          state.string(), holds, was, option));
    }
    folder = was;
  };
  for (const auto& [stage, runs] : stages(options)) {
    const fs::path state = state_file(options, stage);
    const json record = runs ? recorded(state) : json();
    if (record.is_null()) continue;
    if (stage == TrainStage::kReuse) {
      take("--init", record, "base_folder", "config.json", options.init, state);
      // check_outputs and the digest tell when the file is gone or has changed.
      if (!given("--data")) options.data = record.value("data_file", "");
    } else if (stage == TrainStage::kDraft) {
      take("--target", record, "target_folder", "config.json", options.train.target, state);
    } else {
      take("--tokenizer", record, "tokenizer_folder", "tokenizer.json", options.tokenizer, state);
    }
  }
}

void take_settings(TrainRunOptions& options, const GivenOptions& given) {
  std::map<std::string, bool> decided;  // options that an earlier state has set
  for (const auto& [stage, runs] : stages(options)) {
    if (!runs) continue;
    const fs::path state = state_file(options, stage);
    const json record = recorded(state);
    if (record.is_null()) continue;
    for (const Setting& setting : settings()) {
      if (!record.contains(setting.name)) continue;  // its run did not have that stage
      const std::string option = std::string("--") + setting.name;
      const json& was = record[setting.name];
      if (!given(option) && !decided[option]) {
        try {
          setting.set(options, was);
        } catch (const std::exception&) {
          throw CheckpointError(fmt::format("{}: settings: {}: got {}. HINT: the file is damaged",
                                            state.string(), setting.name, was.dump()));
        }
        decided[option] = true;
      } else if (const json is = setting.get(options); is != was) {
        refuse(state, option, was, is,
               given(option) ? "leave it out to go on as it was" : "resume one --stage at a time");
      }
    }
    const auto compare = [&](const char* key, const std::string& is, const char* what,
                             const char* hint) {
      if (is != record.value(key, "")) refuse(state, what, record.value(key, ""), is, hint);
    };
    if (stage == TrainStage::kReuse) {
      compare("base", Checkpoint::open(options.init).digest(), "the digest of --init",
              "--init names the checkpoint of the first run");
      compare("data", digest_of_texts(options.data), "the sha256 of --data",
              "--data names the file of the first run");
    }
    if (const json is = tokenizer_digest(options.tokenizer);
        is != record.value("tokenizer", json())) {
      refuse(state, "the sha256 of tokenizer.json", record.value("tokenizer", json()), is,
             stage == TrainStage::kReuse ? "the base had another one in the first run"
                                         : "--tokenizer names the folder of the first run");
    }
    if (stage != TrainStage::kDraft) continue;
    if (const json is = Checkpoint::open(options.train.target).digest();
        is != record.value("target", json())) {
      refuse(state, "the digest of --target", record.value("target", json()), is,
             "--target names the checkpoint of the first run");
    }
  }
}

}  // namespace blockscope
