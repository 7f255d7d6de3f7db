// The program of the tests that need a writer of their own:
//   trace_tool fixture PATH TYPE   writes a finished trace of level full (TYPE bf16 or f32)
//   trace_tool endless PATH        writes until it is killed, resuming PATH.partial if it is there;
//                                  prints "<committed rows>\n" whenever more rows are committed
//   trace_tool steered PATH        writes and commits one row per line it reads; finishes the trace
//                                  when there are no more
//   trace_tool resume PATH         resumes what `endless` left and suspends it; prints its rows
//   trace_tool fill PATH BYTES     writes until the file may not grow beyond BYTES; exit code 3
// Every value follows from its row number (trace_fixture.h).
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <iostream>

#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

constexpr std::int64_t kBlocks = 50;  // of a sequence: 100 rows

void write_fixture(const std::string& path, ArrayType type) {
  const TraceMeta meta = fixture::small_meta(RecordLevel::full, type);
  TraceWriter writer(path, meta);
  std::int64_t number = 0;
  for (std::int64_t s = 0; s < 2; ++s) {
    writer.begin_sequence(fixture::sequence_start(s, kBlocks));
    TraceRow prefill;
    prefill.sequence = s;
    prefill.kind = PassKind::prefill;
    prefill.pass = number++;
    fixture::add_prefix(prefill, meta, 0, 4 + s);
    writer.append_row(std::move(prefill));
  }
  for (std::int64_t step = 0; step < 2 * kBlocks; ++step) {
    for (std::int64_t s = 0; s < 2; ++s) {
      TraceRow row = fixture::denoise_row(meta, s, number, step / 2, step % 2);
      // The last row takes back what its block's first step, two rows before, decided first.
      if (step == 2 * kBlocks - 1) row.revoked = {{4 * (kBlocks - 1), (number - 2) % 90, 0.25F}};
      writer.append_row(std::move(row));
      ++number;
    }
  }
  for (std::int64_t s = 0; s < 2; ++s) {
    writer.end_sequence(s, {FinishReason::length, "text " + std::to_string(s), 1.0F});
  }
  writer.finish();
}

TraceWriter open_writer(const std::string& path, const TraceMeta& meta, ResumeState& state) {
  if (std::filesystem::exists(path + ".partial")) return TraceWriter::resume(path, meta, state);
  return TraceWriter(path, meta);
}

/// Appends rows for ever; `report` is called after each.
template <typename Report>
void write_endless(const std::string& path, Report report) {
  const TraceMeta meta = fixture::small_meta(RecordLevel::outputs);
  ResumeState state;
  TraceWriter writer = open_writer(path, meta, state);
  std::int64_t number = state.num_rows;
  for (std::int64_t s = state.num_sequences;; ++s) {
    writer.begin_sequence(fixture::sequence_start(s % 50, kBlocks));
    for (std::int64_t step = 0; step < 2 * kBlocks; ++step) {
      writer.append_row(fixture::denoise_row(meta, s, number++, step / 2, step % 2));
      report(writer);
    }
    writer.end_sequence(s, {FinishReason::length, "text " + std::to_string(s), 1.0F});
  }
}

int endless(const std::string& path) {
  std::int64_t told = -1;
  write_endless(path, [&told](const TraceWriter& writer) {
    if (writer.committed() == told) return;
    told = writer.committed();
    std::cout << told << std::endl;
  });
  return 0;
}

int steered(const std::string& path) {
  TraceMeta meta = fixture::small_meta(RecordLevel::outputs);
  // The fixture's sets name keys twice: a viewer that gets to read them calls the trace damaged.
  meta.set_size = 0;
  TraceWriter writer(path, meta);
  writer.begin_sequence(fixture::sequence_start(0, kBlocks));
  writer.commit();
  std::int64_t number = 0;
  for (std::string line; number < 2 * kBlocks && std::getline(std::cin, line); ++number) {
    writer.append_row(fixture::denoise_row(meta, 0, number, number / 2, number % 2));
    writer.commit();
  }
  writer.end_sequence(0, {FinishReason::length, "text", 1.0F});
  writer.finish();
  return 0;
}

int resume(const std::string& path) {
  ResumeState state;
  TraceWriter writer = TraceWriter::resume(path, fixture::small_meta(RecordLevel::outputs), state);
  writer.suspend();
  std::cout << state.num_rows << std::endl;
  return 0;
}

int fill(const std::string& path, std::uint64_t bytes) {
  std::signal(SIGXFSZ, SIG_IGN);  // then a write beyond the limit fails as on a full disk
  const rlimit limit{bytes, bytes};
  if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
  std::int64_t committed = 0;
  try {
    write_endless(path, [&](const TraceWriter& writer) { committed = writer.committed(); });
  } catch (const TraceError& error) {
    std::cout << committed << "\n" << error.what() << std::endl;
    return 3;
  }
  return 1;
}

int run(int count, char** arguments) {
  const std::vector<std::string> words(arguments, arguments + count);
  if (count == 4 && words[1] == "fixture") {
    write_fixture(words[2], words[3] == "f32" ? ArrayType::f32 : ArrayType::bf16);
    return 0;
  }
  if (count == 3 && words[1] == "endless") return endless(words[2]);
  if (count == 3 && words[1] == "resume") return resume(words[2]);
  if (count == 3 && words[1] == "steered") return steered(words[2]);
  if (count == 4 && words[1] == "fill") return fill(words[2], std::stoull(words[3]));
  std::cerr << "trace_tool: expected fixture, endless, resume, steered or fill\n";
  return 2;
}

}  // namespace
}  // namespace blockscope

int main(int argc, char** argv) {
  try {
    return blockscope::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
