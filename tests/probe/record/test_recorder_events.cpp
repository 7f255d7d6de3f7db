// What a decision holds in addition to its tokens: revocations, KLASS's divergence, rows left out.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "probe/record/recorder.h"
#include "tests/decode_record/trace_fixture.h"
#include "tests/support/recorded_run.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

/// A decision of one sequence's block, handed to the recorder as a decoder would.
TEST(RecorderEvents, TokensTakenBackBecomeEventsAndMasks) {
  const fixture::TempDir folder;
  RecorderOptions options = recorder_options(tiny_model(30).config(), RecordLevel::trajectory);
  options.meta.has_revocations = true;
  options.meta.has_kl = true;
  const std::string path = folder.file("revoked.h5");
  {
    TraceWriter writer(path, options.meta);
    Recorder recorder(options, writer);
    SequenceStart start;
    start.prompt = {1, 2};
    start.gen_length = 2 * kTinyBlock;
    recorder.begin_sequence(7, writer.begin_sequence(start), 2);
    const auto step = [&](int64_t number, std::vector<int64_t> transferred,
                          std::vector<Revocation> revoked, double kl) {
      PassContext context;
      context.pass = number - 1;
      context.sequences.emplace_back();
      SequencePass& pass = context.sequences.front();
      pass.sequence = 7;
      pass.block_start = 2 + kTinyBlock;  // the second block of the answer
      pass.step = number;
      pass.computed.assign(kTinyBlock, true);
      pass.computed[3] = number == 1;
      StepDecision decision;
      decision.prediction.token.assign(kTinyBlock, 10 + number);
      decision.prediction.top1 = decision.prediction.token;
      decision.prediction.confidence.assign(kTinyBlock, 0.5F);
      decision.prediction.top1_confidence = decision.prediction.confidence;
      decision.prediction.kl.assign(kTinyBlock, kl);
      decision.prediction.kl[2] = std::nan("");  // not predicted
      decision.transferred = std::move(transferred);
      decision.revoked = std::move(revoked);
      recorder.on_pass({context, kTinyBlock, pass.block_start, 0.0, 0, 0, {decision}});
    };
    step(1, {0, 1}, {}, std::nan(""));
    step(2, {2}, {{1, 11, 0.25F}}, 0.75);
    writer.end_sequence(0, {});
    writer.finish();
  }
  const TraceReader trace(path);
  ASSERT_EQ(trace.revoked(1).size(), 1U);
  EXPECT_EQ(trace.revoked(1)[0].position, kTinyBlock + 1);
  EXPECT_EQ(trace.revoked(1)[0].token, 11);
  EXPECT_EQ(trace.revoked(1)[0].confidence, 0.25F);
  const Frame last = trace.frame(0, 2);
  EXPECT_EQ(last.generated_tokens[kTinyBlock], 11);
  EXPECT_EQ(last.generated_tokens[kTinyBlock + 1], kTinyMask);
  EXPECT_EQ(last.generated_tokens[kTinyBlock + 2], 12);
  EXPECT_EQ(trace.read_ints(Field::step_valid, 1, 1), (std::vector<int32_t>{1, 1, 1, 0}));
  for (const float kl : trace.read_floats(Field::prediction_kl, 0, 1)) EXPECT_TRUE(std::isnan(kl));
  const std::vector<float> kl = trace.read_floats(Field::prediction_kl, 1, 1);
  EXPECT_EQ(kl[1], 0.75F);
  EXPECT_TRUE(std::isnan(kl[2]));
}

}  // namespace
}  // namespace blockscope
