#include "analysis/metrics/trace_comparison.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "analysis/pass/step_pass.h"

namespace blockscope {
namespace {

struct Named {
  std::int64_t index;
  PromptHash hash;
  std::string name;
};

std::vector<Named> list_named(const TraceReader& trace) {
  const std::vector<std::uint8_t> aborted = trace.aborted();
  std::vector<Named> result;
  for (std::int64_t i = 0; i < trace.info().num_sequences; ++i) {
    if (const auto at = static_cast<std::size_t>(i); at < aborted.size() && aborted[at] != 0) {
      continue;
    }
    SequenceInfo info = trace.sequence(i);
    result.push_back({i, info.prompt_hash, std::move(info.name)});
  }
  return result;
}

/// Index of the only element with each name; a name that occurs twice has no index.
std::map<std::string, std::size_t> unique_names(const std::vector<Named>& list) {
  std::map<std::string, std::size_t> result;
  std::set<std::string> twice;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].name.empty()) continue;
    if (!result.emplace(list[i].name, i).second) twice.insert(list[i].name);
  }
  for (const std::string& name : twice) result.erase(name);
  return result;
}

/// Removes the pairs that `partner` finds from both lists.
template <typename Partner>
void take_pairs(std::vector<Named>& a, std::vector<Named>& b, const Partner& partner,
                bool same_prompt, std::vector<SequenceMatch>& pairs) {
  std::vector<Named> rest_a;
  std::vector<bool> taken(b.size(), false);
  for (Named& one : a) {
    const std::optional<std::size_t> found = partner(one);
    if (found && !taken[*found]) {
      taken[*found] = true;
      pairs.push_back({one.index, b[*found].index, same_prompt});
    } else {
      rest_a.push_back(std::move(one));
    }
  }
  std::vector<Named> rest_b;
  for (std::size_t i = 0; i < b.size(); ++i) {
    if (!taken[i]) rest_b.push_back(std::move(b[i]));
  }
  a = std::move(rest_a);
  b = std::move(rest_b);
}

std::vector<std::int64_t> indices_of(const std::vector<Named>& list) {
  std::vector<std::int64_t> result;
  for (const Named& one : list) result.push_back(one.index);
  return result;
}

/// For each element of `a`, its place in `b`; nullopt if `b` lacks it.
std::vector<std::optional<std::size_t>> places(const ResultAxis& a, const ResultAxis& b) {
  std::map<std::string, std::size_t> in_b;
  for (std::size_t j = 0; j < b.size(); ++j) in_b.emplace(b.label(j), j);
  std::vector<std::optional<std::size_t>> result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (const auto found = in_b.find(a.label(i)); found != in_b.end()) result[i] = found->second;
  }
  return result;
}

/// Whether tokens of two traces are the same.
class TokenEquality {
 public:
  TokenEquality(const TraceReader& a, const TraceReader& b) : a_(a), b_(b) {
    by_id_ =
        a.info().meta.vocab_size == b.info().meta.vocab_size && a.num_pieces() == b.num_pieces();
    if (!by_id_ && (a.num_pieces() == 0 || b.num_pieces() == 0)) {
      throw UsageError(fmt::format(
          "{} has a vocabulary of {} and {} one of {}, and at least one trace lacks the pieces, so "
          "their tokens can't be compared. HINT: compare traces of models with one tokenizer",
          a.info().path, a.info().meta.vocab_size, b.info().path, b.info().meta.vocab_size));
    }
  }

  bool operator()(std::int64_t token_a, std::int64_t token_b) {
    if (by_id_) return token_a == token_b;
    const auto [found, added] = known_.try_emplace({token_a, token_b}, false);
    if (added) {
      const auto piece = [](const TraceReader& trace, std::int64_t token) {
        return token >= 0 && token < trace.num_pieces() ? trace.piece(token) : std::string();
      };
      const std::string text = piece(a_, token_a);
      found->second = !text.empty() && text == piece(b_, token_b);
    }
    return found->second;
  }

 private:
  const TraceReader& a_;
  const TraceReader& b_;
  bool by_id_ = true;
  std::map<std::pair<std::int64_t, std::int64_t>, bool> known_;
};

/// The generated tokens of a sequence, step by step.
class Tokens {
 public:
  Tokens(const TraceReader& trace, std::int64_t sequence)
      : record_(trace.decode_record(sequence)), at_(record_.begin()) {}
  Tokens(const Tokens&) = delete;  // at_ points into record_
  Tokens& operator=(const Tokens&) = delete;
  std::int64_t steps() const { return static_cast<std::int64_t>(record_.num_deltas()); }
  std::int64_t positions() const {
    return static_cast<std::int64_t>(record_.initial_frame().gen_length);
  }
  void advance() {
    if (at_.index() < record_.num_deltas()) ++at_;
  }
  /// -1: undecided, or beyond the end.
  std::int64_t token(std::int64_t position) const {
    const Frame& frame = *at_;
    if (position >= positions()) return -1;
    const auto at = static_cast<std::size_t>(position);
    return frame.undecided(at) ? -1 : frame.generated_tokens[at];
  }

 private:
  DecodeRecord record_;
  DecodeRecord::Iterator at_;
};

TokenState state_of(std::int64_t a, std::int64_t b, TokenEquality& equal) {
  if (a < 0 && b < 0) return TokenState::masked;
  if (b < 0) return TokenState::only_a;
  if (a < 0) return TokenState::only_b;
  return equal(a, b) ? TokenState::equal : TokenState::different;
}

}  // namespace

SequenceMatches match_sequences(const TraceReader& a, const TraceReader& b) {
  SequenceMatches result;
  std::vector<Named> list_a = list_named(a);
  std::vector<Named> list_b = list_named(b);
  std::map<PromptHash, std::vector<std::size_t>> of_prompt;  // indices in list_b, last first
  for (std::size_t i = list_b.size(); i-- > 0;) of_prompt[list_b[i].hash].push_back(i);
  const auto by_prompt = [&](const Named& one) -> std::optional<std::size_t> {
    const auto found = of_prompt.find(one.hash);
    if (found == of_prompt.end() || found->second.empty()) return std::nullopt;
    const std::size_t next = found->second.back();
    found->second.pop_back();
    return next;
  };
  take_pairs(list_a, list_b, by_prompt, true, result.pairs);
  const auto names_a = unique_names(list_a);
  const auto names_b = unique_names(list_b);
  const auto by_name = [&](const Named& one) -> std::optional<std::size_t> {
    const auto found = names_b.find(one.name);
    if (!names_a.contains(one.name) || found == names_b.end()) return std::nullopt;
    return found->second;
  };
  take_pairs(list_a, list_b, by_name, false, result.pairs);
  std::ranges::sort(result.pairs, {}, &SequenceMatch::a);
  result.only_a = indices_of(list_a);
  result.only_b = indices_of(list_b);
  return result;
}

bool same_architecture(const TraceMeta& a, const TraceMeta& b) {
  return a.num_layers == b.num_layers && a.num_heads == b.num_heads &&
         a.num_kv_heads == b.num_kv_heads && a.layer_kv_heads == b.layer_kv_heads;
}

std::vector<std::string> shape_differences(const TraceMeta& a, const TraceMeta& b) {
  std::vector<std::string> result;
  const auto number = [&](const char* what, std::int64_t in_a, std::int64_t in_b) {
    if (in_a != in_b) result.push_back(fmt::format("{}: {} in A, {} in B", what, in_a, in_b));
  };
  const auto list = [&](const char* what, const std::vector<std::int64_t>& in_a,
                        const std::vector<std::int64_t>& in_b) {
    if (in_a == in_b) return;
    result.push_back(
        fmt::format("{}: {} in A, {} in B", what, fmt::join(in_a, ","), fmt::join(in_b, ",")));
  };
  number("layers of the model", a.num_layers, b.num_layers);
  number("query heads of the model", a.num_heads, b.num_heads);
  number("KV heads of the model", a.num_kv_heads, b.num_kv_heads);
  list("KV heads of each layer", a.layer_kv_heads, b.layer_kv_heads);
  list("head_dim of each layer", a.layer_head_dim, b.layer_head_dim);
  list("window of each layer", a.layer_window, b.layer_window);
  number("vocabulary", a.vocab_size, b.vocab_size);
  number("block length", a.block_length, b.block_length);
  number("k of the top-k sets", a.set_size, b.set_size);
  if (same_architecture(a, b)) {  // else the lists always differ
    list("recorded layers", a.layers, b.layers);
    list("recorded heads", a.heads, b.heads);
  }
  return result;
}

ResultArray difference(const ResultArray& b, const ResultArray& a) {
  const auto names = [](const ResultArray& array) {
    std::vector<std::string> result;
    for (const ResultAxis& axis : array.axes) result.push_back(axis.name);
    return result;
  };
  if (names(a) != names(b) || a.unit != b.unit) {
    throw UsageError(fmt::format("difference: {} [{}] in {} and {} [{}] in {} can't be subtracted",
                                 b.name, fmt::join(names(b), ", "), b.unit, a.name,
                                 fmt::join(names(a), ", "), a.unit));
  }
  ResultArray result{a.name, a.unit, "B - A: " + a.description, {}, {}, {}};
  // For each axis of the result, the places of its elements in a and b.
  std::vector<std::vector<std::size_t>> in_a(a.axes.size());
  std::vector<std::vector<std::size_t>> in_b(a.axes.size());
  std::size_t cells = 1;
  for (std::size_t i = 0; i < a.axes.size(); ++i) {
    const auto found = places(a.axes[i], b.axes[i]);
    ResultAxis axis{a.axes[i].name, {}, {}};
    for (std::size_t j = 0; j < found.size(); ++j) {
      if (!found[j]) continue;
      in_a[i].push_back(j);
      in_b[i].push_back(*found[j]);
      if (j < a.axes[i].index.size()) axis.index.push_back(a.axes[i].index[j]);
      if (!a.axes[i].labels.empty()) axis.labels.push_back(a.axes[i].labels[j]);
    }
    cells *= axis.size();
    result.axes.push_back(std::move(axis));
  }
  const bool terms = !a.terms.empty() && !b.terms.empty();
  for (std::size_t cell = 0; cell < cells; ++cell) {
    std::size_t rest = cell;
    std::size_t flat_a = 0;
    std::size_t flat_b = 0;
    std::size_t stride_a = 1;
    std::size_t stride_b = 1;
    for (std::size_t i = a.axes.size(); i-- > 0;) {
      const std::size_t at = rest % result.axes[i].size();
      rest /= result.axes[i].size();
      flat_a += in_a[i][at] * stride_a;
      flat_b += in_b[i][at] * stride_b;
      stride_a *= a.axes[i].size();
      stride_b *= b.axes[i].size();
    }
    result.values.push_back(b.values.at(flat_b) - a.values.at(flat_a));
    if (terms) result.terms.push_back(std::min(a.terms.at(flat_a), b.terms.at(flat_b)));
  }
  return result;
}

double TokenComparison::share_equal() const {
  if (decided_in_both == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(equal) / static_cast<double>(decided_in_both);
}

TokenState TokenComparison::state(std::int64_t step, std::int64_t position) const {
  return states.at(static_cast<std::size_t>(step * positions + position));
}

TokenComparison compare_tokens(
    const TraceReader& a, std::int64_t sequence_a, const TraceReader& b, std::int64_t sequence_b,
    const std::function<bool(std::int64_t done, std::int64_t total)>& progress) {
  TokenEquality equal(a, b);
  Tokens run_a(a, sequence_a);
  Tokens run_b(b, sequence_b);
  TokenComparison result;
  result.positions = std::max(run_a.positions(), run_b.positions());
  result.steps_a = run_a.steps();
  result.steps_b = run_b.steps();
  const std::int64_t steps = std::max(result.steps_a, result.steps_b);
  result.states.reserve(static_cast<std::size_t>(steps * result.positions));
  for (std::int64_t step = 0; step < steps; ++step) {
    if (progress && step % 16 == 0 && !progress(step, steps)) {
      throw InterruptedError("comparing tokens was stopped");
    }
    run_a.advance();
    run_b.advance();
    for (std::int64_t position = 0; position < result.positions; ++position) {
      const TokenState state = state_of(run_a.token(position), run_b.token(position), equal);
      result.states.push_back(state);
      const bool apart = state != TokenState::masked && state != TokenState::equal;
      if (apart && result.first_step < 0) result.first_step = step;
    }
  }
  for (std::int64_t position = 0; position < result.positions; ++position) {
    result.tokens_a.push_back(run_a.token(position));
    result.tokens_b.push_back(run_b.token(position));
    const TokenState state = state_of(result.tokens_a.back(), result.tokens_b.back(), equal);
    result.decided_in_both += state == TokenState::equal || state == TokenState::different ? 1 : 0;
    result.equal += state == TokenState::equal ? 1 : 0;
    if (state == TokenState::different && result.first_position < 0) {
      result.first_position = position;
    }
  }
  return result;
}

}  // namespace blockscope
