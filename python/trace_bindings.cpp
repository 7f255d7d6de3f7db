// Trace: a TraceReader, and its datasets as arrays.
#include <algorithm>

#include "decode_record/base/error.h"
#include "decode_record/compare/compare_traces.h"
#include "decode_record/frames/token_changes.h"
#include "decode_record/read/trace_arrays.h"
#include "decode_record/read/trace_reader.h"
#include "python/bindings.h"

namespace blockscope::python {
namespace {

/// An open trace. It is closed when a second view of its file needs that; see close_unfinished().
/// All functions except the constructor and close() are called with the reader's lock.
class TraceHandle final : public OpenTrace {
 public:
  explicit TraceHandle(const nb::bytes& path) : asked_(to_string(path)) {
    without_gil([this] {
      close_unfinished();
      reader_.emplace(asked_);
      shown_ = reader_->info();
      all().insert(this);
    });
  }
  TraceHandle(const TraceHandle&) = delete;
  TraceHandle& operator=(const TraceHandle&) = delete;
  ~TraceHandle() { close(); }
  void close() {
    without_gil([this] {
      all().erase(this);
      drop();
      closed_ = true;
    });
  }

  /// The state when the trace was opened, or at the last refresh().
  const TraceInfo& info() const { return shown_; }

  const TraceReader& reader() {
    check_open();
    if (!reader_) {
      close_unfinished();
      reader_.emplace(asked_);
    }
    return *reader_;
  }

  /// Opened at their first use, because a trace that is only read for its texts needs none.
  const TraceArrays& arrays() {
    check_open();
    if (!arrays_ && shown_.partial) close_unfinished();
    if (!arrays_) arrays_.emplace(shown_.path);
    return *arrays_;
  }

  bool refresh() {
    check_open();
    const TraceInfo before = shown_;
    if (before.partial) {
      close_unfinished();
      reader_.emplace(asked_);
    } else if (reader_->refresh()) {
      arrays_.reset();
    }
    shown_ = reader_->info();
    return shown_.num_rows != before.num_rows || shown_.num_sequences != before.num_sequences ||
           shown_.complete != before.complete || shown_.path != before.path;
  }

  bool unfinished() const override { return shown_.partial; }
  void drop() override {
    reader_.reset();
    arrays_.reset();
  }

 private:
  void check_open() const {
    if (closed_) throw UsageError(shown_.path + ": the trace is closed");
  }
  std::string asked_;
  TraceInfo shown_;
  bool closed_ = false;
  std::optional<TraceReader> reader_;
  std::optional<TraceArrays> arrays_;
};

nb::dict info_of(TraceHandle& trace) {
  const TraceInfo info = without_gil([&] { return trace.info(); });
  const TraceMeta& meta = info.meta;
  nb::dict result;
  result["path"] = to_bytes(info.path);
  result["format_version"] = info.format_version;
  result["complete"] = info.complete;
  result["partial"] = info.partial;
  result["num_rows"] = info.num_rows;
  result["num_sequences"] = info.num_sequences;
  result["file_bytes"] = info.file_bytes;
  result["level"] = std::string(to_string(meta.level));
  result["block_length"] = meta.block_length;
  result["layers"] = meta.layers;
  result["heads"] = meta.heads;
  result["kv_heads"] = meta.kv_heads;
  result["num_layers"] = meta.num_layers;
  result["num_heads"] = meta.num_heads;
  result["num_kv_heads"] = meta.num_kv_heads;
  result["head_dim"] = meta.head_dim;
  result["layer_kv_heads"] = meta.layer_kv_heads;
  result["layer_head_dim"] = meta.layer_head_dim;
  result["layer_window"] = meta.layer_window;
  result["noise_canvas"] = meta.noise_canvas;
  result["hidden_size"] = meta.hidden_size;
  result["vocab_size"] = meta.vocab_size;
  result["mask_token_id"] = meta.mask_token_id;
  result["logit_shift"] = meta.logit_shift;
  result["bidirectional"] = meta.bidirectional;
  result["softmax_scale"] = meta.softmax_scale;
  result["set_size"] = meta.set_size;
  result["selected_size"] = meta.selected_size;
  result["model_json"] = to_bytes(meta.model_json);
  result["run_json"] = to_bytes(meta.run_json);
  return result;
}

nb::dict sequence_of(TraceHandle& trace, std::int64_t index) {
  const SequenceInfo info = without_gil([&] { return trace.reader().sequence(index); });
  nb::dict result;
  result["name"] = to_bytes(info.name);
  result["prompt_hash"] = to_hex(info.prompt_hash);
  result["prompt"] = to_bytearray(info.prompt);
  result["gen_length"] = info.gen_length;
  result["answer"] = to_bytes(info.answer);
  result["metric"] = to_bytes(info.metric);
  result["text"] = to_bytes(info.text);
  result["score"] = static_cast<double>(info.score);
  result["aborted"] = info.aborted;
  result["finish_reason"] = std::string(to_string(info.finish_reason));
  return result;
}

/// prompt, tokens, confidence, steps
nb::tuple frame_of(TraceHandle& trace, std::int64_t sequence, std::int64_t t) {
  const Frame frame = without_gil([&] { return trace.reader().frame(sequence, t); });
  return nb::make_tuple(to_bytearray(frame.prompts.front()), to_bytearray(frame.generated_tokens),
                        to_bytearray(frame.confidence), to_bytearray(frame.steps));
}

/// Elements of `values` at the indices `sources`.
template <typename Value>
std::vector<Value> gather(const std::vector<Value>& values,
                          const std::vector<std::int64_t>& sources) {
  std::vector<Value> result;
  for (const std::int64_t source : sources) {
    result.push_back(values.at(static_cast<std::size_t>(source)));
  }
  return result;
}

/// position, token, confidence and step of transfers and of insertions, positions of deletions
nb::tuple delta_tuple(const SequenceDelta& delta) {
  return nb::make_tuple(to_bytearray(delta.transfer_index),
                        to_bytearray(gather(delta.decoded_tokens, delta.transfer_src_index)),
                        to_bytearray(gather(delta.confidence, delta.transfer_src_index)),
                        to_bytearray(delta.transfer_step), to_bytearray(delta.insert_index),
                        to_bytearray(gather(delta.decoded_tokens, delta.insert_src_index)),
                        to_bytearray(gather(delta.confidence, delta.insert_src_index)),
                        to_bytearray(delta.insert_step), to_bytearray(delta.delete_index));
}

nb::list deltas_of(TraceHandle& trace, std::int64_t sequence) {
  const DecodeRecord record = without_gil([&] { return trace.reader().decode_record(sequence); });
  nb::list result;
  for (std::size_t t = 0; t < record.num_deltas(); ++t) {
    result.append(delta_tuple(record.delta(t).rows.front()));
  }
  return result;
}

/// One tuple for each denoising step: row, inserted, deleted, and of every changed position its
/// place, kind, token before and after, and confidence.
nb::list changes_of(TraceHandle& trace, std::int64_t sequence) {
  struct Step {
    std::int64_t row = 0;
    StepChanges changes;
  };
  const std::vector<Step> steps = without_gil([&] {
    const TraceReader& reader = trace.reader();
    const TraceMeta& meta = reader.info().meta;
    const DecodeRecord record = reader.decode_record(sequence);
    const Frame& first = record.initial_frame();
    std::vector<std::int64_t> tokens = tokens_to_follow(first, meta.undecided_token());
    const std::int64_t prompt = std::ssize(first.prompts.at(0));
    std::vector<Step> found;
    for (const std::int64_t row : reader.rows_of(sequence)) {
      const StepColumns columns = reader.steps(row, 1);
      if (static_cast<PassKind>(columns.kind[0]) != PassKind::denoise) continue;
      const SequenceDelta& delta = record.delta(found.size()).rows.front();
      found.push_back({row, follow_delta(tokens, 0, delta, meta.undecided_token(),
                                         columns.block_start[0] - prompt + meta.block_length)});
    }
    return found;
  });
  nb::list result;
  for (const Step& step : steps) {
    std::vector<std::int64_t> position, kind, before, after;
    std::vector<float> confidence;
    for (const TokenChange& change : step.changes.changes) {
      position.push_back(change.position);
      kind.push_back(static_cast<std::int64_t>(change.kind));
      before.push_back(change.before);
      after.push_back(change.after);
      confidence.push_back(change.confidence);
    }
    result.append(nb::make_tuple(step.row, step.changes.inserted, step.changes.deleted,
                                 to_bytearray(position), to_bytearray(kind), to_bytearray(before),
                                 to_bytearray(after), to_bytearray(confidence)));
  }
  return result;
}

/// The bytes of the tokens' vocabulary pieces, one element per token.
nb::list pieces_of(TraceHandle& trace, const std::vector<std::int64_t>& tokens) {
  const std::vector<std::string> pieces = without_gil([&] {
    std::vector<std::string> found;
    for (const std::int64_t token : tokens) found.push_back(trace.reader().piece(token));
    return found;
  });
  nb::list result;
  for (const std::string& piece : pieces) result.append(to_bytes(piece));
  return result;
}

nb::list arrays_of(TraceHandle& trace) {
  const std::vector<TraceArray> arrays = without_gil([&] { return trace.arrays().list(); });
  nb::list result;
  for (const TraceArray& array : arrays) {
    nb::dict item;
    item["path"] = array.path;
    item["type"] = array.type;
    item["stored_type"] = array.stored_type;
    item["axes"] = array.axes;
    item["shape"] = array.shape;
    item["description"] = array.description;
    result.append(item);
  }
  return result;
}

/// Keeps the memory of a Python object while this lives.
class WritableBuffer {
 public:
  explicit WritableBuffer(const nb::object& object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) != 0) {
      throw nb::python_error();
    }
  }
  WritableBuffer(const WritableBuffer&) = delete;
  WritableBuffer& operator=(const WritableBuffer&) = delete;
  ~WritableBuffer() { PyBuffer_Release(&view_); }
  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

void read_array(TraceHandle& trace, const std::string& path, const std::vector<std::int64_t>& start,
                const std::vector<std::int64_t>& count, const nb::object& out) {
  const WritableBuffer buffer(out);
  without_gil([&] { trace.arrays().read(path, start, count, buffer.bytes()); });
}

/// "equal", the aborted sequences, and the differences per dataset.
nb::dict compare_bound(const nb::bytes& a, const nb::bytes& b, double absolute, double relative,
                       bool ignore_timing, bool ignore_aborted) {
  CompareOptions options;
  options.absolute = absolute;
  options.relative = relative;
  options.ignore_timing = ignore_timing;
  options.ignore_aborted = ignore_aborted;
  const TraceDifference found = without_gil([&, first = to_string(a), second = to_string(b)] {
    return compare_traces(first, second, options);
  });
  nb::list datasets;
  for (const DatasetDifference& dataset : found.datasets) {
    nb::dict item;
    item["path"] = dataset.path;
    item["equal"] = dataset.equal();
    item["problem"] = to_bytes(dataset.problem);
    item["elements"] = dataset.elements;
    item["different"] = dataset.different;
    item["largest"] = dataset.largest;
    item["at"] = dataset.at;
    datasets.append(item);
  }
  nb::dict result;
  result["equal"] = found.equal;
  result["aborted"] = nb::make_tuple(found.aborted_a, found.aborted_b);
  result["datasets"] = datasets;
  return result;
}

}  // namespace

std::set<OpenTrace*>& OpenTrace::all() {
  static auto* traces = new std::set<OpenTrace*>;
  return *traces;
}

void close_unfinished() {
  for (OpenTrace* trace : OpenTrace::all()) {
    if (trace->unfinished()) trace->drop();
  }
}

void bind_trace(nb::module_& module) {
  nb::class_<TraceHandle>(module, "Trace")
      .def(nb::init<const nb::bytes&>(), nb::arg("path"))
      .def("close", &TraceHandle::close)
      .def("info", &info_of)
      .def("refresh",
           [](TraceHandle& trace) { return without_gil([&] { return trace.refresh(); }); })
      .def("sequence", &sequence_of, nb::arg("index"))
      .def("rows_of",
           [](TraceHandle& trace, std::int64_t sequence) {
             return to_bytearray(without_gil([&] { return trace.reader().rows_of(sequence); }));
           })
      .def("frame", &frame_of, nb::arg("sequence"), nb::arg("t"))
      .def("deltas", &deltas_of, nb::arg("sequence"))
      .def("changes", &changes_of, nb::arg("sequence"))
      .def("num_pieces",
           [](TraceHandle& trace) {
             return without_gil([&] { return trace.reader().num_pieces(); });
           })
      .def("pieces", &pieces_of, nb::arg("tokens"))
      .def("arrays", &arrays_of)
      .def("read", &read_array, nb::arg("path"), nb::arg("start"), nb::arg("count"),
           nb::arg("out"));
  module.def("compare", &compare_bound, nb::arg("a"), nb::arg("b"), nb::arg("absolute"),
             nb::arg("relative"), nb::arg("ignore_timing"), nb::arg("ignore_aborted"));
}

}  // namespace blockscope::python
