// Colours of all pictures, on light and dark backgrounds. Lines and bars have Okabe and Ito's eight
// colours, which people with any common colour blindness can tell apart. Values have viridis.
#pragma once

#include <array>
#include <string_view>

namespace blockscope {

inline constexpr std::string_view kExternalColor = "#0072B2";  ///< A_out: FlashBlock's blue
inline constexpr std::string_view kInternalColor = "#E69F00";  ///< A_in: FlashBlock's orange

/// Line styles 1..7 of a figure, in this order.
inline constexpr std::array<std::string_view, 7> kLineColors{
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C7A00"};

/// viridis at 0, 1/8, ..., 1 (matplotlib, CC0).
inline constexpr std::array<std::string_view, 9> kViridis{"#440154", "#472D7B", "#3B528B",
                                                          "#2C728E", "#21918C", "#28AE80",
                                                          "#5EC962", "#ADDC30", "#FDE725"};

}  // namespace blockscope
