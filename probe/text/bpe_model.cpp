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

Vocabulary read_vocabulary(const JsonView& json) {
  json.expect_object();
  std::unordered_map<std::string, TokenId> ids;
  ids.reserve(json.raw().size());
  for (const auto& [token, id] : json.raw().items()) {
    const JsonView view(id, json.where(), fmt::format("model.vocab[\"{}\"]", token));
    ids.emplace(token, static_cast<TokenId>(view.integer(0, kMaxTokenId)));
  }
  return Vocabulary(std::move(ids), json);
}

/// Refuses an option that would change the ids. No byte-level tokenizer uses it.
void refuse_affix(const JsonView& json, const std::string& key) {
  const std::optional<JsonView> value = json.find(key);
  if (value && !value->string().empty()) value->fail("null or an empty string");
}

}  // namespace

BpeModel BpeModel::from_json(const JsonView& json) {
  if (const auto dropout = json.find("dropout"); dropout && dropout->raw() != 0.0) {
    dropout->fail("null", "with dropout the same text gives other ids at each call");
  }
  refuse_affix(json, "continuing_subword_prefix");
  refuse_affix(json, "end_of_word_suffix");

  BpeModel model;
  model.where_ = json.where();
  if (const auto unk = json.find("unk_token")) model.unk_token_ = unk->string();
  model.fuse_unk_ = json.boolean_or("fuse_unk", false);
  model.ignore_merges_ = json.boolean_or("ignore_merges", false);
  model.byte_fallback_ = json.boolean_or("byte_fallback", false);
  model.vocabulary_ = read_vocabulary(json.at("vocab"));
  model.read_merges(json.at("merges"));
  return model;
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
    const auto left_id = vocabulary_.token_to_id(left);
    const auto right_id = vocabulary_.token_to_id(right);
    const auto merged_id = vocabulary_.token_to_id(joined);
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

const BpeModel::Merge* BpeModel::find_merge(TokenId left, TokenId right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BpeModel::Encoder::append_word(std::string_view word, std::vector<TokenId>& ids) {
  if (model_.ignore_merges_) {
    if (const auto id = model_.vocabulary_.token_to_id(word)) {
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

void BpeModel::Encoder::push_symbol(TokenId id) {
  if (symbols_.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw PromptError("text: expected words of less than 2^31 characters, got a longer one");
  }
  const auto index = static_cast<std::int32_t>(symbols_.size());
  if (index > 0) symbols_.back().next = index;
  symbols_.push_back({id, index - 1, -1, true});
}

void BpeModel::Encoder::split_characters(std::string_view word) {
  const Vocabulary& vocabulary = model_.vocabulary_;
  symbols_.clear();
  std::optional<TokenId> unknown;  // an unknown token that is not added yet
  std::vector<TokenId> bytes;
  const auto push_unknown = [&] {
    if (unknown) push_symbol(*unknown);
    unknown.reset();
  };
  for (std::size_t i = 0; i < word.size();) {
    const std::string_view character = word.substr(i, utf8_length(word[i]));
    i += character.size();
    if (const auto id = vocabulary.token_to_id(character)) {
      push_unknown();
      push_symbol(*id);
      continue;
    }
    bytes.clear();
    if (model_.byte_fallback_ && vocabulary.append_bytes(character, bytes)) {
      // An unknown token stays after them: the package's order, if only some bytes have tokens.
      for (const TokenId byte : bytes) push_symbol(byte);
      continue;
    }
    if (model_.unk_token_.empty() || (unknown && model_.fuse_unk_)) continue;
    push_unknown();
    unknown = vocabulary.token_to_id(model_.unk_token_);
    if (!unknown) {
      refuse_without_unknown(model_.where_, "model.unk_token",
                             fmt::format("\"{}\"", model_.unk_token_));
    }
  }
  push_unknown();
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
