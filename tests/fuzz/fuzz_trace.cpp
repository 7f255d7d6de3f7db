// Attacks the trace reader: a small valid trace, changed as the input says, is opened and read
// through. Only TraceError and FrameError may come out. The input is a list of edits of five bytes
// each (offset in the file, little-endian 32 bits modulo its size; new byte); an odd last byte cuts
// the file to that many 256ths.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "decode_record/base/error.h"
#include "decode_record/read/trace_reader.h"
#include "decode_record/write/trace_writer.h"

namespace {

using namespace blockscope;

std::string temporary(const char* name) {
  return (std::filesystem::temp_directory_path() /
          ("blockscope-fuzz-" + std::to_string(getpid()) + name))
      .string();
}

std::vector<char> valid_trace() {
  const std::string path = temporary("-base.h5");
  TraceMeta meta;
  meta.num_layers = 2;
  meta.num_heads = 2;
  meta.num_kv_heads = 1;
  meta.head_dim = 4;
  meta.hidden_size = 8;
  meta.vocab_size = 16;
  meta.mask_token_id = 15;
  meta.block_length = 2;
  meta.softmax_scale = 0.5;
  meta.level = RecordLevel::outputs;
  meta.set_size = 2;
  meta.record_everything();
  TraceWriterOptions options;
  options.force = true;
  TraceWriter writer(path, meta, options);
  const std::int64_t sequence = writer.begin_sequence({"a", {1, 2}, 2, "x", "f1"});
  for (std::int64_t step = 1; step <= 2; ++step) {
    TraceRow row;
    row.sequence = sequence;
    row.pass = step;
    row.block = 1;
    row.block_start = 2;
    row.step = step;
    row.context_length = 2;
    row.recorded = true;
    row.delta = make_transfer({step - 1}, {step}, {0.5F});
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      row.arrays.push_back({Field::attention_external, layer,
                            make_buffer(std::vector<std::uint16_t>(2 * 2 * 4, 0x3F80))});
    }
    writer.append_row(std::move(row));
  }
  writer.end_sequence(sequence, {});
  writer.finish();
  std::ifstream stream(path, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
  std::filesystem::remove(path);
  return bytes;
}

void read_everything(const std::string& path) {
  const TraceReader reader(path);
  const TraceInfo& info = reader.info();
  reader.steps(0, info.num_rows);
  for (std::int64_t s = 0; s < info.num_sequences; ++s) {
    reader.sequence(s);
    reader.rows_of(s);
    reader.decode_record(s);
  }
  for (std::int64_t row = 0; row < info.num_rows; ++row) {
    reader.delta(row);
    reader.frame_before(row);
    for (std::int64_t layer = 0; layer < static_cast<std::int64_t>(info.meta.layers.size());
         ++layer) {
      if (reader.has(Field::attention_external)) {
        reader.read_floats_at(Field::attention_external, row, layer);
      }
    }
  }
}

}  // namespace

// HDF5 itself leaks when it gives up on a damaged file; that is not ours to find.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }  // NOLINT

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<char> base = valid_trace();
  static const std::string path = temporary(".h5");
  std::vector<char> bytes = base;
  for (std::size_t at = 0; at + 5 <= size; at += 5) {
    const std::size_t offset = static_cast<std::size_t>(data[at]) |
                               static_cast<std::size_t>(data[at + 1]) << 8U |
                               static_cast<std::size_t>(data[at + 2]) << 16U |
                               static_cast<std::size_t>(data[at + 3]) << 24U;
    bytes[offset % bytes.size()] = static_cast<char>(data[at + 4]);
  }
  if (size % 5 == 1) bytes.resize(bytes.size() * data[size - 1] / 256);
  {
    std::ofstream stream(path, std::ios::binary | std::ios::trunc);
    stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  try {
    read_everything(path);
  } catch (const TraceError&) {  // what a damaged file must give
  } catch (const FrameError&) {
  }
  std::filesystem::remove(path);
  return 0;
}
