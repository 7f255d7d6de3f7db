// How often each token of a vocabulary occurs in texts: counted by `blockscope frequencies`, read
// for --strategy pc_sampler. The file is JSON: format, format_version, vocab_size, tokenizer (the
// SHA-256 of its tokenizer.json), tokens, texts, and counts, a list of [id, count] by rising id
// with the ids that occur.
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

/// What token ids mean: a table is for one vocabulary only.
struct VocabularyId {
  int64_t size = 0;       // rows of the embedding table
  std::string tokenizer;  // SHA-256 of tokenizer.json
};
/// Throws CheckpointError where the folder has no tokenizer.json.
VocabularyId vocabulary_id(const std::filesystem::path& folder, int64_t vocab_size);

struct FrequencyCounts {
  VocabularyId vocabulary;
  int64_t tokens = 0;
  int64_t texts = 0;
  std::vector<int64_t> counts;  // [vocabulary.size]
};
std::string to_json(const FrequencyCounts& counts);

/// Adds one text file to the counts, without special tokens around it, in pieces of about a
/// megabyte that end behind a line; `progress` hears the bytes read so far and may throw. Throws
/// PromptError with file and byte where it is no UTF-8 or can't be read.
void count_tokens(const std::filesystem::path& text, const Tokenizer& tokenizer,
                  FrequencyCounts& counts, const std::function<void(int64_t)>& progress);

/// Throws CheckpointError for a file that is damaged, or counts for another vocabulary.
std::shared_ptr<const TokenFrequencies> read_frequencies(const std::filesystem::path& file,
                                                         const VocabularyId& wanted);

}  // namespace blockscope
