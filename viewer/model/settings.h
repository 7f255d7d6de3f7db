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
  /// Colour range of heatmaps: locked to [low, high], or fitted to each heatmap.
  bool lock_range = false;
  float low = 0.0F, high = 1.0F;
};

inline constexpr std::size_t kMostRecentFiles = 12;
inline constexpr std::size_t kDefaultCacheMiB = 256;

struct Settings {
  Appearance appearance;
  std::size_t cache_mib = kDefaultCacheMiB;
  std::vector<std::string> recent;  ///< absolute paths, the most recent first

  /// Moves `path` to the front.
  void add_recent(const std::string& path);
};

/// Reads settings.json of the folder. Missing and senseless values keep their defaults, because a
/// damaged file must not stop the viewer.
Settings load_settings(const std::string& folder);
/// Writes the settings atomically and creates the folder. Throws Error if that fails.
void save_settings(const Settings& settings, const std::string& folder);

/// Completions of a typed path: folders (with "/") and trace files (.h5, .partial), sorted by name,
/// at most `most`.
std::vector<std::string> complete_path(const std::string& typed, std::size_t most = 12);

/// The trace files among these paths and in these folders and their subfolders, sorted within each
/// folder, at most `most`. What can't be read is left out.
std::vector<std::string> traces_of(const std::vector<std::string>& paths, std::size_t most = 1000);

}  // namespace blockscope
