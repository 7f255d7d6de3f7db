#include "analysis/figures/figure_style.h"

#include <fmt/format.h>

#include "analysis/figures/palette.h"

namespace blockscope {

std::string figure_style() {
  std::string style =
      "set encoding utf8\n"
      "set datafile separator tab\n"
      "set datafile missing 'NaN'\n"
      // Black is the one colour that inline_svg() turns into the page's text colour.
      "set border 3 linecolor rgb 'black' linewidth 1\n"
      "set tics nomirror out scale 0.6\n"
      "set grid linetype 1 linecolor rgb '#90808080' linewidth 0.5\n"
      "set key outside right top Left reverse samplen 2 noautotitle\n"
      "set style fill solid 1.0 noborder\n"
      "set boxwidth 0.9 relative\n"
      "set format '%g'\n";
  for (std::size_t i = 0; i < kLineColors.size(); ++i) {
    style += fmt::format(
        "set linetype {} linecolor rgb '{}' linewidth 2 pointtype {} "
        "pointsize 0.6\n",
        i + 1, kLineColors[i], line_look(i).point);
  }
  style += "set palette maxcolors 256 defined (";
  for (std::size_t i = 0; i < kViridis.size(); ++i) {
    style += fmt::format("{}{} '{}'", i == 0 ? "" : ", ", i, kViridis[i]);
  }
  return style + ")\n";
}

}  // namespace blockscope
