// Scores of an answer against references, in [0, 1], higher is better; with several references the
// best one counts. Formulas follow the benchmarks people compare with (SQuAD, LongBench) and are
// written out here, because those differ in details.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace blockscope {

enum class Metric { kExactMatch, kContains, kF1, kRougeL, kEditSimilarity };

/// "exact_match", "contains", "f1", "rouge_l", "edit_similarity" (also "em", "rouge-l", "rougeL",
/// "code_sim", "edit_sim"); nullopt for any other name.
std::optional<Metric> parse_metric(std::string_view name);
std::string_view metric_name(Metric metric);

/// All accepted canonical names, comma-separated, for messages and --help.
std::string_view metric_names();

/// SQuAD normalisation: lower case, remove ASCII punctuation, remove the words a, an, the,
/// collapse white space. Text beyond ASCII keeps its bytes except for simple lower-casing.
std::string normalize_answer(std::string_view text);

/// 1 if the normalised texts are equal, else 0.
double exact_match(std::string_view prediction, std::string_view reference);

/// 1 if the normalised reference is a substring of the normalised prediction (an empty one only in
/// an empty prediction), else 0.
double contains(std::string_view prediction, std::string_view reference);

/// SQuAD / LongBench qa_f1: words of the normalised texts as multisets; 2PR / (P + R) with
/// P = common / |prediction|, R = common / |reference|; 0 if nothing is common.
double f1_score(std::string_view prediction, std::string_view reference);

/// ROUGE-L F as PyPI `rouge` 1.0.1 computes it (LongBench's rouge_score): both texts are cut at '.'
/// into sentences and at white space into words; U is the set of words that lie on the longest
/// common subsequence of some reference sentence with some predicted sentence; with n, m the
/// numbers of distinct words of prediction and reference, P = |U| / n, R = |U| / m and F = 2 P R /
/// (P + R + 1e-8). 0 if a text is empty or only dots. Case and punctuation count.
double rouge_l(std::string_view prediction, std::string_view reference);

/// Similarity over Unicode characters that LongBench's code_sim rounds to percent (`ratio` of
/// python-Levenshtein): 2 LCS(a, b) / (|a| + |b|), that is 1 - insertions and deletions / (|a| +
/// |b|); 1 for two empty texts. The text is compared as it is: code_sim's choice of a line is the
/// caller's.
double edit_similarity(std::string_view prediction, std::string_view reference);

/// Best score over the references; 0 if there are none.
double score(Metric metric, std::string_view prediction, std::span<const std::string> references);

}  // namespace blockscope
