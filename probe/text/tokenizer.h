// Tokenizer read from a Hugging Face `tokenizer.json`: byte-level BPE (Qwen2, GPT-2, Llama 3), and
// the BPE and Unigram models that were converted from SentencePiece (Gemma, Llama 2, T5). It gives
// the same ids and the same text as the PyPI `tokenizers` package. A component outside the
// supported list is refused by name, never approximated.
// Supported: models BPE and Unigram; normalizers NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend,
// Replace, Sequence; pre-tokenizers Split, ByteLevel, Digits, Metaspace, Sequence; post-processors
// ByteLevel, TemplateProcessing, Sequence; decoders ByteLevel, ByteFallback, Fuse, Metaspace,
// Replace, Strip, Sequence.
// The file's `truncation` and `padding` are ignored, because `transformers` resets both at each
// call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace blockscope {

/// Row of the embedding table; never negative in a valid sequence.
using TokenId = std::int32_t;

/// A token matched in the text before BPE runs, e.g. `<|im_end|>`.
struct AddedToken {
  std::string content;
  TokenId id = 0;
  bool special = false;      // dropped by decode(skip_special_tokens = true)
  bool normalized = true;    // matched in the normalised text instead of the raw one
  bool lstrip = false;       // includes the white space on its left
  bool rstrip = false;       // includes the white space on its right
  bool single_word = false;  // matches only between non-word characters
};

/// The ids of special tokens in tokenizer_config.json and special_tokens_map.json (each may be
/// absent). The mask id that a run uses may differ: it is resolved with the family table.
struct SpecialIds {
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TokenId> pad;
  std::optional<TokenId> unk;
  std::optional<TokenId> mask;
};

class Tokenizer {
 public:
  /// Parses the text of a tokenizer.json; `where` names the source in errors.
  /// Throws CheckpointError: file, key, expected, got.
  static Tokenizer from_json(std::string_view json_text, const std::string& where);

  /// Reads one tokenizer.json.
  static Tokenizer from_file(const std::filesystem::path& file);

  /// Reads a checkpoint folder: tokenizer.json, then what `transformers` merges into it:
  /// `added_tokens_decoder` of tokenizer_config.json, else added_tokens.json; named special tokens
  /// (bos, eos, ...) of tokenizer_config.json and special_tokens_map.json.
  static Tokenizer from_directory(const std::filesystem::path& directory);

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Text (UTF-8) to ids; `add_special_tokens` applies the post-processor's template (BOS, EOS).
  /// Time is near-linear in the length of the text. In addition to the ids, it needs memory for the
  /// longest word. Safe to call from several threads. Throws PromptError if the text is not UTF-8,
  /// a pattern needs too much backtracking, or as soon as there are more than `most` ids.
  std::vector<TokenId> encode(std::string_view text, bool add_special_tokens = true,
                              std::size_t most = std::numeric_limits<std::size_t>::max()) const;

  /// Ids to text, always valid UTF-8. As in the package, malformed bytes become U+FFFD, and ids
  /// without a token (rows that pad the embedding table) give no text.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens = false) const;

  /// The raw bytes that one id adds to a text; they need not be valid UTF-8. Empty for an id
  /// without a token. decode() is their concatenation, made valid UTF-8, and without what the
  /// decoder drops at the text's beginning (a space of Llama 2).
  std::string token_bytes(TokenId id) const;

  /// The token as the file spells it (byte-level characters such as "Ġthe"); nullopt if none.
  std::optional<std::string> id_to_token(TokenId id) const;
  std::optional<TokenId> token_to_id(std::string_view token) const;
  bool is_special(TokenId id) const;

  /// Largest id + 1, added tokens included (ids in between may have no token).
  std::size_t vocab_size() const;

  /// All added tokens in order of id.
  const std::vector<AddedToken>& added_tokens() const;

  /// Filled by from_directory only.
  const SpecialIds& special_ids() const;

  /// Settings of the file that are ignored or look wrong, one sentence each. The caller should
  /// print them once.
  const std::vector<std::string>& warnings() const;

  struct Impl;  // opaque; tokenizer_impl.h

 private:
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Throws CheckpointError for a folder without tokenizer.json. The hint says how to get one from
/// SentencePiece's tokenizer.model if there is one, and `other`, e.g. "pass --input-ids".
[[noreturn]] void refuse_without_tokenizer(const std::filesystem::path& directory,
                                           const std::string& other);

/// The stop ids of a checkpoint folder: `eos_token_id` (integer or list) of generation_config.json,
/// else of config.json, else the tokenizer's eos token. Empty if none names one. Throws
/// CheckpointError for an id that isn't a non-negative integer, in any source.
std::vector<TokenId> read_stop_ids(const std::filesystem::path& directory,
                                   const Tokenizer& tokenizer);

}  // namespace blockscope
