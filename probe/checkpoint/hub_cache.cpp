// See hub_cache.h. Layout: models--<org>--<name>/{refs/<revision>, snapshots/<sha>/}.
#include "probe/checkpoint/hub_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <system_error>

#include "decode_record/base/error.h"

namespace blockscope {

namespace fs = std::filesystem;

namespace {

fs::path expand_home(const std::string& path, const std::string& home) {
  if (path == "~") return home;
  if (path.rfind("~/", 0) == 0) return fs::path(home) / path.substr(2);
  return path;
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

/// Whether `id` is "name" or "org/name" as the hub allows it. Keeps "..", absolute and empty parts
/// out of the path.
bool is_model_id(const std::string& id) {
  const std::size_t slash = id.find('/');
  if (slash != std::string::npos && id.find('/', slash + 1) != std::string::npos) return false;
  std::string part;
  for (const char c : id + "/") {
    if (c == '/') {
      if (part.empty() || part.front() == '.' || part.find("..") != std::string::npos) return false;
      part.clear();
    } else if (!is_name_character(c)) {
      return false;
    } else {
      part += c;
    }
  }
  return true;
}

bool is_revision(const std::string& revision) {
  if (revision.empty() || revision.front() == '/') return false;
  if (revision.find("..") != std::string::npos) return false;
  return std::all_of(revision.begin(), revision.end(),
                     [](char c) { return is_name_character(c) || c == '/'; });
}

std::string read_reference(const fs::path& path) {
  std::ifstream stream(path);
  std::string sha;
  stream >> sha;
  return sha;
}

bool directory_exists(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

std::string replace_slashes(std::string id) {
  const std::size_t slash = id.find('/');
  return slash == std::string::npos ? id : id.replace(slash, 1, "--");
}

}  // namespace

fs::path hub_cache_directory(const HubEnvironment& environment) {
  const std::string& home = environment.home;
  if (!environment.hf_hub_cache.empty()) return expand_home(environment.hf_hub_cache, home);
  if (!environment.huggingface_hub_cache.empty()) {
    return expand_home(environment.huggingface_hub_cache, home);
  }
  if (!environment.hf_home.empty()) return expand_home(environment.hf_home, home) / "hub";
  if (!environment.xdg_cache_home.empty()) {
    return expand_home(environment.xdg_cache_home, home) / "huggingface" / "hub";
  }
  if (!home.empty()) return fs::path(home) / ".cache" / "huggingface" / "hub";
  return {};
}

ResolvedModel resolve_model(const std::string& id_or_path, const std::string& revision,
                            const HubEnvironment& environment) {
  if (id_or_path.empty()) throw CheckpointError("model: expected a folder or a model id, got \"\"");
  const fs::path as_path = expand_home(id_or_path, environment.home);
  if (directory_exists(as_path)) {
    ResolvedModel model{as_path, id_or_path, "", ""};
    // The path of a snapshot folder ends with its commit.
    const fs::path parent = as_path.parent_path();
    if (parent.filename() == "snapshots") model.snapshot = as_path.filename().string();
    return model;
  }
  std::error_code error;
  if (fs::exists(as_path, error)) {
    throw CheckpointError(fmt::format(
        "model {}: expected a folder or a model id, got {}. HINT: the model comes first, "
        "then its options, such as --prompts FILE",
        id_or_path, fs::is_regular_file(as_path, error) ? "a file" : "a pipe or device"));
  }
  if (!is_model_id(id_or_path)) {
    throw CheckpointError(
        fmt::format("model {}: no such folder, and not a model id (name or organisation/name). "
                    "HINT: give the "
                    "folder that holds config.json",
                    id_or_path));
  }
  const std::string wanted = revision.empty() ? "main" : revision;
  if (!is_revision(wanted)) {
    throw CheckpointError(
        fmt::format("--revision {}: expected a branch, tag or commit of the model", wanted));
  }
  const fs::path cache = hub_cache_directory(environment);
  if (cache.empty()) {
    throw CheckpointError(
        fmt::format("model {}: no such folder, and no hub cache to look in. HINT: set HF_HOME or "
                    "HF_HUB_CACHE",
                    id_or_path));
  }
  const fs::path repository = cache / ("models--" + replace_slashes(id_or_path));
  const fs::path reference = repository / "refs" / wanted;
  const std::string sha = read_reference(reference);
  const std::string snapshot = sha.empty() ? wanted : sha;
  const fs::path folder = repository / "snapshots" / snapshot;
  const bool safe = is_revision(snapshot) && snapshot.find('/') == std::string::npos;
  if (safe && directory_exists(folder)) return {folder, id_or_path, wanted, snapshot};
  throw CheckpointError(
      fmt::format("model {}: expected a folder or a snapshot of revision \"{}\" in the local hub "
                  "cache, found "
                  "neither. Looked in: {}, {}, {}. HINT: nothing is downloaded; fetch it with `hf "
                  "download {}`, "
                  "or give the folder",
                  id_or_path, wanted, fs::absolute(as_path).string(), reference.string(),
                  folder.string(), id_or_path));
}

}  // namespace blockscope
