// The selection as text: "sequence=0,block=1,step=4,layer=3,head=2,token=5". The numbers are those
// of the model and the trace, not slots. In links, '&' takes the place of ','.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "viewer/model/view_model.h"

namespace blockscope {

/// What a text names. `trace` and `panel` are for the viewer: which file, and which panel in front.
struct SelectionText {
  std::optional<std::int64_t> sequence, block, step, layer, head, token;
  std::string trace, panel;
};

/// Throws UsageError when `text` can't be a selection of any trace.
SelectionText parse_selection(const std::string& text);

/// `now` with the parts changed that `wanted` names. Throws UsageError if the trace lacks one of
/// them.
Selection selection_from(const SelectionText& wanted, const Overview& overview,
                         const Selection& now);

/// The selection as a link: "sequence=0&block=1&step=4&layer=3&head=2"; empty while no trace is
/// shown.
std::string selection_link(const ViewModel& model);

/// The parts of the selection that a panel depends on: the trace; the trace and step; or also the
/// head.
enum class SelectionPart : std::uint8_t { trace, step, head };

/// "run-heads-sequence0-block0-step1-layer3-head2.png": a file name for what a panel shows.
std::string export_name(const ViewModel& model, const std::string& panel,
                        const std::string& extension, SelectionPart part = SelectionPart::head);

}  // namespace blockscope
