#include "analysis/pass/row_pairs.h"

#include <algorithm>
#include <map>
#include <utility>

namespace blockscope {
namespace {

/// All denoising steps of one sequence, in order, with their places.
struct Sequence {
  std::size_t trace = 0;
  std::vector<StepRef> steps;
};

using SequenceKey = std::pair<PromptHash, std::size_t>;  // prompt, and how often it occurred before

std::map<SequenceKey, Sequence> list_sequences(const TraceGroup& group) {
  std::map<SequenceKey, Sequence> result;
  std::map<PromptHash, std::size_t> seen;
  for (std::size_t t = 0; t < group.size(); ++t) {
    std::map<std::int64_t, Sequence> sequences;
    for (BlockSteps& block : list_blocks(group.trace(t))) {
      Sequence& sequence = sequences[block.sequence];
      sequence.trace = t;
      sequence.steps.insert(sequence.steps.end(), block.steps.begin(), block.steps.end());
    }
    for (auto& [index, sequence] : sequences) {
      std::sort(sequence.steps.begin(), sequence.steps.end(),
                [](const StepRef& a, const StepRef& b) { return a.row < b.row; });
      const PromptHash hash = group.trace(t).sequence(index).prompt_hash;
      result.emplace(SequenceKey{hash, seen[hash]++}, std::move(sequence));
    }
  }
  return result;
}

/// (position, token) pairs that a row decided, by position.
std::vector<std::pair<std::int64_t, std::int64_t>> decided(const TraceReader& trace,
                                                           std::int64_t row) {
  const FrameDelta delta = trace.delta(row);
  std::vector<std::pair<std::int64_t, std::int64_t>> result;
  for (const SequenceDelta& part : delta.rows) {
    for (std::size_t i = 0; i < part.transfer_index.size(); ++i) {
      const auto source = static_cast<std::size_t>(
          part.transfer_src_index.empty() ? part.transfer_index[i] : part.transfer_src_index[i]);
      result.emplace_back(part.transfer_index[i], part.decoded_tokens.at(source));
    }
  }
  std::sort(result.begin(), result.end());
  return result;
}

class SequencePair {
 public:
  SequencePair(const TraceReader& first, const TraceReader& second)
      : first_(first), second_(second) {}

  /// Throws unless the two steps saw the same input.
  void check(const StepRef& a, const StepRef& b) {
    same("block", a.block, b.block, a, b);
    same("step", a.step, b.step, a, b);
    same("block_start", a.block_start, b.block_start, a, b);
    same("N (context_length)", a.context_length, b.context_length, a, b);
    same("M (changed)", a.changed, b.changed, a, b);
    same("masks_left", a.masks_left, b.masks_left, a, b);
    if (diverged_) fail("an earlier step decided other tokens or other positions", a, b);
    diverged_ = decided(first_, a.row) != decided(second_, b.row);
  }

 private:
  void same(const char* name, std::int64_t a, std::int64_t b, const StepRef& row_a,
            const StepRef& row_b) const {
    if (a == b) return;
    fail(std::string(name) + " is " + std::to_string(a) + " in the first and " + std::to_string(b) +
             " in the second",
         row_a, row_b);
  }

  [[noreturn]] void fail(const std::string& what, const StepRef& a, const StepRef& b) const {
    throw UsageError(first_.info().path + " row " + std::to_string(a.row) + " and " +
                     second_.info().path + " row " + std::to_string(b.row) +
                     " did not see the same tokens: " + what +
                     ". HINT: capture the second with --replay of the first");
  }

  const TraceReader& first_;
  const TraceReader& second_;
  bool diverged_ = false;  // an earlier step decided something else
};

std::vector<std::vector<bool>> no_rows(const TraceGroup& group) {
  std::vector<std::vector<bool>> rows;
  for (std::size_t t = 0; t < group.size(); ++t) {
    rows.emplace_back(static_cast<std::size_t>(group.trace(t).info().num_rows), false);
  }
  return rows;
}

std::int64_t count_recorded(const std::map<SequenceKey, Sequence>& sequences) {
  std::int64_t count = 0;
  for (const auto& [key, sequence] : sequences) {
    count += std::count_if(sequence.steps.begin(), sequence.steps.end(),
                           [](const StepRef& step) { return step.recorded; });
  }
  return count;
}

}  // namespace

RowPairs pair_rows(const TraceGroup& first, const TraceGroup& second) {
  const auto sequences_a = list_sequences(first);
  const auto sequences_b = list_sequences(second);
  RowPairs result{no_rows(first), no_rows(second), 0, 0, 0};
  for (const auto& [key, a] : sequences_a) {
    const auto found = sequences_b.find(key);
    if (found == sequences_b.end()) continue;
    const Sequence& b = found->second;
    SequencePair pair(first.trace(a.trace), second.trace(b.trace));
    // If one sequence is shorter (a cut file), only the other trace has the remaining steps.
    for (std::size_t i = 0; i < std::min(a.steps.size(), b.steps.size()); ++i) {
      pair.check(a.steps[i], b.steps[i]);
      if (!a.steps[i].recorded || !b.steps[i].recorded) continue;
      result.first[a.trace][static_cast<std::size_t>(a.steps[i].row)] = true;
      result.second[b.trace][static_cast<std::size_t>(b.steps[i].row)] = true;
      ++result.pairs;
    }
  }
  result.only_first = count_recorded(sequences_a) - result.pairs;
  result.only_second = count_recorded(sequences_b) - result.pairs;
  if (result.pairs == 0) {
    throw UsageError(first.trace(0).info().path + " and " + second.trace(0).info().path +
                     ": no step of the same prompt is recorded in both. HINT: capture the second "
                     "with --replay of the first, and with the same filters");
  }
  return result;
}

}  // namespace blockscope
