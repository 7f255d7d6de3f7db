// Any bytes as a trajectory of another tool: an error of ours, or a trajectory that keeps its
// promises.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "decode_record/error.h"
#include "decode_record/import_frames.h"
#include "decode_record/import_klass.h"

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
  return 0;
}
