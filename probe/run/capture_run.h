// Decodes all prompts batch by batch while a recorder writes the trace.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "decode_record/write/trace_writer.h"
#include "probe/draft/draft_decoder.h"
#include "probe/draft/draft_model.h"
#include "probe/record/recorder.h"
#include "probe/run/run_flags.h"
#include "probe/run/run_prompts.h"

namespace blockscope {

struct CaptureRun {
  const LoadedModel& model;
  const DecodeOptions& decode;
  const Tokenizer* tokenizer;
  AttentionPolicy& policy;
  int64_t batch_size = 1;
  bool quiet = false;
  const DraftModel* draft = nullptr;              // if set, `model` is its target
  RecordedModel recorded = RecordedModel::draft;  // which of the two is recorded
};

/// A finished sequence with its score (NaN: not scored).
struct CaptureOutcome {
  const RunPrompt& prompt;
  const DecodeOutcome& outcome;
  std::string text;
  double score;
};

struct CaptureTotals {
  int64_t sequences = 0;
  int64_t scored = 0;
  double score_sum = 0.0;
  int64_t tokens = 0;  // transferred
  int64_t denoising_rows = 0;
  int64_t passes = 0;
  double seconds = 0.0;
  bool interrupted = false;
};

/// `finished`: prompts that a resumed trace already holds. They are decoded again only in a batch
/// that was cut off, because that batch must be the same as in an uninterrupted run; they are not
/// recorded again. Asks the caller's InterruptGuard after every pass.
CaptureTotals run_capture(const CaptureRun& run, const RecorderOptions& recorder_options,
                          const std::vector<RunPrompt>& prompts, const ResumeState& finished,
                          TraceWriter& writer,
                          const std::function<void(const CaptureOutcome&)>& on_outcome);

}  // namespace blockscope
