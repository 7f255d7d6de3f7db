// See bpe_model.h.
#include "probe/text/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/text/unicode.h"

namespace blockscope {

namespace {

constexpr std::size_t kMaxCachedWordBytes = 256;  // longer words hardly repeat
constexpr std::size_t kMaxCachedWords = 65536;

std::uint64_t pair_key(TokenId left, TokenId right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
         static_cast<std::uint32_t>(right);
}

/// Refuses an option that would change the ids. No byte-level tokenizer uses it.
void refuse_affix(const JsonView& json, const std::string& key) {
  const std::optional<JsonView> value = json.find(key);
  if (value && !value->string().empty()) value->fail("null or an empty string");
}

}  // namespace

void refuse_more_tokens(std::size_t most) {
  throw PromptError(
      fmt::format("text: expected at most {} tokens, as many as the model has positions, got more. "
                  "HINT: shorten the text",
                  most));
}

BpeModel BpeModel::from_json(const JsonView& json) {
  json.expect_object();
  // Old files have no type; the package then tries BPE first, and so do we.
  if (const auto type = json.find("type"); type && type->string() != "BPE") {
    type->fail("\"BPE\"",
               "only byte-level BPE tokenizers are supported; give prompts as input_ids");
  }
  if (const auto dropout = json.find("dropout"); dropout && dropout->raw() != 0.0) {
    dropout->fail("null", "with dropout the same text gives other ids at each call");
  }
  if (json.boolean_or("byte_fallback", false)) {
    json.at("byte_fallback")
        .fail("false", "this is a SentencePiece model; give prompts as input_ids");
  }
  refuse_affix(json, "continuing_subword_prefix");
  refuse_affix(json, "end_of_word_suffix");

  BpeModel model;
  model.where_ = json.where();
  if (const auto unk = json.find("unk_token")) model.unk_token_ = unk->string();
  model.fuse_unk_ = json.boolean_or("fuse_unk", false);
  model.ignore_merges_ = json.boolean_or("ignore_merges", false);
  model.read_vocab(json.at("vocab"));
  model.read_merges(json.at("merges"));
  return model;
}

void BpeModel::read_vocab(const JsonView& json) {
  json.expect_object();
  if (json.raw().empty()) json.fail("at least one token");
  vocab_.reserve(json.raw().size());
  TokenId largest = 0;
  for (const auto& [token, id] : json.raw().items()) {
    const JsonView view(id, json.where(), fmt::format("model.vocab[\"{}\"]", token));
    const auto value = static_cast<TokenId>(view.integer(0, kMaxTokenId));
    vocab_.emplace(token, value);
    largest = std::max(largest, value);
    longest_ = std::max(longest_, token.size());
  }
  tokens_.assign(static_cast<std::size_t>(largest) + 1, nullptr);
  spells_every_byte_ = true;
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string letter;
    append_byte_alphabet(letter, static_cast<unsigned char>(byte));
    spells_every_byte_ = spells_every_byte_ && vocab_.contains(letter);
  }
  for (const auto& [token, id] : vocab_) {
    const std::string*& slot = tokens_[static_cast<std::size_t>(id)];
    if (slot != nullptr) {
      throw CheckpointError(fmt::format(
          "{}: key model.vocab: expected different ids, got {} for both \"{}\" and \"{}\"",
          json.where(), id, std::min(token, *slot), std::max(token, *slot)));
    }
    slot = &token;
  }
}

void BpeModel::read_merges(const JsonView& json) {
  if (!json.raw().is_array()) json.fail("a list");
  merges_.reserve(json.raw().size());
  std::uint32_t rank = 0;
  const auto fail = [&](const std::string& expected) {
    JsonView(json.raw()[rank], json.where(), fmt::format("model.merges[{}]", rank)).fail(expected);
  };
  std::string joined;
  for (const nlohmann::json& merge : json.raw()) {
    std::string_view left;
    std::string_view right;
    if (merge.is_string()) {
      const std::string_view line = merge.get_ref<const std::string&>();
      const std::size_t space = line.find(' ');
      if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
        fail("two tokens with one space between");
      }
      left = line.substr(0, space);
      right = line.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      left = merge[0].get_ref<const std::string&>();
      right = merge[1].get_ref<const std::string&>();
    } else {
      fail("\"left right\" or [left, right]");
    }
    joined.assign(left).append(right);
    const auto left_id = token_to_id(left);
    const auto right_id = token_to_id(right);
    const auto merged_id = token_to_id(joined);
    if (!left_id || !right_id || !merged_id) {
      fail(fmt::format("tokens of model.vocab (\"{}\" is missing)",
                       !left_id    ? left
                       : !right_id ? right
                                   : std::string_view(joined)));
    }
    merges_[pair_key(*left_id, *right_id)] = {rank, *merged_id};  // the last one counts
    ++rank;
  }
}

std::optional<TokenId> BpeModel::token_to_id(std::string_view token) const {
  const auto found = vocab_.find(token);
  return found == vocab_.end() ? std::nullopt : std::optional(found->second);
}

bool BpeModel::has_token(TokenId id) const {
  return id >= 0 && static_cast<std::size_t>(id) < tokens_.size() &&
         tokens_[static_cast<std::size_t>(id)] != nullptr;
}

std::string_view BpeModel::id_to_token(TokenId id) const {
  return has_token(id) ? std::string_view(*tokens_[static_cast<std::size_t>(id)])
                       : std::string_view();
}

const BpeModel::Merge* BpeModel::find_merge(TokenId left, TokenId right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BpeModel::Encoder::append_word(std::string_view word, std::vector<TokenId>& ids) {
  if (model_.ignore_merges_) {
    if (const auto id = model_.token_to_id(word)) {
      ids.push_back(*id);
      if (ids.size() > most_) refuse_more_tokens(most_);
      return;
    }
  }
  const bool is_short = word.size() <= kMaxCachedWordBytes;
  const std::string key(is_short ? word : std::string_view());
  if (is_short) {
    const auto found = cache_.find(key);
    if (found != cache_.end()) {
      ids.insert(ids.end(), found->second.begin(), found->second.end());
      if (ids.size() > most_) refuse_more_tokens(most_);
      return;
    }
  }
  const std::size_t first = ids.size();
  split_characters(word);
  merge_all();
  for (const Symbol& symbol : symbols_) {
    if (symbol.alive) ids.push_back(symbol.id);
  }
  if (ids.size() > most_) refuse_more_tokens(most_);
  if (is_short && cache_.size() < kMaxCachedWords) {
    cache_.emplace(
        key, std::vector<TokenId>(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end()));
  }
}

void BpeModel::Encoder::split_characters(std::string_view word) {
  symbols_.clear();
  bool after_unknown = false;
  for (std::size_t i = 0; i < word.size();) {
    const std::size_t length = utf8_length(word[i]);
    std::optional<TokenId> id = model_.token_to_id(word.substr(i, length));
    i += length;
    const bool unknown = !id;
    if (unknown) {
      if (model_.unk_token_.empty()) continue;
      if (after_unknown && model_.fuse_unk_) continue;
      id = model_.token_to_id(model_.unk_token_);
      if (!id) {
        throw CheckpointError(
            fmt::format("{}: key model.unk_token: expected a token of model.vocab, got \"{}\", and "
                        "the text has a "
                        "character that needs it",
                        model_.where_, model_.unk_token_));
      }
    }
    after_unknown = unknown;
    if (symbols_.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
      throw PromptError("text: expected words of less than 2^31 characters, got a longer one");
    }
    const auto index = static_cast<std::int32_t>(symbols_.size());
    if (index > 0) symbols_.back().next = index;
    symbols_.push_back({*id, index - 1, -1, true});
  }
}

bool BpeModel::Encoder::is_later(const Candidate& left, const Candidate& right) {
  return left.rank != right.rank ? left.rank > right.rank : left.position > right.position;
}

void BpeModel::Encoder::push_candidate(std::int32_t left, std::int32_t right) {
  if (left < 0 || right < 0) return;
  const Merge* merge = model_.find_merge(symbols_[static_cast<std::size_t>(left)].id,
                                         symbols_[static_cast<std::size_t>(right)].id);
  if (merge == nullptr) return;
  queue_.push_back({merge->rank, left, merge->merged});
  std::push_heap(queue_.begin(), queue_.end(), is_later);
}

void BpeModel::Encoder::merge_all() {
  queue_.clear();
  for (std::size_t i = 0; i + 1 < symbols_.size(); ++i) {
    push_candidate(static_cast<std::int32_t>(i), static_cast<std::int32_t>(i) + 1);
  }
  while (!queue_.empty()) {
    std::pop_heap(queue_.begin(), queue_.end(), is_later);
    const Candidate candidate = queue_.back();
    queue_.pop_back();
    Symbol& left = symbols_[static_cast<std::size_t>(candidate.position)];
    if (!left.alive || left.next < 0) continue;
    const std::int32_t right_index = left.next;
    Symbol& right = symbols_[static_cast<std::size_t>(right_index)];
    // The pair may have changed since the candidate was queued.
    const Merge* merge = model_.find_merge(left.id, right.id);
    if (merge == nullptr || merge->merged != candidate.merged) continue;

    left.id = candidate.merged;
    left.next = right.next;
    right.alive = false;
    if (right.next >= 0) {
      symbols_[static_cast<std::size_t>(right.next)].previous = candidate.position;
    }
    push_candidate(left.previous, candidate.position);
    push_candidate(candidate.position, left.next);
  }
}

}  // namespace blockscope
