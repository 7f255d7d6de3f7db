#include "decode_record/compare/given_once.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/base/sha256.h"
#include "decode_record/read/raw_trace.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {
namespace {

constexpr std::int64_t kRowsAtATime = 65536;

struct Rows {
  std::vector<std::int64_t> sequence;
  std::vector<std::int64_t> pass_time_ns;
};

struct OfReader {
  const TraceReader& trace;
  const std::string& path() const { return trace.info().path; }
  std::int64_t num_rows() const { return trace.info().num_rows; }
  Rows rows(std::int64_t first, std::int64_t count) const {
    const StepColumns steps = trace.steps(first, count);
    return {{steps.sequence.begin(), steps.sequence.end()},
            {steps.pass_time_ns.begin(), steps.pass_time_ns.end()}};
  }
  std::string hash(std::int64_t sequence) const {
    const PromptHash hash = trace.sequence(sequence).prompt_hash;
    return {hash.begin(), hash.end()};
  }
  std::string name(std::int64_t sequence) const { return trace.sequence(sequence).name; }
};

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct OfRawTrace {
  const RawTrace& trace;
  const std::string& path() const { return trace.path(); }
  std::int64_t num_rows() const { return trace.length(Axis::row); }
  Rows rows(std::int64_t first, std::int64_t count) const {
    return {trace.read_integers(Field::step_sequence, first, count),
            trace.read_integers(Field::step_pass_time_ns, first, count)};
  }
  std::string hash(std::int64_t sequence) const {
    return text_of(trace.read(Field::sequence_prompt_hash, sequence, 1));
  }
  std::string name(std::int64_t sequence) const {
    const auto number = [&](Field field) { return trace.read_integers(field, sequence, 1).at(0); };
    const std::int64_t length = number(Field::sequence_name_length);
    if (length == 0) return "";
    return text_of(trace.read(Field::sequence_bytes, number(Field::sequence_name_start), length));
  }
};

void update(Sha256& digest, const void* data, std::size_t size) {
  digest.update({static_cast<const std::uint8_t*>(data), size});
}

}  // namespace

template <typename Source>
void GivenOnce::add_source(const Source& source) {
  const std::string& path = source.path();
  for (const std::string& other : paths_) {
    std::error_code ignored;
    if (!std::filesystem::equivalent(other, path, ignored)) continue;
    throw UsageError(
        fmt::format("{}: is the same file as {}: everything in it would count twice. "
                    "HINT: give every trace once",
                    path, other));
  }
  paths_.push_back(path);
  std::map<std::int64_t, Sha256> digests;  // by sequence
  const std::int64_t count = source.num_rows();
  for (std::int64_t first = 0; first < count; first += kRowsAtATime) {
    const Rows rows = source.rows(first, std::min(kRowsAtATime, count - first));
    for (std::size_t i = 0; i < rows.sequence.size(); ++i) {
      const std::int64_t time = rows.pass_time_ns[i];
      if (time > 0) update(digests[rows.sequence[i]], &time, sizeof(time));
    }
  }
  for (auto& [sequence, digest] : digests) {
    const std::string hash = source.hash(sequence);
    update(digest, hash.data(), hash.size());
    const auto [entry, is_new] = seen_.emplace(digest.finish(), paths_.size() - 1);
    if (is_new || entry->second == paths_.size() - 1) continue;
    throw UsageError(fmt::format(
        "{}: its sequence {} '{}' is also in {}: it would count twice. HINT: give a run once, not "
        "also a copy of it or the merged trace that it is part of",
        path, sequence, source.name(sequence), paths_[entry->second]));
  }
}

void GivenOnce::add(const TraceReader& trace) { add_source(OfReader{trace}); }
void GivenOnce::add(const RawTrace& trace) { add_source(OfRawTrace{trace}); }

}  // namespace blockscope
