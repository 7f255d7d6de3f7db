#include "analysis/metrics/draft_symptoms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/results/text_table.h"
#include "decode_record/base/text.h"

namespace blockscope {
namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kGoodBefore = 0.3;  // acceptance before a depth, so that it can fall
enum Place : std::size_t { kWindow, kLayers, kTemplate, kSlot, kSureAndWrong, kTarget };

struct Number {
  double value = kNoNumber;
  std::int64_t evidence = 0;
  bool unclear = false;
};

Number number_of(const AcceptedShare& share) { return {share.share(), share.reached, false}; }

/// The smallest ratio of the acceptance from a depth on to that before it.
Number fall_over_depth(const std::vector<AcceptedShare>& bins, std::int64_t least) {
  Number best;
  best.unclear = true;
  AcceptedShare before;
  AcceptedShare after;
  for (const AcceptedShare& bin : bins) {
    after.accepted += bin.accepted;
    after.reached += bin.reached;
  }
  for (const AcceptedShare& bin : bins) {
    const std::int64_t evidence = std::min(before.reached, after.reached);
    const double ratio = before.accepted > 0 ? after.share() / before.share() : kNoNumber;
    const bool counts = evidence >= least && before.share() >= kGoodBefore;
    if (counts && (best.unclear || ratio < best.value)) {
      best = {ratio, evidence, false};
    } else if (best.unclear && evidence > best.evidence) {
      best.value = ratio;
      best.evidence = evidence;
    }
    before.accepted += bin.accepted;
    before.reached += bin.reached;
    after.accepted -= bin.accepted;
    after.reached -= bin.reached;
  }
  return best;
}

}  // namespace

const std::vector<DraftSymptom>& draft_symptoms() {
  static const std::vector<DraftSymptom> symptoms{
      {"window", "a sliding window run as full attention",
       "acceptance from a number of keys on, divided by the acceptance before it (smallest over "
       "powers of two)",
       0.5, true, 100, "reached positions on the smaller side",
       "before every such depth, acceptance is below 0.3 already",
       "a draft trained on shorter texts; RoPE scaling; other kinds of text at the end",
       "the draft's sliding_window and layer_types, and whether the engine honours them"},
      {"target_layers", "target layers off by one",
       "rounds whose first drafted token is refused although the draft was sure of it", 0.2, false,
       30, "rounds", "", "another template; a draft of another target; weights loaded wrongly",
       "target_layer_ids: from 0 in z-lab's layout, numbers of hidden states in speculators'"},
      {"template", "another chat template",
       "acceptance of the first drafted token in the first round of each sequence", 0.5, true, 10,
       "sequences", "", "target layers off by one; a draft of another kind of text",
       "the prompt's tokens compared with those of the draft's training data"},
      {"slot", "sampled from slot 0",
       "drafted tokens equal to the answer's token one position before or after, less those equal "
       "to the token at their own position",
       0.1, false, 100, "drafted tokens that differ from their neighbours", "",
       "an answer that repeats tokens of its own drafts",
       "which slot of the block the engine takes the first drafted token from"},
      {"sure_and_wrong", "a draft that is sure and wrong",
       "refused positions among reached ones where the draft is sure", 0.3, false, 100,
       "reached positions where the draft is sure", "", "a target that samples with a temperature",
       "whether target_layers, template or slot is seen, too; else more training of the draft"},
      {"unsure_target", "a target that is unsure",
       "refused positions where the target's entropy is at least 1 nat", 0.5, false, 30,
       "refused positions", "", "a target that runs on a text unlike its own training data",
       "nothing in the draft: no draft can guess a choice that the target leaves open"}};
  return symptoms;
}

std::string condition_of(const DraftSymptom& symptom) {
  return fmt::format("{} {:g}", symptom.low ? "at most" : "at least", symptom.limit);
}

std::string SymptomVerdict::text() const {
  if (seen == 1.0) return "seen";
  if (seen == 0.0) return "not seen";
  if (evidence < symptom->least) {
    return fmt::format("cannot tell: needs {} {}, found {}", symptom->least, symptom->evidence,
                       evidence);
  }
  return fmt::format("cannot tell: {}", symptom->unclear);
}

std::vector<SymptomVerdict> symptom_verdicts(const MetricResult& result) {
  const ResultArray* numbers = result.find("symptoms");
  const ResultArray* seen = result.find("symptom_seen");
  std::vector<SymptomVerdict> verdicts;
  if (numbers == nullptr || seen == nullptr) return verdicts;
  for (std::size_t i = 0; i < draft_symptoms().size(); ++i) {
    verdicts.push_back(
        {&draft_symptoms()[i], numbers->values[i], numbers->terms[i], seen->values[i]});
  }
  return verdicts;
}

std::int32_t DraftSymptoms::Answer::at(std::int64_t position) const {
  const std::int64_t i = position - start;
  return i >= 0 && i < std::ssize(tokens) ? tokens[static_cast<std::size_t>(i)] : -1;
}

DraftSymptoms::Answer DraftSymptoms::read_answer(const TraceReader& trace, std::int64_t sequence) {
  const DecodeRecord record = trace.decode_record(sequence);
  auto at = record.begin();
  while (at.index() < record.num_deltas()) ++at;
  const Frame& frame = *at;
  Answer answer;
  answer.start = std::ssize(trace.sequence(sequence).prompt);
  for (const std::int64_t token : frame.generated_tokens) {
    answer.tokens.push_back(token == frame.mask_token_id ? -1 : static_cast<std::int32_t>(token));
  }
  return answer;
}

/// Counts tokens whose neighbours in the answer are other tokens.
void DraftSymptoms::compare(const Answer& answer, std::int64_t block_start,
                            const DraftRound& round) {
  for (std::int64_t p = 1; p <= round.inside; ++p) {
    const std::int32_t token = round.token[static_cast<std::size_t>(p)];
    const std::int32_t own = answer.at(block_start + p);
    const std::int32_t before = answer.at(block_start + p - 1);
    const std::int32_t after = answer.at(block_start + p + 1);
    if (token < 0 || own < 0 || before < 0 || after < 0) continue;
    if (own == before || own == after) continue;
    ++compared_;
    own_ += token == own ? 1 : 0;
    before_ += token == before ? 1 : 0;
    after_ += token == after ? 1 : 0;
  }
}

void DraftSymptoms::add(const TraceReader& trace, const StepRef& step, const DraftRound& round) {
  const auto [found, is_first] = answers_.try_emplace(step.sequence);
  if (is_first) found->second = read_answer(trace, step.sequence);
  compare(found->second, step.block_start, round);
  for (std::int64_t p = 1; p <= round.reached(); ++p) {
    const auto at = static_cast<std::size_t>(p);
    const bool accepted = p <= round.accepted;
    const float confidence = round.confidence[at];
    if (p == 1 && is_first) first_rounds_.add(accepted);
    if (!std::isnan(confidence)) {
      const bool sure = confidence >= static_cast<float>(kSure);
      if (p == 1) first_sure_.add(sure && !accepted);
      if (sure) sure_refused_.add(!accepted);
    }
    if (!accepted && !std::isnan(round.target_entropy[at])) {
      unsure_target_.add(round.target_entropy[at] >= static_cast<float>(kUnsureTarget));
    }
  }
}

std::vector<ResultArray> DraftSymptoms::arrays(const BinnedShares& by_depth) const {
  const std::vector<DraftSymptom>& symptoms = draft_symptoms();
  std::vector<Number> numbers(symptoms.size());
  numbers[kWindow] = fall_over_depth(by_depth.shares(), symptoms[kWindow].least);
  numbers[kLayers] = number_of(first_sure_);
  numbers[kTemplate] = number_of(first_rounds_);
  numbers[kSlot].evidence = compared_;
  if (compared_ > 0) {
    numbers[kSlot].value =
        static_cast<double>(std::max(before_, after_) - own_) / static_cast<double>(compared_);
  }
  numbers[kSureAndWrong] = number_of(sure_refused_);
  numbers[kTarget] = number_of(unsure_target_);
  ResultAxis axis{"symptom", {}, {}};
  for (const DraftSymptom& symptom : symptoms) axis.labels.emplace_back(symptom.name);
  ResultArray values{"symptoms", "share", "numbers that point to causes of low acceptance",
                     {axis},     {},      {}};
  ResultArray seen{"symptom_seen", "1", "1: beyond its limit, 0: not; nothing: cannot tell",
                   {axis},         {},  {}};
  for (std::size_t i = 0; i < symptoms.size(); ++i) {
    const Number& number = numbers[i];
    values.values.push_back(number.value);
    values.terms.push_back(number.evidence);
    const bool told = number.evidence >= symptoms[i].least && !number.unclear;
    const bool beyond =
        symptoms[i].low ? number.value <= symptoms[i].limit : number.value >= symptoms[i].limit;
    seen.values.push_back(told ? (beyond ? 1.0 : 0.0) : kNoNumber);
    seen.terms.push_back(number.evidence);
  }
  return {values, seen};
}

}  // namespace blockscope
