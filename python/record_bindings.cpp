// TraceWriter, the writer of blockscope.record(). Arrays arrive as buffers of Python objects in the
// file's element types. They are copied without Python's lock, which is also never held while the
// queue is full. So a slow disk slows the recorded loop, but not the other threads of its process.
#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "decode_record/base/error.h"
#include "decode_record/base/index_set.h"
#include "decode_record/schema/reuse_rule.h"
#include "decode_record/schema/trace_schema.h"
#include "decode_record/write/trace_writer.h"
#include "python/bindings.h"

namespace blockscope::python {
namespace {

template <typename Value>
Value entry(const nb::dict& from, const char* name) {
  if (!from.contains(name)) throw UsageError(fmt::format("trace meta: {}: missing", name));
  return nb::cast<Value>(from[name]);
}

TraceMeta meta_of(const nb::dict& from) {
  TraceMeta meta;
  meta.num_layers = entry<std::int64_t>(from, "num_layers");
  meta.num_heads = entry<std::int64_t>(from, "num_heads");
  meta.num_kv_heads = entry<std::int64_t>(from, "num_kv_heads");
  meta.head_dim = entry<std::int64_t>(from, "head_dim");
  meta.layer_kv_heads = entry<std::vector<std::int64_t>>(from, "layer_kv_heads");
  meta.layer_head_dim = entry<std::vector<std::int64_t>>(from, "layer_head_dim");
  meta.layer_window = entry<std::vector<std::int64_t>>(from, "layer_window");
  meta.noise_canvas = entry<bool>(from, "noise_canvas");
  meta.hidden_size = entry<std::int64_t>(from, "hidden_size");
  meta.vocab_size = entry<std::int64_t>(from, "vocab_size");
  meta.mask_token_id = entry<std::int64_t>(from, "mask_token_id");
  meta.logit_shift = entry<std::int64_t>(from, "logit_shift");
  meta.bidirectional = entry<bool>(from, "bidirectional");
  meta.has_cache = meta.bidirectional;
  meta.has_since_read = true;
  meta.softmax_scale = entry<double>(from, "softmax_scale");
  meta.block_length = entry<std::int64_t>(from, "block_length");
  meta.level = parse_record_level(entry<std::string>(from, "level"));
  meta.layers = entry<std::vector<std::int64_t>>(from, "layers");
  meta.heads = entry<std::vector<std::int64_t>>(from, "heads");
  meta.kv_heads = entry<std::vector<std::int64_t>>(from, "kv_heads");
  meta.set_size = entry<std::int64_t>(from, "set_size");
  meta.set_normaliser = entry<std::string>(from, "set_normaliser") == "prefix"
                            ? SetNormaliser::prefix
                            : SetNormaliser::prefix_and_block;
  meta.array_type =
      entry<std::string>(from, "array_type") == "f32" ? ArrayType::f32 : ArrayType::bf16;
  meta.regions = entry<std::vector<std::string>>(from, "regions");
  meta.distance_bins = entry<std::int64_t>(from, "distance_bins");
  meta.has_answer_blocks = !meta.regions.empty();
  meta.has_kept_pair = meta.level >= RecordLevel::summary;
  meta.has_set_norms = entry<bool>(from, "has_set_norms");
  meta.has_interventions = entry<bool>(from, "has_interventions");
  meta.experts_per_token = entry<std::int64_t>(from, "experts_per_token");
  meta.num_experts = entry<std::int64_t>(from, "num_experts");
  meta.map_layers = entry<std::vector<std::int64_t>>(from, "map_layers");
  meta.map_heads = entry<std::vector<std::int64_t>>(from, "map_heads");
  meta.map_positions = entry<std::int64_t>(from, "map_positions");
  meta.block_tokens = entry<std::int64_t>(from, "block_tokens");
  meta.block_rows = entry<std::vector<std::int64_t>>(from, "block_rows");
  meta.pair_steps = entry<std::int64_t>(from, "pair_steps");
  meta.model_json = to_string(entry<nb::bytes>(from, "model_json"));
  meta.run_json = to_string(entry<nb::bytes>(from, "run_json"));
  meta.pieces = to_strings(entry<std::vector<nb::bytes>>(from, "pieces"));
  return meta;
}

/// The kinds of the rows if the next step reuses the pair; none if it reads.
std::vector<std::uint8_t> kinds_if_reused(KeptCounter& pair, std::int64_t step,
                                          std::int64_t changed, std::int64_t decided,
                                          const std::vector<bool>& masked,
                                          const std::vector<bool>& changed_rows) {
  if (masked.size() != changed_rows.size()) {
    throw UsageError(
        fmt::format("changed_rows: expected {} of them, one for each of `masked`, got {}",
                    masked.size(), changed_rows.size()));
  }
  if (!pair.reuses(step, changed, decided, masked, changed_rows)) return {};
  return pair.kinds();
}

const DatasetSpec& spec_at(const std::string& path) {
  const auto found = std::ranges::find(kDatasets, path, &DatasetSpec::path);
  if (found == kDatasets.end()) throw UsageError(fmt::format("{}: no such dataset", path));
  return *found;
}

/// The element type of the buffer, by the names of Python's module `struct`. bfloat16 has no name
/// there and arrives as 16-bit integers.
std::string_view formats_of(const DatasetSpec& spec, const TraceMeta& meta) {
  switch (spec.type) {
    case ElementType::u8:
      return "B";
    case ElementType::i32:
      return "i";
    case ElementType::i64:
      return "ql";
    case ElementType::f32:
      return "f";
    case ElementType::f16:
      return "e";
    case ElementType::array:
      return meta.array_type == ArrayType::f32 ? "f" : "hH";
  }
  return "";
}

/// Keeps the memory of a Python object while this lives. Construct and destroy it with Python's
/// lock.
class ReadableBuffer {
 public:
  explicit ReadableBuffer(const nb::handle& object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
      throw nb::python_error();
    }
  }
  ReadableBuffer(ReadableBuffer&& other) noexcept : view_(std::exchange(other.view_, {})) {}
  ReadableBuffer(const ReadableBuffer&) = delete;
  ReadableBuffer& operator=(const ReadableBuffer&) = delete;
  ReadableBuffer& operator=(ReadableBuffer&&) = delete;
  ~ReadableBuffer() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }

  std::string_view format() const { return view_.format == nullptr ? "B" : view_.format; }
  Buffer copy() const {
    const auto* const first = static_cast<const std::byte*>(view_.buf);
    return make_buffer(std::vector<std::byte>(first, first + view_.len));
  }

 private:
  Py_buffer view_{};
};

using Transfers = std::tuple<std::vector<std::int64_t>, std::vector<std::int64_t>,
                             std::vector<float>, std::vector<std::int64_t>>;
using Ranges = std::vector<std::pair<std::int32_t, std::int32_t>>;
using RangesOfLayer = std::pair<Ranges, Ranges>;  // ranges of queries (and keys), and of values

/// Both are position, token, confidence, step.
FrameDelta delta_of(const Transfers& transfers, const Transfers& insertions) {
  FrameDelta delta;
  SequenceDelta& row = delta.rows.front();
  row.transfer_index = std::get<0>(transfers);
  row.transfer_step = std::get<3>(transfers);
  row.insert_index = std::get<0>(insertions);
  row.insert_step = std::get<3>(insertions);
  std::int64_t source = 0;
  for (std::size_t i = 0; i < row.transfer_index.size(); ++i) {
    row.transfer_src_index.push_back(source++);
  }
  for (std::size_t i = 0; i < row.insert_index.size(); ++i)
    row.insert_src_index.push_back(source++);
  for (const Transfers* part : {&transfers, &insertions}) {
    const auto& tokens = std::get<1>(*part);
    const auto& confidence = std::get<2>(*part);
    row.decoded_tokens.insert(row.decoded_tokens.end(), tokens.begin(), tokens.end());
    row.confidence.insert(row.confidence.end(), confidence.begin(), confidence.end());
  }
  return delta;
}

std::vector<PositionRange> positions_of(const Ranges& ranges) {
  std::vector<PositionRange> positions;
  for (const auto& [start, stop] : ranges) positions.push_back({start, stop});
  return positions;
}

class WriterHandle {
  /// Runs on one thread of the process at a time, without Python's lock. It comes first because its
  /// return type is deduced.
  template <typename Work>
  auto alone(Work&& work) {
    if (getpid() != owner_) {
      throw UsageError(
          "the trace belongs to the process that began it, and this process is a fork of it");
    }
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::forward<Work>(work)();
  }

  TraceMeta meta_;
  const pid_t owner_;
  std::mutex mutex_;
  std::unique_ptr<TraceWriter> writer_;

 public:
  WriterHandle(const nb::bytes& path, const nb::dict& meta, bool force, std::size_t queue_bytes)
      : meta_(meta_of(meta)), owner_(getpid()) {
    TraceWriterOptions options;
    options.force = force;
    options.queue_bytes = queue_bytes;
    const std::string name = to_string(path);
    const nb::gil_scoped_release release;
    writer_ = std::make_unique<TraceWriter>(name, meta_, options);
    meta_.pieces.clear();
  }
  WriterHandle(const WriterHandle&) = delete;
  WriterHandle& operator=(const WriterHandle&) = delete;
  ~WriterHandle() {
    // The child of a fork has the object without its thread, so the child can't end it.
    if (getpid() != owner_) {
      static_cast<void>(writer_.release());
      return;
    }
    const nb::gil_scoped_release release;
    writer_.reset();
  }

  std::int64_t begin_sequence(const nb::bytes& name, std::vector<std::int64_t> prompt,
                              std::int64_t gen_length, std::vector<std::uint8_t> regions) {
    SequenceStart start;
    start.name = to_string(name);
    start.prompt = std::move(prompt);
    start.prompt_regions = std::move(regions);
    start.gen_length = gen_length;
    return alone([&] { return writer_->begin_sequence(std::move(start)); });
  }

  void end_sequence(std::int64_t sequence, const std::string& reason, const nb::bytes& text) {
    const std::optional<FinishReason> known = parse_finish_reason(reason);
    if (!known) throw UsageError(fmt::format("finish reason: '{}' is not a known reason", reason));
    SequenceEnd end;
    end.reason = *known;
    end.text = to_string(text);
    alone([&] { writer_->end_sequence(sequence, std::move(end)); });
  }

  /// scalars: sequence, pass, kind, block, block_start, step, context_length, changed,
  /// since_read, rows_read, masks_left, recorded, pass_time_ns, and for the keys that the pass
  /// stored (level full) the first position and the number. arrays: dataset, layer slot or -1,
  /// buffer. valid: [B]; empty: all. computed: ranges for every layer; else by_layer has those of
  /// each layer. timestep: of a continuous model, else NaN.
  void append_row(const std::vector<std::int64_t>& scalars,
                  const std::optional<Transfers>& transfers,
                  const std::optional<Transfers>& insertions, const Ranges& computed,
                  const nb::list& arrays, std::vector<std::uint8_t> valid,
                  const std::vector<RangesOfLayer>& by_layer, float timestep) {
    if (scalars.size() != 15) {
      throw UsageError(fmt::format("append_row: expected 15 scalars, got {}", scalars.size()));
    }
    TraceRow row;
    row.sequence = scalars[0];
    row.pass = scalars[1];
    row.kind = static_cast<PassKind>(std::clamp<std::int64_t>(scalars[2], 0, 2));
    row.block = scalars[3];
    row.block_start = scalars[4];
    row.step = scalars[5];
    row.context_length = scalars[6];
    row.changed = scalars[7];
    row.since_read = scalars[8];
    row.rows_read = scalars[9];
    row.masks_left = scalars[10];
    row.recorded = scalars[11] != 0;
    row.pass_time_ns = scalars[12];
    row.timestep = timestep;
    row.prefix_start = scalars[13];
    row.prefix_length = scalars[14];
    if (transfers || insertions) {
      row.delta = delta_of(transfers.value_or(Transfers{}), insertions.value_or(Transfers{}));
    }
    row.valid = std::move(valid);
    if (meta_.has_cache && by_layer.empty()) {
      const std::vector<PositionRange> all = positions_of(computed);
      row.cache.assign(static_cast<std::size_t>(meta_.num_layers), {all, all, all});
    } else if (meta_.has_cache) {
      for (const auto& [query, value] : by_layer) {
        row.cache.push_back({positions_of(query), positions_of(query), positions_of(value)});
      }
    }
    std::vector<ReadableBuffer> buffers;
    for (const nb::handle& item : arrays) {
      const auto [path, layer, object] =
          nb::cast<std::tuple<std::string, std::int64_t, nb::object>>(item);
      const DatasetSpec& spec = spec_at(path);
      const ReadableBuffer& buffer = buffers.emplace_back(object);
      if (formats_of(spec, meta_).find(buffer.format()) == std::string_view::npos) {
        throw UsageError(fmt::format("{}: expected elements of type {}, got {}", path,
                                     formats_of(spec, meta_), buffer.format()));
      }
      row.arrays.push_back({spec.field, layer, {}});
    }
    alone([&] {
      for (std::size_t i = 0; i < buffers.size(); ++i) row.arrays[i].data = buffers[i].copy();
      writer_->append_row(std::move(row));
    });
  }

  void commit() {
    alone([this] { writer_->commit(); });
  }
  void finish() {
    alone([this] { writer_->finish(); });
  }
  void suspend() {
    alone([this] { writer_->suspend(); });
  }
  std::int64_t committed() const { return writer_->committed(); }
  std::int64_t bytes_appended() const { return writer_->bytes_appended(); }
};

}  // namespace

void bind_record(nb::module_& module) {
  nb::class_<WriterHandle>(module, "TraceWriter")
      .def(nb::init<const nb::bytes&, const nb::dict&, bool, std::size_t>(), nb::arg("path"),
           nb::arg("meta"), nb::arg("force"), nb::arg("queue_bytes"))
      .def("begin_sequence", &WriterHandle::begin_sequence, nb::arg("name"), nb::arg("prompt"),
           nb::arg("gen_length"), nb::arg("regions"))
      .def("end_sequence", &WriterHandle::end_sequence, nb::arg("sequence"), nb::arg("reason"),
           nb::arg("text"))
      .def("append_row", &WriterHandle::append_row, nb::arg("scalars"), nb::arg("transfers").none(),
           nb::arg("insertions").none(), nb::arg("computed"), nb::arg("arrays"), nb::arg("valid"),
           nb::arg("by_layer"), nb::arg("timestep"))
      .def("commit", &WriterHandle::commit)
      .def("finish", &WriterHandle::finish)
      .def("suspend", &WriterHandle::suspend)
      .def("committed", &WriterHandle::committed)
      .def("bytes_appended", &WriterHandle::bytes_appended);
  module.attr("reuse_taus") = nb::cast(std::vector<double>(kReuseTaus.begin(), kReuseTaus.end()));
  module.attr("region_names") =
      nb::cast(std::vector<std::string>(kRegionNames.begin(), kRegionNames.end()));
  module.attr("distance_bins") = kDistanceBins;
  nb::class_<KeptCounter>(module, "KeptCounter")
      .def(
          "__init__", [](KeptCounter* self, double tau) { new (self) KeptCounter({tau}); },
          nb::arg("tau"))
      .def("reuses", &kinds_if_reused, nb::arg("step"), nb::arg("changed"), nb::arg("decided"),
           nb::arg("masked"), nb::arg("changed_rows"));
  module.def("parse_index_set", &parse_index_set, nb::arg("text"), nb::arg("flag"),
             nb::arg("first"), nb::arg("end"));
  module.def(
      "check_trace_target",
      [](const nb::bytes& path, bool force) {
        const std::string name = to_string(path);
        const nb::gil_scoped_release release;
        check_trace_target(name, force);
      },
      nb::arg("path"), nb::arg("force"));
}

}  // namespace blockscope::python
