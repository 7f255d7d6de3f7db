// Whole runs on the emulated cuda:0 are recorded as on the host, however late its copies come.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "probe/policies/exact_policy.h"
#include "tests/decode_record/trace_fixture.h"
#include "tests/support/emulated_cuda.h"
#include "tests/support/recorded_run.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

void expect_near(const std::vector<float>& expected, const std::vector<float>& got) {
  ASSERT_EQ(expected.size(), got.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isfinite(expected[i])) {
      ASSERT_NEAR(expected[i], got[i], 1e-4F * std::max(1.0F, std::abs(expected[i]))) << i;
    } else {
      ASSERT_EQ(std::isnan(expected[i]), std::isnan(got[i])) << i;
      ASSERT_EQ(std::isinf(expected[i]), std::isinf(got[i])) << i;
    }
  }
}

/// Everything of some sequences.
void compare_runs(const BlockDiffusionModel& host, const DecodeOptions& decode,
                  const std::vector<DecodeRequest>& requests, RecordLevel level, int delay_ms) {
  SCOPED_TRACE(delay_ms);
  const fixture::TempDir folder;
  RecorderOptions options = recorder_options(host.config(), level, decode);
  options.meta.bidirectional = options.meta.has_cache = decode.bidirectional;
  options.meta.has_shadow = decode.shadow;
  const auto policy = make_exact_policy();
  const RecordedRun expected =
      record_run(host, *policy, decode, requests, options, folder.file("host.h5"));
  emulated_cuda::before_event_waits(
      [delay_ms] { std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms)); });
  const RecordedRun got = record_run(moved_to(at::kCUDA, host), *policy, decode, requests, options,
                                     folder.file("device.h5"));
  emulated_cuda::before_event_waits({});
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(got.outcomes[i].generated, expected.outcomes[i].generated);
  }
  std::vector<Field> fields{Field::prediction_confidence};
  if (decode.shadow) {
    fields.insert(fields.end(), {Field::shadow_key_cosine, Field::shadow_value_cosine,
                                 Field::shadow_attention_cosine, Field::shadow_output_error});
  }
  if (level >= RecordLevel::summary) {
    fields.insert(fields.end(), {Field::attention_lse_external, Field::attention_lse_internal,
                                 Field::query_gap, Field::hidden_gap, Field::reuse_error,
                                 Field::similarity_external, Field::prediction_kl_step1});
  }
  if (level >= RecordLevel::full) {
    fields.insert(fields.end(),
                  {Field::set_probability, Field::set_recall, Field::attention_external,
                   Field::attention_internal, Field::query, Field::hidden, Field::block_key});
  }
  const int64_t rows = expected.trace.info().num_rows;
  ASSERT_EQ(got.trace.info().num_rows, rows);
  for (int64_t row = 0; row < rows; ++row) {
    for (const Field field : fields) {
      SCOPED_TRACE(std::to_string(row) + ", field " + std::to_string(static_cast<int>(field)));
      expect_near(expected.trace.read_floats(field, row, 1), got.trace.read_floats(field, row, 1));
    }
    if (level >= RecordLevel::full) {
      for (const Field field : {Field::set_topk, Field::set_topk_token, Field::set_union_size}) {
        SCOPED_TRACE(std::to_string(row) + ", field " + std::to_string(static_cast<int>(field)));
        EXPECT_EQ(expected.trace.read_ints(field, row, 1), got.trace.read_ints(field, row, 1));
      }
    }
  }
  for (int64_t row = 0; decode.bidirectional && row < rows; ++row) {
    const std::vector<LayerRanges> want = expected.trace.cache(row);
    const std::vector<LayerRanges> had = got.trace.cache(row);
    ASSERT_EQ(want.size(), had.size());
    for (size_t layer = 0; layer < want.size(); ++layer) {
      SCOPED_TRACE(std::to_string(row) + ", layer " + std::to_string(layer));
      EXPECT_EQ(want[layer].query, had[layer].query);
      EXPECT_EQ(want[layer].key, had[layer].key);
      EXPECT_EQ(want[layer].value, had[layer].value);
    }
  }
}

/// Two of three sequences leave the batch before the last.
void compare_batches(RecordLevel level, int delay_ms) {
  compare_runs(tiny_model(), tiny_options(),
               {tiny_request(0, 6, 5), tiny_request(1, 17, 10), tiny_request(2, 3, 14)}, level,
               delay_ms);
}

TEST(LateRuns, AreRecordedAsOnTheHost) {
  for (const RecordLevel level :
       {RecordLevel::trajectory, RecordLevel::summary, RecordLevel::full}) {
    SCOPED_TRACE(static_cast<int>(level));
    compare_batches(level, 0);
  }
}

TEST(LateRuns, AreRecordedAsOnTheHostWhereDecodingWaits) { compare_batches(RecordLevel::full, 20); }

/// Of some layers no row of the block is chosen, of others one, all, or rows of the prompt too.
TEST(LateRuns, RowsThatTheDeviceChoseAreRecordedAsOnTheHost) {
  ModelConfig config = tiny_config();
  config.attention_bidirectional = true;
  config.num_layers = 4;
  DecodeOptions options = tiny_options();
  options.bidirectional = true;
  options.shadow = true;
  options.cache.cache = "dllm-cache";
  options.cache.prompt_interval = 4;
  options.cache.answer_interval = 6;
  for (const double ratio : {0.0, 0.1, 0.3, 0.9}) {
    SCOPED_TRACE(ratio);
    options.cache.transfer_ratio = ratio;
    compare_runs(tiny_model(3, config), options, {tiny_request(0, 6, 12)}, RecordLevel::full, 0);
  }
  options.cache.cache = "d2cache";
  options.cache.current_k = 3;
  compare_runs(tiny_model(3, config), options, {tiny_request(0, 6, 12)}, RecordLevel::full, 0);
}

}  // namespace
}  // namespace blockscope
