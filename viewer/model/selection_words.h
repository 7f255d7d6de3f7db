// The selection as text: "sequence=0,block=1,step=4,layer=3,head=2,token=5". The numbers are those
// of the model and the trace, not slots. In links, '&' takes the place of ','.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace blockscope {

/// What a text names. `trace` and `panel` are for the viewer: which file, and which panel in front.
struct SelectionText {
  std::optional<std::int64_t> sequence, block, step, layer, head, token;
  std::string trace, panel;
};

/// `text` as a value of a link: other characters than letters, digits and "-_./" become %XX.
std::string percent_encoded(const std::string& text);

/// Throws UsageError when `text` can't be a selection of any trace.
SelectionText parse_selection(const std::string& text);

}  // namespace blockscope
