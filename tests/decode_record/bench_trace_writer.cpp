// TraceWriter against a plain sequential write of the same bytes, alternating, in one run:
//   bench_trace_writer [FOLDER] [MEBIBYTES]
// Rows are those of level `outputs` of a model with 12 layers, 16 heads, head_dim 64, block 32:
// A_out, A_in, queries in bfloat16, LSEs and summaries. Both sides end when their data is with the
// kernel (that is what survives kill -9), and again after fdatasync.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "decode_record/read/trace_reader.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Times {
  double kernel = 0.0;  // until the data is with the kernel
  double disk = 0.0;    // until fdatasync returned
};

void sync_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR);
  if (fd < 0 || ::fdatasync(fd) != 0) std::perror("fdatasync");
  ::close(fd);
}

TraceMeta bench_meta() {
  TraceMeta meta = fixture::small_meta(RecordLevel::outputs);
  meta.num_layers = 12;
  meta.num_heads = 16;
  meta.num_kv_heads = 8;
  meta.head_dim = 64;
  meta.block_length = 32;
  meta.set_size = 64;
  meta.record_everything();
  return meta;
}

Times write_raw(const std::string& path, const std::vector<ArraySlice>& arrays, std::int64_t rows) {
  const auto start = Clock::now();
  const int fd = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (const ArraySlice& slice : arrays) {
      if (::write(fd, slice.data.data, slice.data.size) != static_cast<ssize_t>(slice.data.size)) {
        std::perror("write");
        std::exit(1);
      }
    }
  }
  ::close(fd);
  Times times;
  times.kernel = seconds_since(start);
  sync_file(path);
  times.disk = seconds_since(start);
  return times;
}

Times write_trace(const std::string& path, const TraceMeta& meta,
                  const std::vector<ArraySlice>& arrays, std::int64_t rows) {
  const auto start = Clock::now();
  TraceWriterOptions options;
  options.force = true;
  TraceWriter writer(path, meta, options);
  const std::int64_t sequence = writer.begin_sequence(fixture::sequence_start(0, 64));
  for (std::int64_t i = 0; i < rows; ++i) {
    TraceRow row;
    row.sequence = sequence;
    row.pass = i;
    row.recorded = true;
    row.arrays = arrays;  // shares the buffers: the recorder's copy is not the writer's cost
    writer.append_row(std::move(row));
  }
  writer.end_sequence(sequence, {});
  writer.finish();
  Times times;
  times.kernel = seconds_since(start);
  sync_file(path);
  times.disk = seconds_since(start);
  return times;
}

/// Reads every A_out back, row by row and layer by layer, as an analysis does.
double read_back(const std::string& path, double& bytes) {
  const TraceReader reader(path);
  const auto start = Clock::now();
  bytes = 0;
  const auto layers = static_cast<std::int64_t>(reader.info().meta.layers.size());
  for (std::int64_t row = 0; row < reader.info().num_rows; ++row) {
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      bytes += 2.0 * static_cast<double>(
                         reader.read_floats_at(Field::attention_external, row, layer).size());
    }
  }
  return seconds_since(start);
}

template <typename Member>
double median(std::vector<Times> times, Member member) {
  std::ranges::sort(times, {}, member);
  return times[times.size() / 2].*member;
}

void run(const std::string& folder, double mebibytes) {
  const TraceMeta meta = bench_meta();
  TraceRow row;
  fixture::add_arrays(row, meta, 1);
  double row_size = 0;
  for (const ArraySlice& slice : row.arrays) row_size += static_cast<double>(slice.data.size);
  const auto rows = static_cast<std::int64_t>(mebibytes * 1048576.0 / row_size) + 1;
  const double total = row_size * static_cast<double>(rows) / 1e6;
  std::vector<Times> raw;
  std::vector<Times> trace;
  for (int i = 0; i < 5; ++i) {
    raw.push_back(write_raw(folder + "/bench.raw", row.arrays, rows));
    trace.push_back(write_trace(folder + "/bench.h5", meta, row.arrays, rows));
  }
  double read_bytes = 0;
  const double read_time = read_back(folder + "/bench.h5", read_bytes);
  std::printf("%lld rows of %.0f bytes, %.0f MB, median of 5\n", static_cast<long long>(rows),
              row_size, total);
  const auto print = [&](const char* name, double Times::*member) {
    const double raw_time = median(raw, member);
    const double trace_time = median(trace, member);
    std::printf("%-14s raw %7.0f MB/s   trace %7.0f MB/s   %5.1f %% of raw\n", name,
                total / raw_time, total / trace_time, 100.0 * raw_time / trace_time);
  };
  print("to the kernel", &Times::kernel);
  print("to the disk", &Times::disk);
  std::printf("reading A_out by row and layer, widened: %.0f MB/s of file\n",
              read_bytes / 1e6 / read_time);
  std::remove((folder + "/bench.raw").c_str());
  std::remove((folder + "/bench.h5").c_str());
}

}  // namespace
}  // namespace blockscope

int main(int argc, char** argv) {
  try {
    blockscope::run(argc > 1 ? argv[1] : ".", argc > 2 ? std::atof(argv[2]) : 512.0);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
