// StepSource, the trace from which blockscope.record() takes values of another run.
#include <fmt/format.h>
#include <nanobind/stl/array.h>

#include <algorithm>
#include <optional>
#include <string>
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

using Sizes = std::array<std::int64_t, 5>;

PatchedModel model_of(const Sizes& sizes) {
  return {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
}

/// An open StepSource. It is closed when a second view of its file needs that; see
/// close_unfinished().
class SourceHandle final : public OpenTrace {
  std::string path_;
  std::vector<Field> needed_;
  PatchedModel model_;
  bool unfinished_ = false, closed_ = false;
  std::optional<StepSource> source_;

  /// Call it with the reader's lock.
  const StepSource& source() {
    if (closed_) throw UsageError(path_ + ": the trace is closed");
    if (!source_) {
      close_unfinished();
      source_.emplace(path_, "interventions", model_, needed_);
      unfinished_ = source_->info().partial;
    }
    return *source_;
  }

 public:
  /// sizes: num_layers, num_heads, num_kv_heads, head_dim, hidden_size; -1: not known.
  SourceHandle(const nb::bytes& path, const Sizes& sizes, const std::vector<std::string>& needed)
      : path_(to_string(path)), model_(model_of(sizes)) {
    for (const std::string& one : needed) needed_.push_back(field_at(one));
    without_gil([this] {
      source();
      all().insert(this);
    });
  }
  SourceHandle(const SourceHandle&) = delete;
  SourceHandle& operator=(const SourceHandle&) = delete;
  ~SourceHandle() { close(); }
  void close() {
    without_gil([this] {
      all().erase(this);
      drop();
      closed_ = true;
    });
  }

  bool unfinished() const override { return unfinished_; }
  void drop() override { source_.reset(); }

  void check_model(const Sizes& sizes) {
    without_gil([&] {
      model_ = model_of(sizes);
      source().check_model(model_);
    });
  }

  /// step: the sequence's number, block_start, block_length, step. Floats of the dataset for these
  /// heads; for all of the layer's input with no heads.
  nb::bytearray values(const std::string& path, const std::vector<std::int64_t>& prompt,
                       const std::array<std::int64_t, 4>& step, std::int64_t layer,
                       const std::vector<std::int64_t>& heads) {
    const Field field = field_at(path);
    const SoughtStep sought{step[0], prompt, step[1], step[2], step[3]};
    const std::vector<float> found = without_gil([&] {
      return field == Field::hidden ? source().hidden(sought, layer)
                                    : source().of_heads(field, sought, layer, heads);
    });
    return to_bytearray(found);
  }
};

}  // namespace

void bind_patches(nb::module_& module) {
  nb::class_<SourceHandle>(module, "StepSource")
      .def(nb::init<const nb::bytes&, const Sizes&, const std::vector<std::string>&>(),
           nb::arg("path"), nb::arg("sizes"), nb::arg("needed"))
      .def("close", &SourceHandle::close)
      .def("check_model", &SourceHandle::check_model, nb::arg("sizes"))
      .def("values", &SourceHandle::values, nb::arg("path"), nb::arg("prompt"), nb::arg("step"),
           nb::arg("layer"), nb::arg("heads"));
}

}  // namespace blockscope::python
