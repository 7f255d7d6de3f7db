// The selection as text: "sequence=0,block=1,step=4,layer=3,head=2,token=5", numbers as the model
// and the trace have them.
#pragma once

#include <cstdint>
#include <string>

#include "viewer/model/view_model.h"

namespace blockscope {

/// Throws UsageError when `text` can't be a selection of any trace.
void check_selection_text(const std::string& text);

/// `now` with what `text` names changed. Throws UsageError when the trace doesn't have it.
Selection selection_from_text(const std::string& text, const Overview& overview,
                              const Selection& now);

/// How much of the selection a panel depends on: the trace alone, its step, or the head, too.
enum class SelectionPart : std::uint8_t { trace, step, head };

/// "run-heads-sequence0-block0-step1-layer3-head2.png": a file name for what a panel shows.
std::string export_name(const ViewModel& model, const std::string& panel,
                        const std::string& extension, SelectionPart part = SelectionPart::head);

}  // namespace blockscope
