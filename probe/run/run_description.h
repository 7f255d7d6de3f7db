// What a trace says about the run that made it: /run/json, which `capture --resume` compares.
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

/// JSON object: everything that decides which positions of a block take a token, and which one.
std::string decoding_json(const DecodeOptions& decode);

/// JSON text: facts of the build and of this start, and every setting. Bytes that are no UTF-8 (of
/// a file name) are replaced.
std::string run_json(const RunDescription& run);
/// Whether a key of run_json() is a setting: it decides what is written, so that a resumed run must
/// have it too. All keys are but those that run_description.cpp lists.
bool is_setting(std::string_view key);

/// The text of each token id, for readers without the tokenizer; empty without one.
std::vector<std::string> vocabulary_pieces(const Tokenizer* tokenizer, int64_t vocab_size);

}  // namespace blockscope
