// What the viewer remembers from run to run besides its layout: appearance, cache, recent files. No
// ImGui here.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace blockscope {

/// How things are shown.
struct Appearance {
  bool dark = true;
  std::string map = "viridis";
  /// Of heatmaps: locked to [low, high] or fitted to each.
  bool lock_range = false;
  float low = 0.0F, high = 1.0F;
};

inline constexpr std::size_t kMostRecentFiles = 12;
inline constexpr std::size_t kDefaultCacheMiB = 256;

struct Settings {
  Appearance appearance;
  std::size_t cache_mib = kDefaultCacheMiB;
  std::vector<std::string> recent;  ///< absolute paths, the last opened first

  /// Moves `path` to the front.
  void add_recent(const std::string& path);
};

/// Reads settings.json of the folder. What is missing or makes no sense there keeps its default: a
/// damaged file must not keep anybody from looking at a trace.
Settings load_settings(const std::string& folder);
/// Writes them atomically, making the folder. Throws Error when that fails.
void save_settings(const Settings& settings, const std::string& folder);

/// What a path being typed could go on with: folders (with "/") and trace files (.h5, .partial) in
/// its folder, names in order, at most `most`.
std::vector<std::string> complete_path(const std::string& typed, std::size_t most = 12);

}  // namespace blockscope
