// The recorder with FlashBlock, in batches in which only some sequences are recorded, and for
// autoregressive decoding.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <map>
#include <utility>
#include <vector>

#include "probe/policies/exact_policy.h"
#include "probe/policies/flashblock_policy.h"
#include "probe/record/recorder.h"
#include "tests/decode_record/trace_fixture.h"
#include "tests/support/recorded_run.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

/// Bitwise comparison in which NaN equals NaN.
bool identical(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i] && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  }
  return true;
}

class RecorderPolicyTest : public ::testing::Test {
 protected:
  RecordedRun record(AttentionPolicy& policy, const RecorderOptions& options,
                     const DecodeOptions& decode, const std::vector<DecodeRequest>& requests,
                     const std::set<int64_t>& recorded = {}) {
    return record_run(model_, policy, decode, requests, options,
                      folder_.file("run" + std::to_string(runs_++) + ".h5"), recorded);
  }
  std::unique_ptr<AttentionPolicy> flashblock(int64_t tau) const {
    return make_flashblock_policy({2, 4, {static_cast<double>(tau)}, {}});
  }

  fixture::TempDir folder_;
  BlockDiffusionModel model_ = tiny_model(40);
  int runs_ = 0;
};

TEST_F(RecorderPolicyTest, ASequenceLooksTheSameWhoeverElseIsRecorded) {
  // Sequence 1 leaves first; the last slot, not recorded, moves into its place.
  const std::vector<DecodeRequest> requests{tiny_request(0, 9, 30), tiny_request(1, 8, 1),
                                            tiny_request(2, 13, 26), tiny_request(3, 6, 12)};
  const auto policy = make_exact_policy();
  const RecorderOptions options = recorder_options(model_.config(), RecordLevel::sets);
  const RecordedRun all = record(*policy, options, tiny_options(), requests);
  for (const std::set<int64_t>& chosen : {std::set<int64_t>{0, 2}, {2}, {0}, {3}, {1, 2}}) {
    const RecordedRun some = record(*policy, options, tiny_options(), requests, chosen);
    int64_t index = 0;
    for (const int64_t sequence : chosen) {
      SCOPED_TRACE(::testing::Message() << "sequence " << sequence << " of " << chosen.size());
      const auto rows = all.trace.rows_of(sequence);
      const auto same = some.trace.rows_of(index++);
      ASSERT_EQ(rows.size(), same.size());
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_EQ(all.trace.delta(rows[i]), some.trace.delta(same[i]));
        for (const Field field :
             {Field::similarity_external, Field::similarity_internal, Field::reuse_error,
              Field::query_gap, Field::hidden_gap, Field::prediction_kl_step1, Field::set_recall,
              Field::attention_lse_external}) {
          EXPECT_TRUE(identical(all.trace.read_floats(field, rows[i], 1),
                                some.trace.read_floats(field, same[i], 1)))
              << "row " << i << ", field " << static_cast<int>(field);
        }
      }
    }
  }
}

TEST_F(RecorderPolicyTest, ReusedFollowsTheRuleAndTheShadowIsWhatExactGives) {
  DecodeOptions decode = tiny_options();
  decode.unmasking.denoising_steps = 3;  // 2, 1, 1 tokens: M = 2 recomputes, M = 1 reuses
  decode.shadow = true;
  const std::vector<DecodeRequest> requests{tiny_request(0, 9, 14), tiny_request(1, 20, 7)};
  RecorderOptions options = recorder_options(model_.config(), RecordLevel::outputs);
  options.meta.has_shadow = true;
  const auto policy = flashblock(2);
  const RecordedRun run = record(*policy, options, decode, requests);
  const StepColumns steps = run.trace.steps(0, run.trace.info().num_rows);
  int64_t reused_rows = 0;
  for (int64_t row = 0; row < steps.count; ++row) {
    const size_t at = static_cast<size_t>(row);
    if (steps.kind[at] != static_cast<uint8_t>(PassKind::denoise)) continue;
    const bool expected = steps.step[at] > 1 && steps.since_read[at] < 2;
    EXPECT_EQ(steps.rows_read[at], expected ? 0 : run.trace.info().meta.block_length);
    reused_rows += expected;
    for (int64_t layer = 0; layer < 2; ++layer) {
      for (const int32_t reused : run.trace.read_ints_at(Field::attention_reused, row, layer)) {
        EXPECT_EQ(reused != 0, expected);
      }
      const auto used = run.trace.read_floats_at(Field::attention_external, row, layer);
      const auto exact = run.trace.read_floats_at(Field::shadow_external, row, layer);
      const auto error = run.trace.read_floats_at(Field::shadow_output_error, row, layer);
      if (!expected) {
        EXPECT_TRUE(identical(used, exact));
        for (const float value : error) EXPECT_EQ(value, 0.0F);
      } else if (steps.changed[at] > 0) {
        EXPECT_FALSE(identical(used, exact));
        for (const float value : error) EXPECT_GT(value, 0.0F);
      }
    }
  }
  EXPECT_GT(reused_rows, 3);
}

TEST_F(RecorderPolicyTest, WithoutAShadowAPolicyThatReusesGivesNoExactStatistics) {
  RecorderOptions options = recorder_options(model_.config(), RecordLevel::sets);
  options.exact_known = false;
  const auto policy = flashblock(3);
  const RecordedRun run = record(*policy, options, tiny_options(), {tiny_request(0, 9, 10)});
  for (int64_t row = 0; row < run.trace.info().num_rows; ++row) {
    for (const Field field : {Field::similarity_external, Field::external_mass, Field::reuse_error,
                              Field::set_recall, Field::set_probability}) {
      for (const float value : run.trace.read_floats(field, row, 1)) {
        EXPECT_TRUE(std::isnan(value));
      }
    }
  }
}

TEST_F(RecorderPolicyTest, TheReuseErrorIsZeroWhereTheRuleRecomputesAndGrowsFromTheSourceStep) {
  const auto policy = make_exact_policy();
  const RecorderOptions options = recorder_options(model_.config(), RecordLevel::summary);
  const RecordedRun run =
      record(*policy, options, tiny_options(), {tiny_request(0, 9, 14), tiny_request(1, 21, 9)});
  const StepColumns steps = run.trace.steps(0, run.trace.info().num_rows);
  int64_t with_error = 0;
  std::map<std::pair<int64_t, size_t>, int64_t> since_read;  // by sequence, tau
  for (int64_t row = 0; row < steps.count; ++row) {
    const size_t at = static_cast<size_t>(row);
    if (steps.kind[at] != static_cast<uint8_t>(PassKind::denoise)) continue;
    const auto error = run.trace.read_floats(Field::reuse_error, row, 1);  // [tau, L, H, sum]
    for (size_t tau = 0; tau < kReuseTaus.size(); ++tau) {
      int64_t& since = since_read[{steps.sequence[at], tau}];
      since = steps.step[at] == 1 ? 0 : since + steps.changed[at];
      const bool reuses = steps.step[at] > 1 && static_cast<float>(since) < kReuseTaus[tau];
      if (!reuses) since = 0;
      for (size_t head = 0; head < 2 * 4; ++head) {
        const float* sums = &error[(tau * 8 + head) * 4];
        EXPECT_GT(sums[2], 0.0F);
        if (!reuses) {
          EXPECT_EQ(sums[0], 0.0F);
          EXPECT_EQ(sums[1], 0.0F);
          EXPECT_EQ(sums[3], sums[2]);  // sum dot = sum ref^2
        } else if (since > 0) {
          EXPECT_GT(sums[0], 0.0F);
          ++with_error;
        }
      }
    }
  }
  EXPECT_GT(with_error, 100);
}

TEST_F(RecorderPolicyTest, AutoregressiveRowsHoldTheTokenThatFollows) {
  DecodeOptions decode = tiny_options();
  decode.mask_token_id = -1;
  decode.unmasking.block_length = 1;
  decode.unmasking.denoising_steps = 1;
  const std::vector<DecodeRequest> requests{tiny_request(0, 7, 9), tiny_request(1, 2, 5)};
  const auto policy = make_exact_policy();
  const auto plain = decode_all(model_, *policy, decode, requests);
  const RecordedRun run = record(
      *policy, recorder_options(model_.config(), RecordLevel::full, decode), decode, requests);
  for (int64_t sequence = 0; sequence < 2; ++sequence) {
    const auto& expected = plain[static_cast<size_t>(sequence)].generated;
    EXPECT_EQ(run.outcomes[static_cast<size_t>(sequence)].generated, expected);
    std::vector<int64_t> tokens;
    for (const int64_t row : run.trace.rows_of(sequence)) {
      const StepColumns steps = run.trace.steps(row, 1);
      if (steps.kind[0] != static_cast<uint8_t>(PassKind::denoise)) continue;
      const int32_t top1 = run.trace.read_ints(Field::prediction_token, row, 1)[0];
      EXPECT_EQ(run.trace.prefix(Field::prefix_key, row, 1).positions.size(),
                static_cast<size_t>(steps.context_length[0]));
      tokens.push_back(top1);
    }
    EXPECT_EQ(tokens, expected);
    EXPECT_EQ(run.trace.frame(sequence, static_cast<int64_t>(expected.size())).generated_tokens,
              expected);
  }
}

}  // namespace
}  // namespace blockscope
