// The selection as text, and back (selection_words.h).
#pragma once

#include <cstdint>
#include <string>

#include "viewer/model/selection_words.h"
#include "viewer/model/view_model.h"

namespace blockscope {

/// The parts that `wanted` names, and the first block, step, layer and head for those that it
/// leaves out. So one text selects the same in every version of the viewer. If it names none:
/// `now`. Throws UsageError if the trace lacks one of the parts.
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
