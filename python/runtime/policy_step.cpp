#include "python/runtime/policy_step.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/runtime/own_choice.h"

namespace nb = nanobind;

namespace blockscope::python {

void bind_policy_step(nb::module_& module) {
  nb::class_<PolicyKeys>(module, "ExternalKeys")
      .def_ro("key", &PolicyKeys::key)
      .def_ro("value", &PolicyKeys::value)
      .def_ro("length", &PolicyKeys::length);
  const auto fact = [](auto member) {
    return [member](const PolicyStep& step) { return step.pass.*member; };
  };
  nb::class_<PolicyStep>(module, "Step")
      .def_prop_ro("kind",
                   [](const PolicyStep& step) {
                     return step.pass.kind == PassKind::commit ? "commit" : "denoise";
                   })
      .def_prop_ro("sequence", fact(&SequencePass::sequence))
      .def_ro("slot", &PolicyStep::slot)
      .def_prop_ro("block", fact(&SequencePass::block))
      .def_prop_ro("block_start", fact(&SequencePass::block_start))
      .def_prop_ro("step", fact(&SequencePass::step))
      .def_prop_ro("first", [](const PolicyStep& step) { return step.pass.first_step(); })
      .def_prop_ro("run_step", fact(&SequencePass::run_step))
      .def_prop_ro("planned_steps", fact(&SequencePass::planned_steps))
      .def_prop_ro("context_length", fact(&SequencePass::context_length))
      .def_prop_ro("masks_left", fact(&SequencePass::masks_left))
      .def_prop_ro("decided", fact(&SequencePass::decided))
      .def_prop_ro("since_read", fact(&SequencePass::since_read))
      .def_prop_ro("masked", [](const PolicyStep& step) { return indices_of(step.pass.masked); })
      .def_prop_ro("changed",
                   [](const PolicyStep& step) { return indices_of(step.pass.changed_rows); })
      .def_ro("scale", &PolicyStep::scale)
      .def_ro("memory", &PolicyStep::memory);
}

}  // namespace blockscope::python
