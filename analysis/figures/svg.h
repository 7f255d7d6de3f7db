// Turns gnuplot's SVG into a file of its own, or into a part of an HTML page.
#pragma once

#include <string>
#include <string_view>

namespace blockscope {

/// The file for papers. Our title and description replace gnuplot's. Its tool tips and empty groups
/// are removed. Markers are paths of class "point" with fills of their own. The cells of heatmaps
/// become one path per colour.
std::string tidy_svg(std::string_view svg, std::string_view title, std::string_view description);

/// A tidied SVG as a part of an HTML page, scaled to the page's width and without an XML
/// declaration. Every id gets `prefix`, because ids must be unique in the page. Black becomes the
/// page's text colour and the background is removed, for light and dark pages.
std::string inline_svg(std::string_view svg, std::string_view prefix);

/// & < > " ' as entities, after printable_utf8(): text and attribute values of HTML, SVG and XML.
std::string escape_markup(std::string_view text);

}  // namespace blockscope
