// Reads a checkpoint folder's tokenizer: tokenizer.json, and what `transformers` merges into it
// from tokenizer_config.json, added_tokens.json and special_tokens_map.json. Also reads the stop
// ids.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/text/tokenizer.h"
#include "probe/text/tokenizer_impl.h"

namespace blockscope {

namespace {

using std::filesystem::path;

struct JsonFile {
  nlohmann::json document;
  std::string where;

  JsonView view() const { return JsonView(document, where); }
};

/// nullopt if the file is absent.
std::optional<JsonFile> read_optional(const path& file) {
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return std::nullopt;
  JsonFile result{parse_json(read_text_file(file), file.string()), file.string()};
  result.view().expect_object();
  return result;
}

/// Reads a special token, which is a string or an object with "content".
std::optional<std::string> read_named_token(const JsonView& json, const std::string& key) {
  const auto value = json.find(key);
  if (!value) return std::nullopt;
  return value->raw().is_object() ? value->at("content").string() : value->string();
}

/// Adds the tokens that tokenizer.json does not have, in order of id. For known tokens the flags of
/// tokenizer_config.json win, because `transformers` adds all tokens again.
void merge_added_tokens(const JsonFile& config, Tokenizer::Impl& impl) {
  const auto decoder = config.view().find("added_tokens_decoder");
  if (!decoder) return;
  decoder->expect_object();
  std::map<TokenId, AddedToken> missing;
  for (const auto& [key, value] : decoder->raw().items()) {
    TokenId id = -1;
    const auto [end, code] = std::from_chars(key.data(), key.data() + key.size(), id);
    const JsonView view(value, config.where, fmt::format("added_tokens_decoder[\"{}\"]", key));
    if (code != std::errc() || end != key.data() + key.size() || id < 0 || id > kMaxTokenId) {
      view.fail(fmt::format("a key that is an id from 0 to {}", kMaxTokenId));
    }
    AddedToken token = read_added_token(view, id);
    const AddedToken* known = impl.added.find(token.content);
    if (known == nullptr) {
      missing.emplace(id, std::move(token));
    } else {
      impl.add_token(token, view.place());
    }
  }
  for (const auto& [id, token] : missing) {
    impl.add_token(token, fmt::format("{}: key added_tokens_decoder[\"{}\"]", config.where, id));
  }
}

/// Reads added_tokens.json, {"<token>": id}, the predecessor of added_tokens_decoder.
void merge_legacy_added_tokens(const JsonFile& file, Tokenizer::Impl& impl) {
  std::map<TokenId, std::string> by_id;
  for (const auto& [token, value] : file.document.items()) {
    const JsonView view(value, file.where, token);
    by_id[static_cast<TokenId>(view.integer(0, kMaxTokenId))] = token;
  }
  for (const auto& [id, content] : by_id) {
    if (impl.token_to_id(content) == id && impl.added.find(content) != nullptr) continue;
    AddedToken token;
    token.content = content;
    token.id = id;
    impl.add_token(token, fmt::format("{}: key {}", file.where, content));
  }
}

void set_named_ids(const JsonFile& file, Tokenizer::Impl& impl) {
  const std::pair<const char*, std::optional<TokenId> SpecialIds::*> names[] = {
      {"bos_token", &SpecialIds::bos},
      {"eos_token", &SpecialIds::eos},
      {"pad_token", &SpecialIds::pad},
      {"unk_token", &SpecialIds::unk},
      {"mask_token", &SpecialIds::mask}};
  for (const auto& [key, member] : names) {
    const std::optional<std::string> content = read_named_token(file.view(), key);
    if (!content || content->empty()) continue;
    std::optional<TokenId> id = impl.token_to_id(*content);
    if (!id) {
      // `transformers` would add it with the next free id, for which no embedding was trained.
      // Usually the tokenizer is damaged.
      impl.warnings.push_back(fmt::format("{}: key {}: \"{}\" is not in the vocabulary; ignored",
                                          file.where, key, *content));
      continue;
    }
    if (impl.added.find(*content) == nullptr) {
      // Named special tokens are matched in the text, as `transformers` makes them added tokens.
      AddedToken token;
      token.content = *content;
      token.id = *id;
      token.special = true;
      token.normalized = false;
      impl.add_token(token, fmt::format("{}: key {}", file.where, key));
    }
    impl.special_ids.*member = id;
  }
}

TokenId read_stop_id(const JsonView& json) {
  return static_cast<TokenId>(json.integer(0, kMaxTokenId));
}

/// The ids of the key, which is an integer, a list of integers, or absent.
std::vector<TokenId> read_eos(const JsonFile& file) {
  std::vector<TokenId> ids;
  const auto value = file.view().find("eos_token_id");
  if (!value) return ids;
  if (!value->raw().is_array()) return {read_stop_id(*value)};
  for (const JsonView& element : value->elements()) {
    const TokenId id = read_stop_id(element);
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

}  // namespace

Tokenizer Tokenizer::from_directory(const path& directory) {
  Tokenizer tokenizer = from_file(directory / "tokenizer.json");
  Impl& impl = *tokenizer.impl_;
  const auto config = read_optional(directory / "tokenizer_config.json");
  const auto legacy = read_optional(directory / "added_tokens.json");
  const auto special_map = read_optional(directory / "special_tokens_map.json");
  if (config && config->view().find("added_tokens_decoder")) {
    merge_added_tokens(*config, impl);
  } else if (legacy) {
    merge_legacy_added_tokens(*legacy, impl);
  }
  // tokenizer_config.json is read last, so it wins.
  if (special_map) set_named_ids(*special_map, impl);
  if (config) set_named_ids(*config, impl);
  impl.finish_added_tokens();
  return tokenizer;
}

void refuse_without_tokenizer(const path& directory, const std::string& other) {
  std::error_code error;
  const bool sentencepiece = std::filesystem::exists(directory / "tokenizer.model", error);
  throw CheckpointError(fmt::format(
      "{}: expected tokenizer.json to read text prompts, got {}. HINT: {}{}", directory.string(),
      sentencepiece ? "tokenizer.model only" : "none",
      sentencepiece ? "write it with Python's transformers: AutoTokenizer.from_pretrained(FOLDER)"
                      ".save_pretrained(FOLDER); or "
                    : "",
      other));
}

std::vector<TokenId> read_stop_ids(const path& directory, const Tokenizer& tokenizer) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const auto file = read_optional(directory / name);
    if (!file) continue;
    std::vector<TokenId> ids = read_eos(*file);
    if (!ids.empty()) return ids;
  }
  if (const auto eos = tokenizer.special_ids().eos) return {*eos};
  return {};
}

}  // namespace blockscope
