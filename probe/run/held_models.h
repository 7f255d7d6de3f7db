// Models that a program keeps in memory between commands (`blockscope.Model` in Python).
// load_model() takes a held model instead of reading the same checkpoint again.
#pragma once

#include <memory>

#include "probe/run/run_flags.h"

namespace blockscope {

/// Loads the model and holds it for as long as the result lives. Throws what load_model throws.
std::shared_ptr<const LoadedModel> hold_model(const ModelFlags& flags,
                                              const Environment& environment);

/// The held model with these flags, from this folder; null: none.
std::shared_ptr<const LoadedModel> held_model(const ModelFlags& flags, const ResolvedModel& source);

}  // namespace blockscope
