// What a calibration file decides: masks from similarities, and the rule of reuse.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "decode_record/base/error.h"
#include "decode_record/interchange/reuse_file.h"

namespace blockscope {

std::string_view to_string(ReuseGranularity granularity) {
  return granularity == ReuseGranularity::head ? "head" : "kv-group";
}

ReuseGranularity parse_reuse_granularity(std::string_view name) {
  if (name == "head") return ReuseGranularity::head;
  if (name == "kv-group") return ReuseGranularity::kv_group;
  throw UsageError(fmt::format("--granularity: expected head or kv-group, got '{}'", name));
}

HeadMatrix<bool> reuse_mask(const HeadMatrix<double>& similarity, double gamma,
                            ReuseGranularity granularity, const ReuseModel& model,
                            const std::vector<ReusePin>& pins) {
  HeadMatrix<bool> mask;
  for (const std::vector<double>& row : similarity) {
    std::vector<bool> heads(row.size());
    for (std::size_t head = 0; head < row.size(); ++head) heads[head] = row[head] > gamma;
    const std::int64_t kv_heads = model.kv_heads_of(mask.size());
    if (granularity == ReuseGranularity::kv_group && kv_heads > 0) {
      const std::size_t group =
          std::max<std::size_t>(1, row.size() / static_cast<std::size_t>(kv_heads));
      for (std::size_t first = 0; first + group <= row.size(); first += group) {
        const auto begin = heads.begin() + static_cast<std::ptrdiff_t>(first);
        const auto end = begin + static_cast<std::ptrdiff_t>(group);
        std::fill(begin, end, std::all_of(begin, end, [](bool reuse) { return reuse; }));
      }
    }
    mask.push_back(std::move(heads));
  }
  for (const ReusePin& pin : pins) {
    mask[static_cast<std::size_t>(pin.layer)][static_cast<std::size_t>(pin.head)] = pin.reuse;
  }
  return mask;
}

RangeMatrices<double> within_bound(const RangeMatrices<double>& similarity,
                                   const RangeMatrices<double>& lse_drift,
                                   const std::optional<double>& lse_bound) {
  RangeMatrices<double> within = similarity;
  if (!lse_bound) return within;
  for (std::size_t range = 0; range < within.size(); ++range) {
    for (std::size_t layer = 0; layer < within[range].size(); ++layer) {
      for (std::size_t head = 0; head < within[range][layer].size(); ++head) {
        const bool close = lse_drift[range][layer][head] <= *lse_bound;  // false for NaN
        if (!close) within[range][layer][head] = kNotMeasured;
      }
    }
  }
  return within;
}

ReuseMasks reuse_masks(const ReuseFile& file, const std::vector<double>& gammas) {
  ReuseMasks masks{file.reuse.ranges, {}};
  const auto within = within_bound(file.similarity, file.lse_drift, file.lse_bound);
  for (std::size_t range = 0; range < within.size(); ++range) {
    masks.heads.push_back(
        reuse_mask(within[range], gammas[range], file.granularity, file.model, file.pins));
  }
  return masks;
}

ReuseReference parse_reuse_reference(std::string_view where, std::string_view name) {
  const auto* const found = std::ranges::find(kReuseReferences, name);
  if (found != kReuseReferences.end()) {
    return static_cast<ReuseReference>(found - kReuseReferences.begin());
  }
  throw UsageError(fmt::format("{}: expected adjacent or kept, got '{}'", where, name));
}

ReuseRule reuse_rule(const std::optional<std::int64_t>& tau, const std::optional<ReuseCount>& count,
                     const ReuseFile& file) {
  ReuseRule rule;
  if (file.tau) rule = {static_cast<double>(*file.tau), file.tau_counts};
  if (tau) rule.tau = static_cast<double>(*tau);
  if (count) rule.count = *count;
  return rule;
}

}  // namespace blockscope
