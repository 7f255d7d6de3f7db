// Finds the folder of the model that the user named. It is an existing directory, or a model id in
// the local Hugging Face hub cache, looked up exactly as `transformers` does offline. Nothing is
// downloaded.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace blockscope {

/// Environment variables that decide where the cache is. `cli/` fills them in; "" if unset.
struct HubEnvironment {
  std::string hf_hub_cache;           // HF_HUB_CACHE
  std::string huggingface_hub_cache;  // HUGGINGFACE_HUB_CACHE (legacy)
  std::string hf_home;                // HF_HOME
  std::string xdg_cache_home;         // XDG_CACHE_HOME
  std::string home;                   // HOME
};

struct ResolvedModel {
  std::filesystem::path folder;  // holds config.json
  std::string requested;         // the user's text
  std::string revision;          // "" for a folder
  std::string snapshot;          // commit sha of the snapshot, "" for a plain folder
};

/// The one cache directory `huggingface_hub` would use: HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE,
/// else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub.
/// Empty if none of the variables is set.
std::filesystem::path hub_cache_directory(const HubEnvironment& environment);

/// `revision` is a branch, tag or commit sha. If nothing is found, throws a CheckpointError that
/// names every directory that was searched.
ResolvedModel resolve_model(const std::string& id_or_path, const std::string& revision,
                            const HubEnvironment& environment);

}  // namespace blockscope
