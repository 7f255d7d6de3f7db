// How often each token of a vocabulary occurs in texts. `blockscope frequencies` counts the tokens;
// --strategy pc_sampler reads the table. The file is JSON: format, format_version, vocab_size,
// tokenizer (the SHA-256 of its tokenizer.json), tokens, texts, and counts. `counts` is a list of
// [id, count] with the ids that occur, in rising order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "probe/strategies/pc_sampler.h"
#include "probe/text/tokenizer.h"

namespace blockscope {

/// Identifies a vocabulary. A table fits one vocabulary only.
struct VocabularyId {
  int64_t size = 0;       // rows of the embedding table
  std::string tokenizer;  // SHA-256 of tokenizer.json
};
/// Throws CheckpointError if the folder has no tokenizer.json.
VocabularyId vocabulary_id(const std::filesystem::path& folder, int64_t vocab_size);

struct FrequencyCounts {
  VocabularyId vocabulary;
  int64_t tokens = 0;
  int64_t texts = 0;
  std::vector<int64_t> counts;  // [vocabulary.size]
};
std::string to_json(const FrequencyCounts& counts);

/// Adds one text file to the counts, without special tokens around it. It reads pieces of about a
/// megabyte, which end at the end of a line. `progress` gets the bytes read so far and may throw.
/// Throws a PromptError with file and byte if the text is not UTF-8 or can't be read.
void count_tokens(const std::filesystem::path& text, const Tokenizer& tokenizer,
                  FrequencyCounts& counts, const std::function<void(int64_t)>& progress);

/// Throws CheckpointError for a damaged file, and for counts of another vocabulary.
std::shared_ptr<const TokenFrequencies> read_frequencies(const std::filesystem::path& file,
                                                         const VocabularyId& wanted);

}  // namespace blockscope
