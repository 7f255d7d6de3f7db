// StepSource, the trace from which blockscope.record() takes values of another run.
#include <fmt/format.h>
#include <nanobind/stl/array.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "decode_record/base/error.h"
#include "decode_record/read/step_source.h"
#include "python/bindings.h"

namespace blockscope::python {
namespace {

Field field_at(const std::string& path) {
  const auto found = std::ranges::find(kDatasets, path, &DatasetSpec::path);
  if (found == kDatasets.end()) throw UsageError(fmt::format("{}: no such dataset", path));
  return found->field;
}

class SourceHandle {
  std::unique_ptr<StepSource> source_;

 public:
  /// sizes: num_layers, num_heads, num_kv_heads, head_dim, hidden_size.
  SourceHandle(const nb::bytes& path, const std::array<std::int64_t, 5>& sizes,
               const std::vector<std::string>& needed) {
    std::vector<Field> fields;
    for (const std::string& one : needed) fields.push_back(field_at(one));
    const std::string name = to_string(path);
    without_gil([&] {
      source_ = std::make_unique<StepSource>(
          name, "interventions", PatchedModel{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]},
          fields);
    });
  }
  SourceHandle(const SourceHandle&) = delete;
  SourceHandle& operator=(const SourceHandle&) = delete;
  ~SourceHandle() {
    without_gil([this] { source_.reset(); });
  }

  /// step: the sequence's number, block_start, block_length, step. Floats of the dataset for these
  /// heads; for all of the layer's input with no heads.
  nb::bytearray values(const std::string& path, const std::vector<std::int64_t>& prompt,
                       const std::array<std::int64_t, 4>& step, std::int64_t layer,
                       const std::vector<std::int64_t>& heads) const {
    const Field field = field_at(path);
    const SoughtStep sought{step[0], prompt, step[1], step[2], step[3]};
    const std::vector<float> found = without_gil([&] {
      return field == Field::hidden ? source_->hidden(sought, layer)
                                    : source_->of_heads(field, sought, layer, heads);
    });
    return to_bytearray(found);
  }
};

}  // namespace

void bind_patches(nb::module_& module) {
  nb::class_<SourceHandle>(module, "StepSource")
      .def(nb::init<const nb::bytes&, const std::array<std::int64_t, 5>&,
                    const std::vector<std::string>&>(),
           nb::arg("path"), nb::arg("sizes"), nb::arg("needed"))
      .def("values", &SourceHandle::values, nb::arg("path"), nb::arg("prompt"), nb::arg("step"),
           nb::arg("layer"), nb::arg("heads"));
}

}  // namespace blockscope::python
