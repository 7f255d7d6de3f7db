// Colour maps under matplotlib's names, as lookup tables. No ImGui here.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/figures/palette.h"

namespace blockscope {

/// 0xAABBGGRR, the layout of ImGui and of an RGBA8 texture on a little-endian machine.
using Colour = std::uint32_t;

inline constexpr std::array<std::string_view, 5> kColormapNames = {"viridis", "magma", "inferno",
                                                                   "cividis", "coolwarm"};
/// Cells without a value: not recorded, no such position, NaN. No map contains it.
inline constexpr Colour kNoValueColour = 0xFF8A8A8A;

/// A colour of palette.h, "#0072B2".
constexpr Colour colour_of_text(std::string_view text) {
  Colour colour = 0xFF;
  for (std::size_t i = 5;; i -= 2) {
    for (std::size_t k = i; k < i + 2; ++k) {
      const char digit = text[k];
      colour = colour << 4U | static_cast<Colour>(digit <= '9' ? digit - '0' : digit - 'A' + 10);
    }
    if (i == 1) return colour;
  }
}

/// From the palette of Okabe and Ito, which colour-blind people can tell apart.
inline constexpr Colour kGreen = colour_of_text(okabe_ito::kGreen);
inline constexpr Colour kVermilion = colour_of_text(okabe_ito::kVermilion);
inline constexpr Colour kSkyBlue = colour_of_text(okabe_ito::kSky);
inline constexpr Colour kPurple = colour_of_text(okabe_ito::kPurple);

class Colormap {
 public:
  /// "viridis", or "viridis_r" for the reverse. Throws UsageError listing the names.
  explicit Colormap(std::string_view name);
  const std::string& name() const { return name_; }
  /// Colour of `value` in [low, high]. Values outside get the colour of the nearer end, NaN gets
  /// kNoValueColour.
  Colour at(float value, float low, float high) const;
  const std::array<Colour, 256>& table() const { return table_; }

 private:
  std::string name_;
  std::array<Colour, 256> table_{};
};

/// One pixel per value, row-major.
std::vector<Colour> colour_image(std::span<const float> values, float low, float high,
                                 const Colormap& map);

/// Black or white, whichever is readable on `background` (WCAG relative luminance).
Colour readable_on(Colour background);

}  // namespace blockscope
