// Prompt files: JSON Lines, one prompt per line, and the stable hash that names a prompt in traces,
// in random streams and on resume.
//   {"prompt": "text"} or {"text": ...}      text as it is
//   {"messages": [{"role", "content"}, ...]} rendered with the checkpoint's chat template
//   {"input_ids": [1, 2, 3]}                 token ids
// A line has exactly one of them. Optional keys: "id" or "doc_id" (string or integer), "answer"
// (string or list of strings), "metric" (see metrics.h), "gen_length" (positive integer), "task"
// (string or integer; prompts of one task are counted together). Other keys are ignored, with one
// warning per key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <istream>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "probe/text/chat_template.h"
#include "probe/text/metrics.h"
#include "probe/text/tokenizer.h"

namespace blockscope {

using PromptInput = std::variant<std::string, std::vector<ChatMessage>, std::vector<TokenId>>;

struct Prompt {
  std::string id;  // as given, or "line-<n>" / "prompt-<n>"; unique within a set
  PromptInput input;
  std::string task;                        // as given; empty: none
  std::vector<std::string> answers;        // empty: not scored
  std::optional<Metric> metric;            // nullopt: the run's default
  std::optional<std::int64_t> gen_length;  // nullopt: the run's default; else > 0
  std::size_t line = 0;                    // 1-based line of the file; 0 if it came from a flag
};

struct PromptSet {
  std::vector<Prompt> prompts;
  std::vector<std::string> warnings;  // one sentence each, for the caller to print
};

/// The longest accepted line (64 MiB). A prompt file that is one endless line gives an error, not a
/// crash.
inline constexpr std::size_t kMaxPromptLineBytes = std::size_t{64} << 20;

/// Reads JSON Lines. A byte-order mark, CRLF and blank lines are allowed. `where` names the source.
/// Throws a PromptError with the line number for malformed JSON, no input or several, a wrong type,
/// an unknown metric, or a repeated id. Throws PromptError for a file without prompts.
PromptSet read_prompts(std::istream& stream, const std::string& where);
PromptSet read_prompts(const std::filesystem::path& file);

/// The token ids of a prompt. Text is encoded with special tokens (BOS if the tokenizer has one),
/// rendered messages without, because the template writes its own. `chat` may be null; messages
/// then throw PromptError. Throws PromptError for an empty result, for ids outside [0, vocab_size)
/// (the rows of the embedding table), and for a text of more than `most` tokens. A text below
/// kCountedTextBytes is encoded completely, so a later message can say how many tokens it has.
std::vector<TokenId> tokenize_prompt(const Prompt& prompt, const Tokenizer& tokenizer,
                                     const ChatTemplate* chat, const ChatOptions& options,
                                     std::int64_t vocab_size,
                                     std::size_t most = std::numeric_limits<std::size_t>::max());
inline constexpr std::size_t kCountedTextBytes = std::size_t{1} << 20;

/// A stable 64-bit hash of a token sequence: FNV-1a (offset 0xcbf29ce484222325, prime
/// 0x100000001b3) over the ids as 4 little-endian bytes each. It is part of the trace format: never
/// change it.
std::uint64_t prompt_hash(std::span<const TokenId> ids);

/// The same hash over raw bytes.
std::uint64_t fnv1a_64(std::string_view bytes);

}  // namespace blockscope
