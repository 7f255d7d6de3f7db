// See added_vocabulary.h.
#include "probe/text/added_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "probe/text/unicode.h"

namespace blockscope {

namespace {

/// Start of the last character before `end`. `end` > 0.
std::size_t previous_character(std::string_view text, std::size_t end) {
  std::size_t start = end - 1;
  while ((static_cast<unsigned char>(text[start]) & 0xC0U) == 0x80U) --start;
  return start;
}

bool ends_with_word(std::string_view text, std::size_t end) {
  if (end == 0) return false;
  std::size_t position = previous_character(text, end);
  return is_word(next_code_point(text, position));
}

bool starts_with_word(std::string_view text, std::size_t begin) {
  return begin < text.size() && is_word(next_code_point(text, begin));
}

}  // namespace

void AddedVocabulary::add(AddedToken token) {
  if (token.special) special_contents_.insert(token.content);
  const auto found = by_content_.find(token.content);
  if (found != by_content_.end()) {
    tokens_[found->second] = std::move(token);
    return;
  }
  by_content_[token.content] = tokens_.size();
  by_id_[token.id] = tokens_.size();
  tokens_.push_back(std::move(token));
}

bool AddedVocabulary::Matcher::add(std::string_view pattern, std::size_t token) {
  std::size_t node = 0;
  for (const char byte : pattern) {
    const auto [entry, inserted] = nodes[node].next.try_emplace(byte, nodes.size());
    node = entry->second;  // read before nodes grows and moves the map
    if (inserted) nodes.emplace_back();
  }
  if (nodes[node].token) return false;
  nodes[node].token = token;
  return true;
}

std::vector<std::string> AddedVocabulary::index(const Normalizer& normalizer) {
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& left, const AddedToken& right) { return left.id < right.id; });
  by_content_.clear();
  by_id_.clear();
  spellings_.clear();
  raw_ = Matcher{};
  normalized_ = Matcher{};
  std::vector<std::string> warnings;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    by_content_[token.content] = i;
    by_id_[token.id] = i;
    std::string spelling = token.normalized ? normalizer.apply(token.content) : token.content;
    Matcher& matcher = token.normalized ? normalized_ : raw_;
    if (spelling.empty() || !matcher.add(spelling, i)) {
      warnings.push_back(fmt::format(
          "the added token \"{}\" (id {}) can never be matched: after normalisation it is {}",
          token.content, token.id, spelling.empty() ? "empty" : "the same as another one"));
    }
    spellings_[token.id] = std::move(spelling);
  }
  return warnings;
}

std::optional<AddedVocabulary::Match> AddedVocabulary::longest_match(const Matcher& matcher,
                                                                     std::string_view text,
                                                                     std::size_t begin) {
  std::optional<Match> best;
  std::size_t node = 0;
  for (std::size_t i = begin; i < text.size(); ++i) {
    const auto& next = matcher.nodes[node].next;
    const auto found = next.find(text[i]);
    if (found == next.end()) break;
    node = found->second;
    if (matcher.nodes[node].token) best = Match{i + 1, *matcher.nodes[node].token};
  }
  return best;
}

void AddedVocabulary::split(std::string_view text, const Matcher& matcher,
                            const SegmentSink& sink) const {
  std::size_t rest = 0;  // end of the last token, including its white space
  for (std::size_t i = 0; i < text.size();) {
    const std::optional<Match> match = longest_match(matcher, text, i);
    if (!match) {
      ++i;
      continue;
    }
    std::size_t begin = i;
    std::size_t end = match->end;
    i = match->end;  // the search continues here even if the match is dropped
    const AddedToken& token = tokens_[match->token];
    if (token.single_word && (ends_with_word(text, begin) || starts_with_word(text, end))) continue;
    if (token.lstrip) {
      while (begin > rest) {
        const std::size_t previous = previous_character(text, begin);
        std::size_t position = previous;
        if (!is_white_space(next_code_point(text, position))) break;
        begin = previous;
      }
    }
    if (token.rstrip) {
      while (end < text.size()) {
        std::size_t next = end;
        if (!is_white_space(next_code_point(text, next))) break;
        end = next;
      }
    }
    if (rest < begin) sink({text.substr(rest, begin - rest), std::nullopt});
    sink({{}, token.id});
    rest = end;
  }
  if (rest < text.size()) sink({text.substr(rest), std::nullopt});
}

void AddedVocabulary::split_raw(std::string_view text, const SegmentSink& sink) const {
  split(text, raw_, sink);
}

void AddedVocabulary::split_normalized(std::string_view text, const SegmentSink& sink) const {
  split(text, normalized_, sink);
}

const AddedToken* AddedVocabulary::find(std::string_view content) const {
  const auto found = by_content_.find(std::string(content));
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedVocabulary::find(TokenId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const std::string& AddedVocabulary::spelling(TokenId id) const { return spellings_.at(id); }

bool AddedVocabulary::is_special_spelling(const std::string& spelling) const {
  return special_contents_.contains(spelling);
}

TokenId AddedVocabulary::largest_id() const {
  TokenId largest = -1;
  for (const AddedToken& token : tokens_) largest = std::max(largest, token.id);
  return largest;
}

}  // namespace blockscope
