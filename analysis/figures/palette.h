// Colours and marker shapes of all pictures: report, studies, verify and viewer. Lines and bars
// have Okabe and Ito's colours, which people with any common colour blindness can tell apart.
// Values have viridis. No other file names a colour of data.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace blockscope {

/// On light and dark backgrounds; the palette's yellow is darker here.
namespace okabe_ito {
inline constexpr std::string_view kBlue = "#0072B2";
inline constexpr std::string_view kOrange = "#E69F00";
inline constexpr std::string_view kGreen = "#009E73";
inline constexpr std::string_view kPurple = "#CC79A7";
inline constexpr std::string_view kSky = "#56B4E9";
inline constexpr std::string_view kVermilion = "#D55E00";
inline constexpr std::string_view kYellow = "#8C7A00";
inline constexpr std::string_view kGrey = "#777777";
}  // namespace okabe_ito

inline constexpr std::string_view kExternalColor = okabe_ito::kBlue;    ///< A_out, as FlashBlock
inline constexpr std::string_view kInternalColor = okabe_ito::kOrange;  ///< A_in

/// Line styles 1..7 of a figure, in this order.
inline constexpr std::array<std::string_view, 7> kLineColors{
    okabe_ito::kBlue, okabe_ito::kOrange,    okabe_ito::kGreen, okabe_ito::kPurple,
    okabe_ito::kSky,  okabe_ito::kVermilion, okabe_ito::kYellow};
/// gnuplot's filled circle, square, triangle, triangle upside down, diamond and pentagon.
inline constexpr std::array<int, 6> kPointTypes{7, 5, 9, 11, 13, 15};

/// Of keys by what stands at their position, in the order of kRegionNames.
inline constexpr std::array<std::string_view, 6> kRegionColors{
    okabe_ito::kVermilion, okabe_ito::kSky,    okabe_ito::kBlue,
    okabe_ito::kGreen,     okabe_ito::kOrange, okabe_ito::kPurple};
/// Of parts of a prompt, in turns: Paul Tol's muted colours, which are none of those above.
inline constexpr std::array<std::string_view, 4> kPartColors{"#DDCC77", "#44AA99", "#882255",
                                                             "#999999"};

/// viridis at 0, 1/8, ..., 1 (matplotlib, CC0).
inline constexpr std::array<std::string_view, 9> kViridis{"#440154", "#472D7B", "#3B528B",
                                                          "#2C728E", "#21918C", "#28AE80",
                                                          "#5EC962", "#ADDC30", "#FDE725"};

/// The look of a curve.
struct LineLook {
  std::string_view color;
  int point = 7;  ///< gnuplot's point type
  int dash = 1;   ///< gnuplot's dash type
};

/// The look of the i-th of several curves that are no methods: colours and shapes in turns.
LineLook line_look(std::size_t i);

/// The look of a region of keys, by its place on an axis of `count` regions (RegionPlaces).
LineLook region_look(std::size_t region, std::size_t count);

/// The looks of a figure's methods, by their names: policies, caches or strategies, with options or
/// remarks after a comma or a space ("mage,k=64"). A method has the same colour in every figure.
/// One that the figure shows more than once has other shapes and dashes there; where a figure
/// compares settings of one method alone, they have the colours of line_look(). Methods of plugins,
/// and other names, have the colours that are left.
std::vector<LineLook> method_looks(std::span<const std::string> names);

/// Whether a name, without options, has a colour of its own.
bool has_own_look(const std::string& method);

/// `look` as gnuplot writes it after `with linespoints`, or `with lines` without points.
std::string look_commands(const LineLook& look, bool points = true);

}  // namespace blockscope
