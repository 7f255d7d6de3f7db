// The description of a run in its trace, /run/json. `capture --resume` compares it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "probe/decode/decoder.h"
#include "probe/policies/policy_table.h"
#include "probe/record/recorder_options.h"
#include "probe/run/ranks.h"
#include "probe/run/run_flags.h"
#include "probe/run/run_prompts.h"

namespace blockscope {

struct RunDescription {
  const DecodeOptions& decode;
  const DecodingFlags& decoding;
  const ChosenPolicy& policy;
  const RecorderOptions& recorder;
  const std::vector<RunPrompt>& prompts;
  const Ranks& ranks;
  std::string replay;  // its file; empty: none
  std::string command_line;
};

/// A JSON object with everything that decides which positions of a block take which tokens.
std::string decoding_json(const DecodeOptions& decode);

/// A JSON text with facts about the build and this start, and every setting. Bytes that are not
/// UTF-8 (in a file name) are replaced.
std::string run_json(const RunDescription& run);
/// Whether a key of run_json() is a setting. Settings decide what is written, so a resumed run must
/// have the same ones. All keys are settings except those that run_description.cpp lists.
bool is_setting(std::string_view key);

/// The text of each token id, for readers without the tokenizer; empty without one.
std::vector<std::string> vocabulary_pieces(const Tokenizer* tokenizer, int64_t vocab_size);

}  // namespace blockscope
