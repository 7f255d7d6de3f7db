// What gnuplot's SVG needs before people see it: a file of its own, or a part of an HTML page.
#pragma once

#include <string>
#include <string_view>

namespace blockscope {

/// The file for papers: gnuplot's title and description replaced by ours, its tool tips and empty
/// groups removed, the cells of heatmaps gathered into one path per colour.
std::string tidy_svg(std::string_view svg, std::string_view title, std::string_view description);

/// A tidied SVG as a part of an HTML page: no XML declaration, every id with `prefix` in front (ids
/// are shared by the whole page), scaled to the page's width, black drawn in the page's text colour
/// and no background, so that it reads in light and dark.
std::string inline_svg(std::string_view svg, std::string_view prefix);

/// & < > " ' as entities, after printable_utf8(): text and attribute values of HTML, SVG and XML.
std::string escape_markup(std::string_view text);

}  // namespace blockscope
