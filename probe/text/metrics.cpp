// See metrics.h.
#include "probe/text/metrics.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <unordered_map>

#include "probe/text/template_value.h"
#include "probe/text/unicode.h"

namespace blockscope {

namespace {

constexpr std::array<std::string_view, 5> kNames = {"exact_match", "contains", "f1", "rouge_l",
                                                    "edit_similarity"};

std::vector<std::string> words_of(std::string_view text) { return split_text(text, std::nullopt); }

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text.push_back(' ');
    text += word;
  }
  return text;
}

/// Length of the longest common subsequence, 64 columns at a time (Hyyrö 2004: bit-parallel LCS).
std::size_t lcs_length(const std::u32string& a, const std::u32string& b) {
  const std::size_t num_words = (a.size() + 63) / 64;
  std::unordered_map<char32_t, std::vector<std::uint64_t>> positions;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::vector<std::uint64_t>& mask = positions[a[i]];
    mask.resize(num_words);
    mask[i / 64] |= std::uint64_t{1} << (i % 64);
  }
  std::vector<std::uint64_t> state(num_words, ~std::uint64_t{0});  // zero bits count the LCS
  for (const char32_t c : b) {
    const auto found = positions.find(c);
    if (found == positions.end()) continue;
    std::uint64_t carry = 0;
    for (std::size_t w = 0; w < num_words; ++w) {
      const std::uint64_t matched = state[w] & found->second[w];
      const std::uint64_t sum = state[w] + matched;
      const std::uint64_t with_carry = sum + carry;
      carry = (sum < state[w] || with_carry < sum) ? 1 : 0;
      state[w] = with_carry | (state[w] & ~found->second[w]);
    }
  }
  std::size_t length = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if ((state[i / 64] >> (i % 64) & 1) == 0) ++length;
  }
  return length;
}

/// The sentences of `rouge`, as words: parts between dots, without empty ones. As in `rouge`, a
/// blank part is one empty word.
std::vector<std::vector<std::string>> sentences_of(std::string_view text) {
  std::vector<std::vector<std::string>> sentences;
  for (const std::string& part : split_text(text, std::string("."))) {
    if (part.empty()) continue;
    sentences.push_back(words_of(part));
    if (sentences.back().empty()) sentences.back().emplace_back();
  }
  return sentences;
}

/// Adds the words of one longest common subsequence of x and y: the one that `rouge` finds, which
/// walks from the end.
void add_lcs_words(const std::vector<std::string>& x, const std::vector<std::string>& y,
                   std::set<std::string>& words) {
  const std::size_t columns = y.size() + 1;
  std::vector<std::uint32_t> table((x.size() + 1) * columns, 0);
  for (std::size_t i = 1; i <= x.size(); ++i) {
    for (std::size_t j = 1; j <= y.size(); ++j) {
      table[i * columns + j] =
          x[i - 1] == y[j - 1] ? table[(i - 1) * columns + j - 1] + 1
                               : std::max(table[(i - 1) * columns + j], table[i * columns + j - 1]);
    }
  }
  std::size_t i = x.size();
  std::size_t j = y.size();
  while (i > 0 && j > 0) {
    if (x[i - 1] == y[j - 1]) {
      words.insert(x[i - 1]);
      --i;
      --j;
    } else if (table[(i - 1) * columns + j] > table[i * columns + j - 1]) {
      --i;
    } else {
      --j;
    }
  }
}

std::size_t num_distinct(const std::vector<std::vector<std::string>>& sentences) {
  std::set<std::string> words;
  for (const auto& sentence : sentences) words.insert(sentence.begin(), sentence.end());
  return words.size();
}

/// Accepts any bytes: malformed UTF-8 becomes U+FFFD.
std::u32string characters_of(std::string_view text) { return to_utf32(replace_invalid_utf8(text)); }

}  // namespace

std::optional<Metric> parse_metric(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Metric>(i);
  }
  if (name == "em") return Metric::kExactMatch;
  if (name == "rouge-l" || name == "rougeL") return Metric::kRougeL;
  if (name == "code_sim" || name == "edit_sim") return Metric::kEditSimilarity;
  return std::nullopt;
}

std::string_view metric_name(Metric metric) { return kNames[static_cast<std::size_t>(metric)]; }

std::string_view metric_names() { return "exact_match, contains, f1, rouge_l, edit_similarity"; }

std::string normalize_answer(std::string_view text) {
  constexpr std::string_view kPunctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
  std::string kept;
  for (const char c : lowercase(replace_invalid_utf8(text))) {
    if (kPunctuation.find(c) == std::string_view::npos) kept.push_back(c);
  }
  // \b(a|an|the)\b: an article is a whole run of word characters.
  std::string without_articles;
  for (std::size_t i = 0; i < kept.size();) {
    const std::size_t begin = i;
    bool word = is_word(next_code_point(kept, i));
    while (word && i < kept.size()) {
      std::size_t next = i;
      word = is_word(next_code_point(kept, next));
      if (word) i = next;
    }
    const std::string_view run = std::string_view(kept).substr(begin, i - begin);
    without_articles += run == "a" || run == "an" || run == "the" ? " " : run;
  }
  return join(words_of(without_articles));
}

double exact_match(std::string_view prediction, std::string_view reference) {
  return normalize_answer(prediction) == normalize_answer(reference) ? 1.0 : 0.0;
}

double contains(std::string_view prediction, std::string_view reference) {
  const std::string text = normalize_answer(prediction);
  const std::string part = normalize_answer(reference);
  if (part.empty()) return text.empty() ? 1.0 : 0.0;
  return text.find(part) != std::string::npos ? 1.0 : 0.0;
}

double f1_score(std::string_view prediction, std::string_view reference) {
  const std::vector<std::string> predicted = words_of(normalize_answer(prediction));
  const std::vector<std::string> expected = words_of(normalize_answer(reference));
  std::unordered_map<std::string, std::size_t> counts;
  for (const std::string& word : expected) ++counts[word];
  std::size_t common = 0;
  for (const std::string& word : predicted) {
    const auto found = counts.find(word);
    if (found == counts.end() || found->second == 0) continue;
    --found->second;
    ++common;
  }
  if (common == 0) return 0.0;
  const double precision = static_cast<double>(common) / static_cast<double>(predicted.size());
  const double recall = static_cast<double>(common) / static_cast<double>(expected.size());
  return 2.0 * precision * recall / (precision + recall);
}

double rouge_l(std::string_view prediction, std::string_view reference) {
  const auto predicted = sentences_of(replace_invalid_utf8(prediction));
  const auto expected = sentences_of(replace_invalid_utf8(reference));
  if (predicted.empty() || expected.empty()) return 0.0;
  std::set<std::string> united;
  for (const auto& reference_sentence : expected) {
    for (const auto& predicted_sentence : predicted) {
      add_lcs_words(reference_sentence, predicted_sentence, united);
    }
  }
  const auto length = static_cast<double>(united.size());
  const double precision = length / static_cast<double>(num_distinct(predicted));
  const double recall = length / static_cast<double>(num_distinct(expected));
  return 2.0 * (precision * recall / (precision + recall + 1e-8));
}

double edit_similarity(std::string_view prediction, std::string_view reference) {
  const std::u32string a = characters_of(prediction);
  const std::u32string b = characters_of(reference);
  if (a.empty() && b.empty()) return 1.0;
  return 2.0 * static_cast<double>(lcs_length(a, b)) / static_cast<double>(a.size() + b.size());
}

double score(Metric metric, std::string_view prediction, std::span<const std::string> references) {
  double best = 0.0;
  for (const std::string& reference : references) {
    double value = 0.0;
    switch (metric) {
      case Metric::kExactMatch:
        value = exact_match(prediction, reference);
        break;
      case Metric::kContains:
        value = contains(prediction, reference);
        break;
      case Metric::kF1:
        value = f1_score(prediction, reference);
        break;
      case Metric::kRougeL:
        value = rouge_l(prediction, reference);
        break;
      case Metric::kEditSimilarity:
        value = edit_similarity(prediction, reference);
        break;
    }
    best = std::max(best, value);
  }
  return best;
}

}  // namespace blockscope
