// See unigram_model.h.
#include "probe/text/unigram_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "probe/text/unicode.h"

namespace blockscope {
namespace {

constexpr double kUnknownPenalty = 10.0;  // below the smallest score, as in SentencePiece

}  // namespace

UnigramModel UnigramModel::from_json(const JsonView& json) {
  for (const char* key : {"alpha", "nbest_size"}) {
    if (const auto value = json.find(key)) {
      value->fail("null", "with sampling the same text gives other ids at each call");
    }
  }
  UnigramModel model;
  model.where_ = json.where();
  model.byte_fallback_ = json.boolean_or("byte_fallback", false);
  const JsonView vocab = json.at("vocab");
  std::unordered_map<std::string, TokenId> pieces;
  double smallest = std::numeric_limits<double>::infinity();
  for (const JsonView& entry : vocab.elements()) {
    const nlohmann::json& pair = entry.raw();
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_number()) {
      entry.fail("[piece, score]");
    }
    const auto& piece = pair[0].get_ref<const std::string&>();
    if (piece.empty()) entry.fail("a piece that is not empty");
    const auto id = static_cast<TokenId>(model.scores_.size());
    if (id > kMaxTokenId) vocab.fail(fmt::format("at most {} pieces", kMaxTokenId + 1));
    if (!pieces.emplace(piece, id).second) {
      entry.fail(fmt::format("a piece of its own, but \"{}\" has id {}", piece, pieces[piece]));
    }
    model.sorted_.emplace_back(piece, id);
    model.scores_.push_back(pair[1].get<double>());
    smallest = std::min(smallest, model.scores_.back());
  }
  model.vocabulary_ = Vocabulary(std::move(pieces), vocab);
  std::ranges::sort(model.sorted_);
  model.unknown_score_ = smallest - kUnknownPenalty;
  if (const auto unknown = json.find("unk_id")) {
    const auto last = static_cast<std::int64_t>(model.scores_.size()) - 1;
    model.unknown_ = static_cast<TokenId>(unknown->integer(0, last));
  }
  return model;
}

std::vector<UnigramModel::Best> UnigramModel::best_paths(std::string_view word) const {
  std::vector<Best> best(word.size() + 1);
  for (std::size_t start = 0; start < word.size();) {
    const std::size_t character = utf8_length(word[start]);
    const auto offer = [&](std::size_t end, double score, TokenId id) {
      Best& target = best[end];
      const double sum = score + best[start].score;
      if (!target.start || sum > target.score) target = {sum, start, id};
    };
    // The pieces that begin like the rest of the word are neighbours: each byte narrows the range.
    auto first = sorted_.begin();
    auto last = sorted_.end();
    bool alone = false;  // a piece is this character
    for (std::size_t length = 0; start + length < word.size() && first != last; ++length) {
      const auto next = [&](const auto& piece) {
        return length < piece.first.size() ? static_cast<unsigned char>(piece.first[length]) : -1;
      };
      const int byte = static_cast<unsigned char>(word[start + length]);
      first = std::ranges::lower_bound(first, last, byte, {}, next);
      last = std::ranges::upper_bound(first, last, byte, {}, next);
      if (first == last || first->first.size() != length + 1) continue;
      offer(start + length + 1, scores_[static_cast<std::size_t>(first->second)], first->second);
      alone = alone || length + 1 == character;
    }
    if (!alone) {
      if (!unknown_) refuse_without_unknown(where_, "model.unk_id", "nothing");
      offer(start + character, unknown_score_, *unknown_);
    }
    start += character;
  }
  return best;
}

void UnigramModel::append_piece(std::string_view piece, std::vector<TokenId>& ids) const {
  if (const auto id = vocabulary_.token_to_id(piece)) return ids.push_back(*id);
  if (byte_fallback_ && vocabulary_.append_bytes(piece, ids)) return;
  if (!unknown_) refuse_without_unknown(where_, "model.unk_id", "nothing");
  ids.push_back(*unknown_);
}

void UnigramModel::append_word(std::string_view word, std::size_t most,
                               std::vector<TokenId>& ids) const {
  const std::vector<Best> best = best_paths(word);
  std::vector<std::pair<std::size_t, std::size_t>> pieces;  // [start, end), from the last one on
  bool unknown = false;                                     // the last one that was added
  for (std::size_t end = word.size(); end > 0; end = *best[end].start) {
    const bool is_unknown = unknown_ && best[end].id == *unknown_;
    if (is_unknown && unknown) {
      pieces.back().first = *best[end].start;
    } else {
      pieces.emplace_back(*best[end].start, end);
    }
    unknown = is_unknown;
  }
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    append_piece(word.substr(piece->first, piece->second - piece->first), ids);
    if (ids.size() > most) refuse_more_tokens(most);
  }
}

}  // namespace blockscope
