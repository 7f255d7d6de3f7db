// The selection as text: "sequence=0,block=1,step=4,layer=3,head=2,token=5". The numbers are those
// of the model and the trace, not slots.
#pragma once

#include <cstdint>
#include <string>

#include "viewer/model/view_model.h"

namespace blockscope {

/// Throws UsageError when `text` can't be a selection of any trace.
void check_selection_text(const std::string& text);

/// `now` with the parts changed that `text` names. Throws UsageError if the trace lacks one of
/// them.
Selection selection_from_text(const std::string& text, const Overview& overview,
                              const Selection& now);

/// The parts of the selection that a panel depends on: the trace; the trace and step; or also the
/// head.
enum class SelectionPart : std::uint8_t { trace, step, head };

/// "run-heads-sequence0-block0-step1-layer3-head2.png": a file name for what a panel shows.
std::string export_name(const ViewModel& model, const std::string& panel,
                        const std::string& extension, SelectionPart part = SelectionPart::head);

}  // namespace blockscope
