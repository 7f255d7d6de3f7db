// How often the host waits for the device in a pass, counted on the emulated cuda:0 with emulated
// kernels. A GPU has nothing to do from a wait on until the host has queued what comes next, so
// the numbers may only fall.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "probe/policies/flashblock_policy.h"
#include "probe/policies/mage_policy.h"
#include "probe/policies/oracle_policy.h"
#include "probe/policies/quest_policy.h"
#include "probe/policies/random_policy.h"
#include "probe/policies/recent_policy.h"
#include "probe/policies/sparsed_policy.h"
#include "tests/decode_record/trace_fixture.h"
#include "tests/support/emulated_cuda.h"
#include "tests/support/recorded_run.h"

namespace blockscope {
namespace {

using namespace testing;

constexpr int64_t kLayers = 2;  // of tiny_config()
constexpr int64_t kPrompt = 9;  // ends in the third block of four positions
constexpr int64_t kGenerated = 12;

BlockDiffusionModel on_cuda(const BlockDiffusionModel& host) { return moved_to(at::kCUDA, host); }

/// The most waits of the decoding thread in any pass but the prefill, which is the first.
int64_t waits_of_a_pass(const BlockDiffusionModel& model, AttentionPolicy& policy,
                        const DecodeOptions& options, DecodeObserver* observer = nullptr) {
  struct Pass {
    int64_t waits = 0, launches = 0, graphs = 0;
  };
  std::vector<Pass> passes;
  int64_t before = emulated_cuda::waits_of_this_thread();
  DecodeCallbacks callbacks;
  callbacks.observer = observer;
  callbacks.interrupted = [&] {
    const int64_t now = emulated_cuda::waits_of_this_thread();
    const emulated_cuda::Counters done = emulated_cuda::counters();
    passes.push_back({now - std::exchange(before, now), done.launches, done.graphs});
    emulated_cuda::reset_counters();
    return false;
  };
  int64_t next_pass = 0;
  emulated_cuda::reset_counters();
  decode_batch(model, policy, options, {tiny_request(0, kPrompt, kGenerated)}, next_pass,
               callbacks);
  EXPECT_GE(passes.size(), 13);
  int64_t most = 0;
  for (size_t i = 1; i + 1 < passes.size(); ++i) {
    EXPECT_GE(passes[i].launches, passes[i].graphs > 0 ? 0 : kLayers)
        << "the kernels didn't run in pass " << i;
    most = std::max(most, passes[i].waits);
  }
  return most;
}

SelectionOptions selection(bool residual = false) {
  SelectionOptions options;
  options.num_layers = kLayers;
  options.k = 5;
  options.residual = residual;
  return options;
}

TEST(DeviceWaits, OnceAStepUnderEveryPolicy) {
  const BlockDiffusionModel model = on_cuda(tiny_model());
  std::map<std::string, std::unique_ptr<AttentionPolicy>> policies;
  policies["exact"] = make_exact_policy();
  policies["flashblock"] = make_flashblock_policy({kLayers, model.config().num_heads, {2}, {}});
  policies["mage"] = make_mage_policy(selection());
  policies["mage+flashblock"] = make_mage_policy(selection(true));
  policies["sparsed"] = make_sparsed_policy(selection(), SparseDScope::run);
  policies["sparsed+flashblock"] = make_sparsed_policy(selection(true), SparseDScope::block);
  policies["quest"] = make_quest_policy(selection(), 4);
  policies["oracle"] = make_oracle_policy(selection());
  policies["random"] = make_random_policy(selection(), 1);
  policies["recent"] = make_recent_policy(selection());
  for (const auto& [name, policy] : policies) {
    SCOPED_TRACE(name);
    // Which tokens were best, and how probable they are.
    EXPECT_EQ(waits_of_a_pass(model, *policy, tiny_options()), 1);
  }
}

TEST(DeviceWaits, OnceAStepWhereATokenIsDrawn) {
  const BlockDiffusionModel model = on_cuda(tiny_model());
  DecodeOptions options = tiny_options();
  options.sampling.temperature = 0.7;  // the logits
  EXPECT_EQ(waits_of_a_pass(model, *make_exact_policy(), options), 1);
}

constexpr const char* kCanvasCaches[] = {"none", "prefix", "dual", "dllm-cache", "d2cache"};

BlockDiffusionModel bidirectional_model() {
  ModelConfig config = tiny_config();
  config.attention_bidirectional = true;
  return on_cuda(tiny_model(3, config));
}

/// dLLM-Cache takes every way that it has: refreshes of either side, and passes with neither.
DecodeOptions canvas_options(std::string cache) {
  DecodeOptions options = tiny_options();
  options.bidirectional = true;
  options.cache.cache = cache;
  options.cache.prompt_interval = 5;
  options.cache.answer_interval = 3;
  options.cache.current_k = 3;
  return options;
}

TEST(DeviceWaits, OnceAStepUnderEveryCacheOfABidirectionalModel) {
  const BlockDiffusionModel model = bidirectional_model();
  for (const std::string cache : kCanvasCaches) {
    SCOPED_TRACE(cache);
    EXPECT_EQ(waits_of_a_pass(model, *make_exact_policy(), canvas_options(cache)), 1);
  }
}

TEST(DeviceWaits, OnceAStepOfAMixtureOfExperts) {
  ModelConfig config = tiny_mixture_config();
  for (const int64_t sparse : {1, 2}) {
    SCOPED_TRACE(sparse);
    config.moe->sparse = {sparse == 2, true};
    const BlockDiffusionModel host = tiny_model(5, config);
    EXPECT_EQ(waits_of_a_pass(packed_on(at::kCUDA, host), *make_exact_policy(), tiny_options()), 1);
    // Without a product of all experts, the host queues each one, and must know the rows.
    EXPECT_EQ(waits_of_a_pass(on_cuda(host), *make_exact_policy(), tiny_options()), 1 + sparse);
  }
}

int64_t waits_of_a_recorded_pass(const BlockDiffusionModel& model, const DecodeOptions& decode,
                                 RecordLevel level) {
  const fixture::TempDir folder;
  const std::string path = folder.file("run.h5");
  RecorderOptions options = recorder_options(model.config(), level, decode);
  options.meta.bidirectional = options.meta.has_cache = decode.bidirectional;
  options.meta.has_shadow = decode.shadow;
  TraceWriter writer(path, options.meta);
  Recorder recorder(options, writer);
  const DecodeRequest request = tiny_request(0, kPrompt, kGenerated);
  SequenceStart start;
  start.prompt = request.prompt;
  start.gen_length = generated_positions(kPrompt, request.gen_length, decode);
  recorder.begin_sequence(0, writer.begin_sequence(std::move(start)), kPrompt);
  LateRecorder late(recorder, at::kCUDA);
  const int64_t waits = waits_of_a_pass(model, *make_exact_policy(), decode, &late);
  late.drain();
  writer.end_sequence(0, {FinishReason::unfinished, "", {}});
  writer.finish();
  return waits;
}

TEST(DeviceWaits, OnceAStepAtEveryLevel) {
  const BlockDiffusionModel model = on_cuda(tiny_model());
  for (const RecordLevel level : {RecordLevel::trajectory, RecordLevel::summary, RecordLevel::sets,
                                  RecordLevel::outputs, RecordLevel::full}) {
    SCOPED_TRACE(static_cast<int>(level));
    EXPECT_EQ(waits_of_a_recorded_pass(model, tiny_options(), level), 1);
  }
}

TEST(DeviceWaits, OnceARecordedStepOfABidirectionalModel) {
  const BlockDiffusionModel model = bidirectional_model();
  for (const std::string cache : kCanvasCaches) {
    SCOPED_TRACE(cache);
    DecodeOptions options = canvas_options(cache);
    EXPECT_EQ(waits_of_a_recorded_pass(model, options, RecordLevel::full), 1);
    if (cache == "none") continue;
    options.shadow = true;  // how stale the cache is
    EXPECT_EQ(waits_of_a_recorded_pass(model, options, RecordLevel::full), 1);
  }
}

}  // namespace
}  // namespace blockscope
