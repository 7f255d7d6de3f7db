#include "analysis/figures/palette.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "decode_record/schema/trace_meta.h"

namespace blockscope {
namespace {

struct MethodColor {
  std::string_view method, color;
  int point;
  int dash = 1;  ///< 2 where another method of the same kind has the colour, too
};

/// One line a method. Methods that are drawn together differ in colour, or at least in shape.
constexpr std::array kMethods{
    // Attention policies. Exact attention is the reference.
    MethodColor{"exact", okabe_ito::kGrey, 6},
    MethodColor{"flashblock", okabe_ito::kBlue, 7},
    MethodColor{"mage", okabe_ito::kVermilion, 5},
    MethodColor{"mage+flashblock", okabe_ito::kPurple, 13},
    MethodColor{"sparsed", okabe_ito::kGreen, 9},
    MethodColor{"sparsed+flashblock", okabe_ito::kYellow, 11},
    MethodColor{"quest", okabe_ito::kOrange, 15},
    MethodColor{"oracle", okabe_ito::kSky, 7},
    MethodColor{"random", okabe_ito::kGrey, 4, 2},
    MethodColor{"recent", okabe_ito::kSky, 8, 2},
    // Caches.
    MethodColor{"none", okabe_ito::kGrey, 6},
    MethodColor{"commit", okabe_ito::kGrey, 5, 2},
    MethodColor{"blockd", okabe_ito::kSky, 5},
    MethodColor{"block", okabe_ito::kPurple, 7},
    MethodColor{"prefix", okabe_ito::kBlue, 5},
    MethodColor{"dual", okabe_ito::kOrange, 9},
    MethodColor{"dllm-cache", okabe_ito::kGreen, 11},
    MethodColor{"d2cache", okabe_ito::kVermilion, 13},
    // Strategies.
    MethodColor{"sequential", okabe_ito::kGrey, 7},
    MethodColor{"low_confidence_static", okabe_ito::kBlue, 7},
    MethodColor{"low_confidence_dynamic", okabe_ito::kOrange, 5},
    MethodColor{"entropy_bounded", okabe_ito::kSky, 9},
    MethodColor{"threshold", okabe_ito::kPurple, 11},
    MethodColor{"factor", okabe_ito::kSky, 13, 2},
    MethodColor{"prefix_ordered", okabe_ito::kYellow, 15},
    MethodColor{"klass", okabe_ito::kVermilion, 7},
    MethodColor{"pc_sampler", okabe_ito::kOrange, 7, 2},
    MethodColor{"wino", okabe_ito::kGreen, 9},
    MethodColor{"joint_threshold", okabe_ito::kGreen, 5, 2},
    MethodColor{"joint_threshold_indel", okabe_ito::kVermilion, 11, 2},
    MethodColor{"canvas", okabe_ito::kBlue, 13, 2},
};

/// "mage,k=64" and "mage with adapter" are mage; nullptr for other names.
const MethodColor* method_of(const std::string& name) {
  const std::string_view bare = std::string_view(name).substr(0, name.find_first_of(", "));
  const auto* const at = std::ranges::find(kMethods, bare, &MethodColor::method);
  return at == kMethods.end() ? nullptr : at;
}

/// Whether the names are several settings of one method, and exact attention.
bool settings_of_one(std::span<const std::string> names) {
  const MethodColor* only = nullptr;
  std::size_t count = 0;
  for (const std::string& name : names) {
    const MethodColor* method = method_of(name);
    if (method == &kMethods[0]) continue;
    if (method == nullptr || (only != nullptr && method != only)) return false;
    only = method;
    ++count;
  }
  return count > 1;
}

}  // namespace

LineLook line_look(std::size_t i) {
  return {kLineColors[i % kLineColors.size()], kPointTypes[i % kPointTypes.size()],
          i < kLineColors.size() ? 1 : 2};
}

LineLook region_look(std::size_t region, std::size_t count) {
  const RegionPlaces places(count);
  constexpr std::size_t kParts = 2;  // the first part of the prompt
  if (region >= kParts && region < places.answer) {
    const std::size_t part = region - kParts;
    return {kPartColors[part % kPartColors.size()], kPointTypes[part % kPointTypes.size()], 2};
  }
  const std::size_t kind = region < kParts ? region : region - places.answer + kParts;
  return {kRegionColors.at(kind), kPointTypes.at(kind)};
}

std::vector<LineLook> method_looks(std::span<const std::string> names) {
  const bool settings = settings_of_one(names);
  std::size_t setting = 0;
  std::vector<std::string_view> free(kLineColors.begin(), kLineColors.end());
  for (const std::string& name : names) {
    if (const MethodColor* method = method_of(name)) std::erase(free, method->color);
  }
  if (free.empty()) free.assign(kLineColors.begin(), kLineColors.end());
  std::vector<LineLook> looks;
  std::map<std::string_view, std::size_t> shown;  // how often, by method
  std::size_t others = 0;
  for (const std::string& name : names) {
    const MethodColor* method = method_of(name);
    if (method == nullptr) {
      const std::size_t i = others++;
      looks.push_back({free[i % free.size()], kPointTypes[(i + 3) % kPointTypes.size()],
                       1 + static_cast<int>(i / free.size())});
      continue;
    }
    if (settings && method->method != kMethods[0].method) {
      looks.push_back(line_look(setting++));
      continue;
    }
    const std::size_t before = shown[method->method]++;
    const auto* const shape = std::ranges::find(kPointTypes, method->point);
    const auto place = static_cast<std::size_t>(shape - kPointTypes.begin());
    looks.push_back({method->color, before == 0 ? method->point : kPointTypes[(place + before) % 6],
                     method->dash + static_cast<int>(before)});
  }
  return looks;
}

bool has_own_look(const std::string& method) { return method_of(method) != nullptr; }

std::string look_commands(const LineLook& look, bool points) {
  return fmt::format("dashtype {} linecolor rgb '{}' linewidth 2{}", look.dash, look.color,
                     points ? fmt::format(" pointtype {}", look.point) : "");
}

}  // namespace blockscope
