// Last stage of the chat-template renderer: evaluates the tree against a context, with Python's and
// Jinja's meaning of truth, slices, string methods and undefined values.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "probe/text/template_parser.h"

namespace blockscope {

/// Output of a template, or an intermediate value, is at most this long.
inline constexpr std::size_t kMaxRenderedBytes = std::size_t{64} << 20;

/// Renders `nodes` with the keys of `context` as variables. `context` is an object of scalars, flat
/// objects and lists of these. Memory, time and depth are bounded: a value has at most these levels
/// too, and what a rendering reads and makes is counted. Throws PromptError
/// ("<where>:<line>: ...") if the template raises an exception for these messages or uses a value
/// in a way outside the subset.
std::string render_template(const std::vector<TemplateNode>& nodes, const nlohmann::json& context,
                            const std::string& where);

}  // namespace blockscope
