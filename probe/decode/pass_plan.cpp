#include "probe/decode/pass_plan.h"

#include <utility>

namespace blockscope {
namespace {

void add_rows(const SequenceState& state, int64_t begin, int64_t count, PassPlan& plan) {
  for (int64_t position = begin; position < begin + count; ++position) {
    plan.ids.push_back(state.tokens[static_cast<size_t>(position)]);
    plan.positions.push_back(position);
  }
}

}  // namespace

PassPlan plan_block_pass(std::vector<SequenceState>& active, const DecodeOptions& options,
                         const KvCache& cache, int64_t pass_number) {
  const int64_t block_length = options.block_length();
  PassPlan plan;
  plan.context.pass = pass_number;
  plan.rows = {0, block_length};
  for (size_t slot = 0; slot < active.size(); ++slot) {
    SequenceState& state = active[slot];
    int64_t context_length = cache.length(static_cast<int64_t>(slot));
    if (state.uncommitted) {
      plan.context.commits.push_back(
          {static_cast<int64_t>(slot), *std::exchange(state.uncommitted, {})});
      context_length += block_length;  // every layer stores them before it reads the prefix
    }
    const SequencePass pass = plan_pass(state, options, context_length);
    if (!pass.computed.empty()) {
      plan.rows = rows_to_compute(pass.masked, options.sub_block_length, /*cached=*/true);
    }
    const bool denoises = pass.kind == PassKind::denoise;
    (denoises ? plan.denoising : plan.committing).push_back(static_cast<int64_t>(slot));
    add_rows(state, pass.block_start + plan.rows.first, plan.rows.count, plan);
    plan.context.sequences.push_back(pass);
  }
  for (const FusedCommit& commit : plan.context.commits) {
    add_rows(active[static_cast<size_t>(commit.slot)], commit.pass.block_start, block_length, plan);
  }
  return plan;
}

}  // namespace blockscope
