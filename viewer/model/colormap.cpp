#include "viewer/model/colormap.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

#include "viewer/model/colormap_tables.inc"

constexpr std::array<std::string_view, kColormapNames.size()> kTables = {kViridis, kMagma, kInferno,
                                                                         kCividis, kCoolwarm};

std::uint32_t nibble(char digit) {
  return static_cast<std::uint32_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
}

/// "rrggbb" of entry i.
Colour entry(std::string_view table, std::size_t i) {
  const auto byte = [&](std::size_t at) {
    return nibble(table[6 * i + at]) << 4U | nibble(table[6 * i + at + 1]);
  };
  return 0xFF000000U | byte(4) << 16U | byte(2) << 8U | byte(0);
}

double linear(std::uint32_t channel) {
  const double c = static_cast<double>(channel) / 255.0;
  return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
}

}  // namespace

Colormap::Colormap(std::string_view name) : name_(name) {
  const bool reversed = name.ends_with("_r");
  const std::string_view base = reversed ? name.substr(0, name.size() - 2) : name;
  const auto found = std::ranges::find(kColormapNames, base);
  if (found == kColormapNames.end()) {
    throw UsageError(fmt::format("--colormap: expected one of {} (or with _r: reversed), got '{}'",
                                 fmt::join(kColormapNames, ", "), name));
  }
  const auto which = static_cast<std::size_t>(found - kColormapNames.begin());
  for (std::size_t i = 0; i < table_.size(); ++i) {
    table_[i] = entry(kTables[which], reversed ? table_.size() - 1 - i : i);
  }
}

Colour Colormap::at(float value, float low, float high) const {
  if (std::isnan(value)) return kNoValueColour;
  // A range of one value shows the middle of the map.
  const float share = high > low ? (value - low) / (high - low) : 0.5F;
  return table_[static_cast<std::size_t>(std::clamp(share, 0.0F, 1.0F) * 255.0F + 0.5F)];
}

std::vector<Colour> colour_image(std::span<const float> values, float low, float high,
                                 const Colormap& map) {
  std::vector<Colour> pixels(values.size());
  std::ranges::transform(values, pixels.begin(),
                         [&](float value) { return map.at(value, low, high); });
  return pixels;
}

Colour readable_on(Colour background) {
  const double luminance = 0.2126 * linear(background & 0xFFU) +
                           0.7152 * linear(background >> 8U & 0xFFU) +
                           0.0722 * linear(background >> 16U & 0xFFU);
  // Compares the contrast with white, 1.05 / (L + 0.05), and with black, (L + 0.05) / 0.05.
  return (luminance + 0.05) * (luminance + 0.05) > 1.05 * 0.05 ? 0xFF000000U : 0xFFFFFFFFU;
}

}  // namespace blockscope
