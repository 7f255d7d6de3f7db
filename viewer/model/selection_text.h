// The selection as text: "sequence=0,block=1,step=4,layer=3,head=2,token=5", numbers as the model
// and the trace have them.
#pragma once

#include <string>

#include "viewer/model/view_model.h"

namespace blockscope {

/// Throws UsageError when `text` can't be a selection of any trace.
void check_selection_text(const std::string& text);

/// `now` with what `text` names changed. Throws UsageError when the trace doesn't have it.
Selection selection_from_text(const std::string& text, const Overview& overview,
                              const Selection& now);

/// "run-heads-layer3-head2.png": a file name for what a panel shows of the active trace.
std::string export_name(const ViewModel& model, const std::string& panel,
                        const std::string& extension);

}  // namespace blockscope
