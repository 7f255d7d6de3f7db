// Scores of an answer against references, in [0, 1]; higher is better. With several references the
// best score counts. The formulas follow the common benchmarks (SQuAD, LongBench), which differ in
// details; so each formula is given here.
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

/// 1 if the normalised reference is a substring of the normalised prediction, else 0. An empty
/// reference counts only for an empty prediction.
double contains(std::string_view prediction, std::string_view reference);

/// SQuAD / LongBench qa_f1: words of the normalised texts as multisets; 2PR / (P + R) with
/// P = common / |prediction|, R = common / |reference|; 0 if nothing is common.
double f1_score(std::string_view prediction, std::string_view reference);

/// ROUGE-L F as PyPI `rouge` 1.0.1 computes it (LongBench's rouge_score). Both texts are split into
/// sentences at '.' and into words at white space. U is the set of words on a longest common
/// subsequence of any reference sentence with any predicted sentence; n and m are the numbers of
/// distinct words of prediction and reference. P = |U| / n, R = |U| / m, F = 2 P R / (P + R +
/// 1e-8). 0 if a text is empty or has only dots. Case and punctuation count.
double rouge_l(std::string_view prediction, std::string_view reference);

/// Similarity over Unicode characters (`ratio` of python-Levenshtein): 2 LCS(a, b) / (|a| + |b|),
/// which equals 1 - (insertions + deletions) / (|a| + |b|); 1 for two empty texts. LongBench's
/// code_sim rounds it to percent, and compares one line of the text; here the caller chooses the
/// text.
double edit_similarity(std::string_view prediction, std::string_view reference);

/// Best score over the references; 0 if there are none.
double score(Metric metric, std::string_view prediction, std::span<const std::string> references);

}  // namespace blockscope
