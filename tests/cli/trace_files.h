// Traces for the tests of the commands that read them, written with TraceWriter from the fixture
// whose every value follows from its row number.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "decode_record/read/trace_reader.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope::test {

struct RunShape {
  std::int64_t sequences = 2;
  std::int64_t blocks = 2;
  bool finish = true;  // else the file stays `.partial`
  RecordLevel level = RecordLevel::full;
  std::function<void(TraceRow&)> change = [](TraceRow&) {};  // applied to every denoising row
  std::string model_json = R"({"requested":"","name":"fixture"})";
};

inline void append_sequence(TraceWriter& writer, const TraceMeta& meta, const RunShape& shape,
                            std::int64_t index, std::int64_t& number) {
  writer.begin_sequence(fixture::sequence_start(index, shape.blocks));
  TraceRow prefill;
  prefill.sequence = index;
  prefill.kind = PassKind::prefill;
  prefill.pass = number++;
  fixture::add_prefix(prefill, meta, 0, 4 + index);
  writer.append_row(std::move(prefill));
  for (std::int64_t block = 0; block < shape.blocks; ++block) {
    for (std::int64_t step = 0; step < 2; ++step) {
      TraceRow row = fixture::denoise_row(meta, index, number++, block, step);
      shape.change(row);
      writer.append_row(std::move(row));
    }
    TraceRow commit;
    commit.sequence = index;
    commit.kind = PassKind::commit;
    commit.block = block;
    commit.pass = number++;
    fixture::add_prefix(commit, meta, 4 + index + block * 4, 4);
    writer.append_row(std::move(commit));
  }
}

/// Sequence after sequence; without `finish` the last one has no end, as after a kill.
inline void write_run(const std::string& path, const RunShape& shape = {}) {
  TraceMeta meta = fixture::small_meta(shape.level);
  meta.has_cache = false;  // its rows say nothing of one
  meta.model_json = shape.model_json;
  TraceWriter writer(path, meta);
  std::int64_t number = 0;
  for (std::int64_t i = 0; i < shape.sequences; ++i) {
    append_sequence(writer, meta, shape, i, number);
    if (i + 1 < shape.sequences || shape.finish) {
      writer.end_sequence(i, {FinishReason::stop, "text, \"of\" " + std::to_string(i), 0.5F});
    }
  }
  shape.finish ? writer.finish() : writer.suspend();
}

}  // namespace blockscope::test
