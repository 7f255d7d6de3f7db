// What counting reads costs a run on a device (PassReads): the counts are the CPU's, and the host
// waits for them once a step, after the step.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "probe/policies/flashblock_policy.h"
#include "probe/policies/mage_policy.h"
#include "probe/verify/free_run.h"
#include "tests/support/emulated_cuda.h"
#include "tests/support/tiny_model.h"

namespace blockscope {
namespace {

using namespace testing;

std::vector<std::unique_ptr<AttentionPolicy>> policies(const ModelConfig& config) {
  SelectionOptions selection;
  selection.num_layers = config.num_layers;
  selection.k = 5;
  std::vector<std::unique_ptr<AttentionPolicy>> made;
  made.push_back(make_exact_policy());
  made.push_back(make_flashblock_policy({config.num_layers, config.num_heads, {2}, {}}));
  made.push_back(make_mage_policy(selection));
  return made;
}

TEST(DeviceReads, AreTheCpusAndWaitOnceAStep) {
  ModelConfig config = tiny_config();
  config.num_layers = 5;
  const BlockDiffusionModel host = tiny_model(7, config);
  const BlockDiffusionModel device = moved_to(at::kCUDA, host);
  const DecodeOptions options = tiny_options();
  const std::vector<DecodeRequest> requests{tiny_request(0, 9, 16), tiny_request(1, 14, 16)};
  for (size_t p = 0; p < policies(config).size(); ++p) {
    SCOPED_TRACE(p);
    LayerSizes shape;
    shape.num_layers = config.num_layers;
    shape.num_heads = config.num_heads;
    shape.num_kv_heads = config.num_kv_heads;
    FreeRunObserver here(options, shape), there(options, shape);
    decode_all(host, *policies(config)[p], options, requests, &here);
    emulated_cuda::reset_counters();
    decode_all(device, *policies(config)[p], options, requests, &there);
    EXPECT_EQ(there.reads, here.reads);
    EXPECT_GT(here.reads.total_rows(), 0);
    // A step's tokens, and what it read.
    const int64_t passes = there.block_passes;
    EXPECT_LE(emulated_cuda::counters().host_waits(), 2 * passes + 4);
    EXPECT_GT(passes, 20);
  }
}

}  // namespace
}  // namespace blockscope
