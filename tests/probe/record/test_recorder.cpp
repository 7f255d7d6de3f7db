// What the recorder writes, read back and compared with float64 recomputations from the recorded
// queries, keys and values; filters; and that recording never changes a token.
#include "probe/policies/exact_policy.h"
#include "probe/record/recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/decode_record/trace_fixture.h"
#include "tests/support/compare.h"
#include "tests/support/recorded_run.h"
#include "tests/support/reference.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

constexpr int64_t kHeads = 4;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kDim = 10;

std::vector<DecodeRequest> three_requests() {
  return {tiny_request(0, 6, 5), tiny_request(1, 17, 10), tiny_request(2, 3, 14)};
}

/// Row r of an array [rows, kDim] stored flat.
Row row_at(const std::vector<float>& flat, int64_t r) {
  const auto begin = flat.begin() + r * kDim;
  return {begin, begin + kDim};
}

/// Everything one denoising row at level full holds about a layer, as float64 rows.
struct LayerRow {
  std::vector<float> query, block_key, block_value;  // [H, B, D], [K, B, D] twice
  TraceReader::Prefix key, value;                    // [N, K, D]

  LayerRow(const TraceReader& trace, int64_t row, int64_t layer)
      : query(trace.read_floats_at(Field::query, row, layer)),
        block_key(trace.read_floats_at(Field::block_key, row, layer)),
        block_value(trace.read_floats_at(Field::block_value, row, layer)),
        key(trace.prefix(Field::prefix_key, row, layer)),
        value(trace.prefix(Field::prefix_value, row, layer)) {}

  Row q(int64_t head, int64_t i) const { return row_at(query, head * kTinyBlock + i); }

  ReferenceRow external(int64_t head, int64_t i) const {
    return attention_reference(q(head, i), prefix_rows(key, head), prefix_rows(value, head),
                               1.0 / std::sqrt(static_cast<double>(kDim)));
  }
  ReferenceRow internal(int64_t head, int64_t i) const {
    return attention_reference(q(head, i), block_rows(block_key, head),
                               block_rows(block_value, head),
                               1.0 / std::sqrt(static_cast<double>(kDim)));
  }
  std::vector<Row> prefix_rows(const TraceReader::Prefix& side, int64_t head) const {
    std::vector<Row> rows;
    const int64_t length = static_cast<int64_t>(side.positions.size());
    for (int64_t j = 0; j < length; ++j) {
      rows.push_back(row_at(side.values, j * kKvHeads + head / (kHeads / kKvHeads)));
    }
    return rows;
  }
  static std::vector<Row> block_rows(const std::vector<float>& side, int64_t head) {
    std::vector<Row> rows;
    for (int64_t j = 0; j < kTinyBlock; ++j) {
      rows.push_back(row_at(side, head / (kHeads / kKvHeads) * kTinyBlock + j));
    }
    return rows;
  }
};

class RecorderTest : public ::testing::Test {
 protected:
  RecordedRun record(RecordLevel level, const std::string& name = "run.h5") {
    return record_with(recorder_options(model_.config(), level), name);
  }
  RecordedRun record_with(const RecorderOptions& options, const std::string& name = "run.h5",
                          const std::set<int64_t>& recorded = {}) {
    const auto policy = make_exact_policy();
    return record_run(model_, *policy, tiny_options(), three_requests(), options,
                      folder_.file(name), recorded);
  }
  /// Denoising rows of all sequences.
  static std::vector<int64_t> denoising_rows(const TraceReader& trace) {
    const StepColumns steps = trace.steps(0, trace.info().num_rows);
    std::vector<int64_t> rows;
    for (int64_t row = 0; row < steps.count; ++row) {
      if (steps.kind[static_cast<size_t>(row)] == static_cast<uint8_t>(PassKind::denoise)) {
        rows.push_back(row);
      }
    }
    return rows;
  }

  fixture::TempDir folder_;
  BlockDiffusionModel model_ = tiny_model(30);
};

TEST_F(RecorderTest, TokensAreTheSameWithoutAnObserverAndAtEveryLevel) {
  const auto plain = decode_exact(model_, tiny_options(), three_requests());
  for (const RecordLevel level : {RecordLevel::trajectory, RecordLevel::summary, RecordLevel::sets,
                                  RecordLevel::outputs, RecordLevel::full}) {
    SCOPED_TRACE(to_string(level));
    const std::string name = std::string(to_string(level)) + ".h5";
    const RecordedRun run = record(level, name);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(run.outcomes[i].generated, plain[i].generated);
      const int64_t sequence = static_cast<int64_t>(i);
      const Frame last = run.trace.frame(sequence, plain[i].denoising_steps);
      EXPECT_EQ(last.generated_tokens, plain[i].generated);
    }
  }
}

// Without those of decided positions the LM head may leave them out: the others do not change.
TEST_F(RecorderTest, PredictionsOfMaskedPositionsAloneAreTheSame) {
  for (const std::string strategy : {"low_confidence_dynamic", "klass"}) {
    SCOPED_TRACE(strategy);
    DecodeOptions decode = tiny_options();
    decode.unmasking.strategy = strategy;
    for (const bool packed : {false, true}) {
      BlockDiffusionModel model = tiny_model(30);
      if (packed) model = std::move(model).packed();
      RecorderOptions options = recorder_options(model.config(), RecordLevel::summary, decode);
      const auto policy = make_exact_policy();
      const auto run = [&](const char* name) {
        return record_run(model, *policy, decode, three_requests(), options,
                          folder_.file(strategy + std::to_string(packed) + name));
      };
      const RecordedRun all = run("all.h5");
      options.every_prediction = false;
      const RecordedRun masked = run("masked.h5");
      int64_t left_out = 0;
      for (size_t i = 0; i < all.outcomes.size(); ++i) {
        EXPECT_EQ(masked.outcomes[i].generated, all.outcomes[i].generated);
      }
      for (const int64_t row : denoising_rows(all.trace)) {
        const auto want = all.trace.read_ints_at(Field::prediction_token, row, kAllLayers);
        const auto got = masked.trace.read_ints_at(Field::prediction_token, row, kAllLayers);
        const auto kl = all.trace.read_floats_at(Field::prediction_kl_step1, row, kAllLayers);
        const auto masked_kl =
            masked.trace.read_floats_at(Field::prediction_kl_step1, row, kAllLayers);
        const auto confidence =
            masked.trace.read_floats_at(Field::prediction_confidence, row, kAllLayers);
        for (size_t p = 0; p < want.size(); ++p) {
          EXPECT_EQ(std::isnan(masked_kl[p]), std::isnan(kl[p]));
          if (!std::isnan(kl[p])) {
            EXPECT_NEAR(masked_kl[p], kl[p], 1e-6F);
          }
          EXPECT_EQ(std::isnan(confidence[p]), got[p] == -1);
          if (got[p] == -1) {
            ++left_out;
          } else {
            EXPECT_EQ(got[p], want[p]);
          }
        }
      }
      EXPECT_GT(left_out, 20);
    }
  }
}

TEST_F(RecorderTest, AttentionEqualsFloat64OverTheRecordedKeys) {
  const RecordedRun run = record(RecordLevel::full);
  int64_t without_prefix = 0;
  for (const int64_t row : denoising_rows(run.trace)) {
    const StepColumns steps = run.trace.steps(row, 1);
    without_prefix += steps.context_length[0] == 0;
    for (int64_t layer = 0; layer < 2; ++layer) {
      const LayerRow recorded(run.trace, row, layer);
      ASSERT_EQ(static_cast<int32_t>(recorded.key.positions.size()), steps.context_length[0]);
      std::vector<double> external, internal, lse_external, lse_internal;
      for (int64_t head = 0; head < kHeads; ++head) {
        for (int64_t i = 0; i < kTinyBlock; ++i) {
          const ReferenceRow out = recorded.external(head, i);
          const ReferenceRow in = recorded.internal(head, i);
          external.insert(external.end(), out.output.begin(), out.output.end());
          internal.insert(internal.end(), in.output.begin(), in.output.end());
          lse_external.push_back(out.lse);
          lse_internal.push_back(in.lse);
        }
      }
      const auto read = [&](Field field) {
        return doubles(run.trace.read_floats_at(field, row, layer));
      };
      const Limits limits{1e-9, 1e-3};
      EXPECT_TRUE(close_to(read(Field::attention_external), external, limits));
      EXPECT_TRUE(close_to(read(Field::attention_internal), internal, limits));
      EXPECT_TRUE(close_to(read(Field::attention_lse_external), lse_external, limits));
      EXPECT_TRUE(close_to(read(Field::attention_lse_internal), lse_internal, limits));
    }
  }
  EXPECT_GT(without_prefix, 0) << "the prompt of 3 tokens begins without a prefix";
}

TEST_F(RecorderTest, SimilarityAndMassCompareAStepWithTheOneBeforeInItsBlock) {
  const RecordedRun run = record(RecordLevel::full);
  std::map<int32_t, int64_t> previous;  // by sequence: its last denoising row
  int64_t compared = 0;
  for (const int64_t row : denoising_rows(run.trace)) {
    const StepColumns steps = run.trace.steps(row, 1);
    for (int64_t layer = 0; layer < 2; ++layer) {
      const LayerRow now(run.trace, row, layer);
      const auto mass = run.trace.read_floats_at(Field::external_mass, row, layer);
      const auto similarity = run.trace.read_floats_at(Field::similarity_external, row, layer);
      const auto inside = run.trace.read_floats_at(Field::similarity_internal, row, layer);
      for (int64_t head = 0; head < kHeads; ++head) {
        const size_t at = static_cast<size_t>(head);
        if (steps.context_length[0] == 0) {
          EXPECT_TRUE(std::isnan(mass[at]) && std::isnan(similarity[at]));
        }
        if (steps.step[0] == 1) {
          EXPECT_TRUE(std::isnan(similarity[at]) && std::isnan(inside[at]));
          continue;
        }
        const LayerRow before(run.trace, previous.at(steps.sequence[0]), layer);
        double cos_external = 0.0, cos_internal = 0.0, share = 0.0;
        for (int64_t i = 0; i < kTinyBlock; ++i) {
          const ReferenceRow out = now.external(head, i);
          const ReferenceRow in = now.internal(head, i);
          cos_external +=
              cosine_reference(out.output, before.external(head, i).output) / kTinyBlock;
          cos_internal += cosine_reference(in.output, before.internal(head, i).output) / kTinyBlock;
          share += std::exp(out.lse) / (std::exp(in.lse) + std::exp(out.lse)) / kTinyBlock;
        }
        EXPECT_NEAR(inside[at], cos_internal, 2e-5);
        if (steps.context_length[0] == 0) continue;
        EXPECT_NEAR(similarity[at], cos_external, 2e-5);
        EXPECT_NEAR(mass[at], share, 2e-5);
        ++compared;
      }
    }
    previous[steps.sequence[0]] = row;
  }
  EXPECT_GT(compared, 50);
}

TEST_F(RecorderTest, SetsHoldThePositionsOfLargestMeanProbability) {
  const RecordedRun run = record(RecordLevel::full);
  std::map<int32_t, std::vector<int32_t>> first;  // by sequence and layer: step 1's set
  for (const int64_t row : denoising_rows(run.trace)) {
    const StepColumns steps = run.trace.steps(row, 1);
    for (int64_t layer = 0; layer < 2; ++layer) {
      const LayerRow recorded(run.trace, row, layer);
      const auto topk = run.trace.read_ints_at(Field::set_topk, row, layer);
      const auto probability = run.trace.read_floats_at(Field::set_probability, row, layer);
      const auto recall = run.trace.read_floats_at(Field::set_recall, row, layer);
      auto& anchor = first[steps.sequence[0] * 2 + static_cast<int32_t>(layer)];
      if (steps.step[0] == 1) anchor = topk;
      for (int64_t kv = 0; kv < kKvHeads; ++kv) {
        std::vector<Row> queries;
        for (int64_t head = 2 * kv; head < 2 * kv + 2; ++head) {
          for (int64_t i = 0; i < kTinyBlock; ++i) queries.push_back(recorded.q(head, i));
        }
        const auto mean = mean_probability_reference(
            queries, recorded.prefix_rows(recorded.key, 2 * kv), 1.0 / std::sqrt(10.0));
        const auto expected = top_k_reference(mean, 5);
        int64_t kept = 0;
        for (size_t r = 0; r < 5; ++r) {
          const size_t at = static_cast<size_t>(kv) * 5 + r;
          if (r >= expected.size()) {
            EXPECT_EQ(topk[at], -1);
            continue;
          }
          EXPECT_EQ(topk[at], expected[r]);
          EXPECT_NEAR(probability[at], mean[static_cast<size_t>(expected[r])], 1e-5);
          const auto begin = anchor.begin() + kv * 5;
          kept += std::count(begin, begin + 5, topk[at]);
        }
        const float got = recall[static_cast<size_t>(kv)];
        if (steps.step[0] == 1 || steps.context_length[0] <= 5) {
          EXPECT_TRUE(std::isnan(got));
        } else {
          EXPECT_FLOAT_EQ(got, static_cast<float>(kept) / 5.0F);
        }
      }
    }
  }
}

TEST_F(RecorderTest, FiltersLeaveArraysOutButNotTheTrajectory) {
  const RecordedRun all = record(RecordLevel::outputs, "all.h5");
  RecorderOptions options = recorder_options(model_.config(), RecordLevel::outputs);
  options.filter.steps = {2, 3};
  options.filter.blocks = {2, 5};
  options.filter.sequences = {1, 2};
  options.meta.layers = {1};
  options.meta.heads = {1, 3};
  options.meta.kv_heads = {0, 1};
  const RecordedRun some = record_with(options, "some.h5");
  ASSERT_EQ(some.trace.info().num_rows, all.trace.info().num_rows);
  const StepColumns steps = some.trace.steps(0, some.trace.info().num_rows);
  int64_t recorded_rows = 0;
  for (const int64_t row : denoising_rows(all.trace)) {
    const size_t at = static_cast<size_t>(row);
    EXPECT_EQ(some.trace.delta(row), all.trace.delta(row));
    EXPECT_EQ(some.trace.read_ints(Field::prediction_token, row, 1),
              all.trace.read_ints(Field::prediction_token, row, 1));
    const bool wanted = (steps.step[at] == 2 || steps.step[at] == 3) &&
                        (steps.block[at] == 2 || steps.block[at] == 5) && steps.sequence[at] >= 1;
    EXPECT_EQ(steps.recorded[at] != 0, wanted) << "row " << row;
    EXPECT_EQ(some.trace.written(Field::attention_external, row, 0), wanted);
    if (!wanted) continue;
    ++recorded_rows;
    const auto part = some.trace.read_floats_at(Field::attention_external, row, 0);
    const auto whole = all.trace.read_floats_at(Field::attention_external, row, 1);
    const auto similarity = some.trace.read_floats_at(Field::similarity_external, row, 0);
    const auto similarity_all = all.trace.read_floats_at(Field::similarity_external, row, 1);
    for (size_t h = 0; h < 2; ++h) {
      const int64_t size = kTinyBlock * kDim;
      const auto begin = whole.begin() + static_cast<int64_t>(2 * h + 1) * size;
      EXPECT_TRUE(std::equal(begin, begin + size, part.begin() + static_cast<int64_t>(h) * size));
      EXPECT_EQ(similarity[h], similarity_all[2 * h + 1]);
    }
  }
  EXPECT_GT(recorded_rows, 2);
}

}  // namespace
}  // namespace blockscope
