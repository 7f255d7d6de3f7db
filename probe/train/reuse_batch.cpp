#include "probe/train/reuse_batch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace blockscope {
namespace {

constexpr std::int64_t kProbeRows = 96;    // about this many rows per attention call
constexpr std::size_t kContextProbes = 2;  // of a document of the task generator

/// A probe block: its tokens, of which the first `known` are not masked, the position of the first
/// one, and the columns of the document that it sees: [0, shared) and [own_begin, own_end).
struct Probe {
  TokenIds tokens;
  std::size_t known = 0;
  std::int64_t position = 0;
  std::int64_t shared = 0, own_begin = 0, own_end = 0;
};

TokenIds slice(const TokenIds& ids, std::int64_t begin, std::int64_t end) {
  return {ids.begin() + begin, ids.begin() + end};
}

/// Keeps at most `most` probes, in their order.
std::vector<Probe> chosen(std::vector<Probe> probes, const ReuseBatchSpec& spec,
                          TaskRandom& random) {
  const auto most = static_cast<std::size_t>(spec.probes);
  if (probes.size() <= most) return probes;
  std::vector<std::size_t> order(probes.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (spec.random) {
    random.shuffle(order);
  } else {
    const double step =
        most > 1 ? static_cast<double>(probes.size() - 1) / static_cast<double>(most - 1) : 0.0;
    for (std::size_t i = 0; i < most; ++i) {
      order[i] = static_cast<std::size_t>(std::llround(static_cast<double>(i) * step));
    }
  }
  order.resize(most);
  std::sort(order.begin(), order.end());
  std::vector<Probe> kept;
  for (const std::size_t i : order) kept.push_back(std::move(probes[i]));
  return kept;
}

/// The probe's rows: its known tokens, then masks.
TokenIds rows_of(const Probe& probe, std::int64_t mask) {
  TokenIds rows = probe.tokens;
  std::fill(rows.begin() + static_cast<std::ptrdiff_t>(probe.known), rows.end(), mask);
  return rows;
}

ReuseBatch finish(const BatchLayout& layout, const std::vector<std::vector<Probe>>& probes,
                  const ReuseTokens& tokens, const ReuseBatchSpec& spec) {
  ReuseBatch out;
  out.prefix = layout.finish(tokens.fill);
  out.block_length = spec.block_length;
  std::size_t most = 0;
  for (const std::vector<Probe>& own : probes) most = std::max(most, own.size());
  const std::int64_t size = spec.block_length;
  const std::int64_t rows = static_cast<std::int64_t>(most) * size;
  const std::int64_t columns = out.prefix.tokens.size(1);
  const std::int64_t batch = std::ssize(probes);
  out.tokens = at::full({batch, rows}, tokens.fill, at::kLong);
  out.positions = at::zeros({batch, rows}, at::kLong);
  out.mask = at::full({batch, 1, rows, columns}, -std::numeric_limits<float>::infinity());
  std::vector<std::int64_t> seen(most, 1);  // the columns [0, seen) of each probe's place
  for (std::int64_t s = 0; s < batch; ++s) {
    const std::vector<Probe>& own = probes[static_cast<std::size_t>(s)];
    for (std::size_t p = 0; p < most; ++p) {
      const std::int64_t row = static_cast<std::int64_t>(p) * size;
      const at::Tensor lines = out.mask[s][0].narrow(0, row, size);
      if (p >= own.size()) {
        lines.narrow(1, 0, 1).zero_();  // padding sees something: a softmax over nothing is NaN
        continue;
      }
      const Probe& probe = own[p];
      lines.narrow(1, 0, probe.shared).zero_();
      lines.narrow(1, probe.own_begin, probe.own_end - probe.own_begin).zero_();
      seen[p] = std::max({seen[p], probe.shared, probe.own_end});
      const TokenIds ids = rows_of(probe, tokens.mask);
      std::copy(ids.begin(), ids.end(),
                out.tokens.mutable_data_ptr<std::int64_t>() + s * rows + row);
      out.positions[s]
          .narrow(0, row, size)
          .copy_(at::arange(probe.position, probe.position + size, at::kLong));
    }
  }
  const std::int64_t step = std::max<std::int64_t>(kProbeRows / size, 1);
  for (std::int64_t p = 0; p < static_cast<std::int64_t>(most); p += step) {
    const std::int64_t end = std::min(p + step, static_cast<std::int64_t>(most));
    const std::int64_t shared = *std::max_element(seen.begin() + p, seen.begin() + end);
    out.chunks.push_back({p * size, end * size, shared, 0, 0});
  }
  return out;
}

/// Probes of the text's blocks after the first one.
std::vector<Probe> text_probes(const TokenIds& ids, std::int64_t block) {
  std::vector<Probe> probes;
  for (std::int64_t begin = block; begin + block <= std::ssize(ids); begin += block) {
    probes.push_back({slice(ids, begin, begin + block), 0, begin, begin, 0, 0});
  }
  return probes;
}

}  // namespace

ReuseBatch make_reuse_batch(const std::vector<TokenIds>& texts, const ReuseTokens& tokens,
                            const ReuseBatchSpec& spec, TaskRandom& random) {
  BatchLayout layout(spec.block_length);
  std::vector<std::vector<Probe>> probes;
  for (const TokenIds& ids : texts) {
    probes.push_back(chosen(text_probes(ids, spec.block_length), spec, random));
    layout.begin_document();
    layout.add(slice(ids, 0, probes.back().back().position), 0, -1, 0);
  }
  return finish(layout, probes, tokens, spec);
}

ReuseBatch make_reuse_batch(const std::vector<TaskDocument>& documents, const TaskTokens& tokens,
                            const ReuseBatchSpec& spec, TaskRandom& random) {
  const std::int64_t block = spec.block_length;
  BatchLayout layout(block);
  std::vector<std::vector<Probe>> probes;
  for (const TaskDocument& document : documents) {
    layout.begin_document();
    const TokenIds context = tokens.encode(document.context);
    const std::int64_t whole = std::ssize(context) / block * block;  // each group repeats the rest
    layout.add(slice(context, 0, whole), 0, -1, 0);
    std::vector<Probe> of_context = text_probes(slice(context, 0, whole), block);
    random.shuffle(of_context);
    of_context.resize(std::min(of_context.size(), kContextProbes));
    std::vector<Probe> all = std::move(of_context);
    for (std::size_t g = 0; g < document.questions.size(); ++g) {
      const TaskQuestion& question = document.questions[g];
      TokenIds ids = slice(context, whole, std::ssize(context));
      const TokenIds asked = tokens.encode(question.question);
      const TokenIds answer = tokens.encode(question.answer);
      ids.insert(ids.end(), asked.begin(), asked.end());
      const std::int64_t answer_begin = std::ssize(ids);
      ids.insert(ids.end(), answer.begin(), answer.end());
      ids.push_back(tokens.end);
      ids.resize((ids.size() + static_cast<std::size_t>(block) - 1) /
                     static_cast<std::size_t>(block) * static_cast<std::size_t>(block),
                 tokens.end);
      const std::int64_t last = std::ssize(ids) - block;
      const std::int64_t first = layout.add(slice(ids, 0, last), whole, static_cast<int>(g), 0);
      for (std::int64_t begin = answer_begin / block * block; begin < std::ssize(ids);
           begin += block) {
        if (whole + begin == 0) continue;  // no prefix, nothing to reuse
        const auto known =
            static_cast<std::size_t>(std::max<std::int64_t>(answer_begin - begin, 0));
        all.push_back(
            {slice(ids, begin, begin + block), known, whole + begin, whole, first, first + begin});
      }
    }
    probes.push_back(chosen(std::move(all), spec, random));
  }
  return finish(layout, probes, {tokens.mask, tokens.end}, spec);
}

}  // namespace blockscope
