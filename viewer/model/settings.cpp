#include "viewer/model/settings.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "decode_record/base/error.h"
#include "decode_record/files/output_file.h"
#include "viewer/model/colormap.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

bool is_map(const std::string& name) {
  try {
    const Colormap map(name);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

template <typename T, typename Good>
void take(const Json& json, const char* name, T& value, const Good& good) {
  if (!json.contains(name)) return;
  try {
    const T found = json.at(name).get<T>();
    if (good(found)) value = found;
  } catch (const Json::exception&) {
    // unexpected type: keep the default
  }
}

bool looks_like_trace(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".h5" || extension == ".hdf5" || extension == ".partial";
}

}  // namespace

void Settings::add_recent(const std::string& path) {
  std::error_code error;
  const fs::path whole = fs::absolute(path, error);
  const std::string name = error ? path : whole.lexically_normal().string();
  std::erase(recent, name);
  recent.insert(recent.begin(), name);
  if (recent.size() > kMostRecentFiles) recent.resize(kMostRecentFiles);
}

Settings load_settings(const std::string& folder) {
  Settings settings;
  if (folder.empty()) return settings;
  std::ifstream file(folder + "/settings.json");
  const Json json = file ? Json::parse(file, nullptr, false) : Json();
  if (!json.is_object()) return settings;
  const auto any = [](const auto&) { return true; };
  const auto finite = [](float value) { return std::isfinite(value); };
  Appearance& appearance = settings.appearance;
  take(json, "dark", appearance.dark, any);
  take(json, "colormap", appearance.map, is_map);
  take(json, "lock_range", appearance.lock_range, any);
  take(json, "low", appearance.low, finite);
  take(json, "high", appearance.high, finite);
  if (appearance.low >= appearance.high) {
    appearance.low = 0.0F;
    appearance.high = 1.0F;
  }
  take(json, "cache_mib", settings.cache_mib,
       [](std::size_t mib) { return mib >= 16 && mib <= 65536; });
  take(json, "recent", settings.recent, any);
  if (settings.recent.size() > kMostRecentFiles) settings.recent.resize(kMostRecentFiles);
  return settings;
}

void save_settings(const Settings& settings, const std::string& folder) {
  std::error_code ignored;
  fs::create_directories(folder, ignored);  // OutputFile reports the error
  const Appearance& appearance = settings.appearance;
  const Json json = {{"dark", appearance.dark},
                     {"colormap", appearance.map},
                     {"lock_range", appearance.lock_range},
                     {"low", appearance.low},
                     {"high", appearance.high},
                     {"cache_mib", settings.cache_mib},
                     {"recent", settings.recent}};
  OutputFile file(folder + "/settings.json", true);
  file.write(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  file.commit();
}

std::vector<std::string> complete_path(const std::string& typed, std::size_t most) {
  const fs::path path(typed);
  const std::string begin = path.filename().string();
  fs::path folder = path.parent_path();
  std::vector<std::string> found;
  std::error_code error;
  fs::directory_iterator entries(folder.empty() ? fs::path(".") : folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (!name.starts_with(begin) || (begin.empty() && name.starts_with("."))) continue;
    std::error_code not_there;
    const bool is_folder = entries->is_directory(not_there);
    if (!is_folder && !looks_like_trace(entries->path())) continue;
    found.push_back((folder / name).string() + (is_folder ? "/" : ""));
  }
  std::ranges::sort(found);
  if (found.size() > most) found.resize(most);
  return found;
}

std::vector<std::string> traces_of(const std::vector<std::string>& paths, std::size_t most) {
  std::vector<std::string> found;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      found.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    fs::recursive_directory_iterator entries(path, fs::directory_options::skip_permission_denied,
                                             error);
    for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
      std::error_code not_there;
      if (entries->is_regular_file(not_there) && looks_like_trace(entries->path())) {
        inside.push_back(entries->path().string());
      }
    }
    std::ranges::sort(inside);
    found.insert(found.end(), inside.begin(), inside.end());
  }
  if (found.size() > most) found.resize(most);
  return found;
}

}  // namespace blockscope
