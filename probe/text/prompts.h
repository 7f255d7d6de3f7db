// Prompt files: JSON Lines, one prompt per line, and the stable hash that names a prompt in traces,
// in random streams and on resume.
//   {"prompt": "text"} or {"text": ...}      text as it is
//   {"messages": [{"role", "content"}, ...]} rendered with the checkpoint's chat template
//   {"input_ids": [1, 2, 3]}                 token ids
// Exactly one of them per line; optional: "id" or "doc_id" (string or integer), "answer" (string or
// list of strings), "metric" (see metrics.h), "gen_length" (positive integer), "task" (string or
// integer: prompts of one task are counted together). Other keys are kept out of the way with one
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

/// Longest line accepted (64 MiB): a prompt file that is one endless line is an error, not a crash.
inline constexpr std::size_t kMaxPromptLineBytes = std::size_t{64} << 20;

/// Reads JSON Lines; a byte-order mark, CRLF and blank lines are fine. `where` names the source.
/// Throws PromptError with the line number for malformed JSON, a missing or doubled input, a wrong
/// type, an unknown metric, a repeated id; and for a file without prompts.
PromptSet read_prompts(std::istream& stream, const std::string& where);
PromptSet read_prompts(const std::filesystem::path& file);

/// Token ids of a prompt. Text is encoded with special tokens (BOS where the tokenizer has one),
/// rendered messages without (the template writes its own). `chat` may be null: messages are then a
/// PromptError. Ids must lie in [0, vocab_size), the rows of the embedding table; an empty result
/// is a PromptError. So are more than `most` tokens of a long text, which are not all counted; of a
/// text below kCountedTextBytes they are, for a message that can say how many.
std::vector<TokenId> tokenize_prompt(const Prompt& prompt, const Tokenizer& tokenizer,
                                     const ChatTemplate* chat, const ChatOptions& options,
                                     std::int64_t vocab_size,
                                     std::size_t most = std::numeric_limits<std::size_t>::max());
inline constexpr std::size_t kCountedTextBytes = std::size_t{1} << 20;

/// Stable 64-bit hash of a token sequence: FNV-1a (offset 0xcbf29ce484222325, prime 0x100000001b3)
/// over the ids as 4 little-endian bytes each. Part of the trace format: never change it.
std::uint64_t prompt_hash(std::span<const TokenId> ids);

/// The same hash over raw bytes; prompt_hash is this over the ids' bytes.
std::uint64_t fnv1a_64(std::string_view bytes);

}  // namespace blockscope
