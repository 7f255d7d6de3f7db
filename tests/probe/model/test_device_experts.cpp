// Experts on a device that multiplies the rows of all of them at once (feed_forward.h), on the
// emulated cuda:0: choices and outputs are those of the CPU, and the host waits for nothing.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "probe/model/feed_forward.h"
#include "tests/support/emulated_cuda.h"

namespace blockscope {
namespace {

constexpr int64_t kHidden = 24;
constexpr int64_t kWidth = 12;

MoeConfig softmax_config() {
  MoeConfig config;
  config.num_experts = 8;
  config.experts_per_token = 3;
  config.intermediate_size = kWidth;
  config.normalise = true;
  return config;
}

MoeConfig grouped_config() {
  MoeConfig config = softmax_config();
  config.sigmoid = true;
  config.num_groups = 4;
  config.kept_groups = 2;
  config.scaling = 2.5;
  return config;
}

MoeConfig block_routing_config() {
  MoeConfig config = softmax_config();
  config.sigmoid = true;
  config.expert_capacity = 4;
  config.routing_block = 4;
  return config;
}

/// The experts' weights lie next to each other, as empty_weights() puts them.
ExpertMixture mixture(const MoeConfig& config, Activation activation, at::Device device) {
  at::manual_seed(3);
  const auto random = [&](at::IntArrayRef shape) { return at::randn(shape).to(device); };
  ExpertMixture made;
  made.config = config;
  made.router = Linear(random({config.num_experts, kHidden}));
  if (config.sigmoid) made.bias = random({config.num_experts});
  const at::Tensor gate_up = random({config.num_experts, 2 * kWidth, kHidden});
  const at::Tensor down = random({config.num_experts, kHidden, kWidth});
  for (int64_t e = 0; e < config.num_experts; ++e) {
    made.experts.push_back({Linear(gate_up[e].narrow(0, 0, kWidth)),
                            Linear(gate_up[e].narrow(0, kWidth, kWidth)), Linear(down[e]),
                            activation});
  }
  if (!device.is_cpu()) made.pack();
  return made;
}

/// x [2, 8, hidden].
void expect_equal(const MoeConfig& config, const at::Tensor& x,
                  Activation activation = Activation::silu) {
  RouterChoice want, got;
  const at::Tensor here =
      mixture(config, activation, at::kCPU)(x, [&](const RouterChoice& choice) { want = choice; });
  const ExpertMixture there = mixture(config, activation, at::kCUDA);
  ASSERT_NE(there.grouped, nullptr);
  const at::Tensor moved = x.to(at::kCUDA);
  emulated_cuda::reset_counters();
  const at::Tensor made = there(moved, [&](const RouterChoice& choice) { got = choice; });
  EXPECT_EQ(emulated_cuda::counters().host_waits(), 0);
  EXPECT_THAT(emulated_cuda::counters().uncommon, ::testing::IsEmpty());  // a graph can hold them
  EXPECT_TRUE(at::equal(got.expert.cpu(), want.expert));
  EXPECT_TRUE(at::allclose(got.weight.cpu(), want.weight, 1e-6, 1e-6, true));
  EXPECT_TRUE(at::allclose(made.cpu(), here, 1e-4, 1e-4, true));
}

at::Tensor random_rows() {
  at::manual_seed(5);
  return at::randn({2, 8, kHidden});
}

TEST(DeviceExperts, AreTheCpus) {
  for (const MoeConfig& config : {softmax_config(), grouped_config(), block_routing_config()}) {
    SCOPED_TRACE(::testing::Message() << config.kept_groups << ", " << config.expert_capacity);
    expect_equal(config, random_rows());
    expect_equal(config, random_rows(), Activation::gelu_tanh);
  }
}

// Equal scores: the lower index. Rows without a number choose the first experts.
TEST(DeviceExperts, TakeTheLowerOfEqualOnes) {
  for (const MoeConfig& config : {softmax_config(), grouped_config(), block_routing_config()}) {
    at::Tensor x = random_rows();
    x[0].zero_();
    expect_equal(config, x);
    x[1][3].fill_(std::numeric_limits<float>::quiet_NaN());
    expect_equal(config, x);
  }
}

// Most experts get no row.
TEST(DeviceExperts, MayHaveNoRows) {
  expect_equal(softmax_config(), random_rows().narrow(0, 0, 1).narrow(1, 0, 1));
}

}  // namespace
}  // namespace blockscope
