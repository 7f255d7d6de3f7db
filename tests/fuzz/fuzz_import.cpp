// Any bytes as a trajectory of another tool: an error of ours, or a trajectory whose values are
// valid.
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/interchange/import_frames.h"
#include "decode_record/interchange/import_klass.h"
#include "decode_record/interchange/import_rounds.h"

namespace {

using namespace blockscope;

/// Every step applies to the frame before it, and decides nothing outside the vocabulary.
void check(const ImportedTrajectory& trajectory) {
  for (const ImportedSequence& sequence : trajectory.sequences) {
    Frame frame = make_initial_frame(sequence.start.prompt,
                                     static_cast<std::size_t>(sequence.start.gen_length),
                                     trajectory.mask_token_id);
    FrameDelta delta;
    delta.rows.front() = sequence.before;
    apply_delta(frame, delta);
    for (const ImportedStep& step : sequence.steps) {
      for (const BestToken& best : step.best) {
        const auto at = static_cast<std::size_t>(best.position);
        if (frame.generated_tokens.at(at) != trajectory.mask_token_id) std::abort();
      }
      delta.rows.front() = step.delta;
      apply_delta(frame, delta);
      for (const std::int64_t token : frame.generated_tokens) {
        const bool known = token >= 0 && token < trajectory.vocab_size;
        if (!known && token != trajectory.mask_token_id) std::abort();
      }
    }
  }
}

/// Every round begins where the one before it ended, with the token that came there, and the target
/// decided on what was accepted.
void check(const ImportedRounds& run) {
  const auto require = [](bool holds) {
    if (!holds) std::abort();
  };
  const auto known = [&](std::int64_t token) { return token >= 0 && token < run.vocab_size; };
  for (const DraftedSequence& sequence : run.sequences) {
    auto position = static_cast<std::int64_t>(sequence.start.prompt.size());
    const std::int64_t end = position + sequence.start.gen_length;
    std::int64_t token = sequence.first_token;
    for (const RoundRecord& round : sequence.rounds) {
      require(round.position == position && position < end && known(token));
      require(round.token == token && std::ssize(round.drafted) < run.block_length);
      require(round.accepted >= 0 && round.accepted <= std::ssize(round.drafted));
      require(round.target.size() == round.drafted.size());
      const RoundCandidates& from = round.candidates;
      const std::int64_t each = std::ssize(round.drafted) * run.draft_candidates;
      require(from.tokens.empty() || std::ssize(from.tokens) == each);
      require(from.scores.empty() || std::ssize(from.scores) == each);
      for (std::size_t i = 0; i < round.drafted.size(); ++i) {
        const bool accepted = std::cmp_less(i, round.accepted);
        require(known(round.drafted[i]) || (!accepted && round.drafted[i] == kUnknown));
        require(!accepted || round.target[i] == round.drafted[i]);
        if (from.tokens.empty() || round.drafted[i] == kUnknown) continue;
        const auto first = i * static_cast<std::size_t>(run.draft_candidates);
        require(from.tokens.at(first) == kUnknown ||
                from.find(i, round.drafted[i], run.draft_candidates) != kUnknown);
      }
      position = round.after();
      token = round.next;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  ImportFacts facts;
  facts.vocab_size = 50;
  facts.mask_token_id = 49;
  for (const auto parse : {parse_klass, parse_frames}) {
    try {
      check(parse(input, "fuzz", facts));
    } catch (const TrajectoryError&) {
    } catch (const UsageError&) {
    }
  }
  try {
    facts.block_length = 4;
    check(parse_rounds(input, "fuzz", facts));
  } catch (const TrajectoryError&) {
  } catch (const UsageError&) {
  }
  return 0;
}
