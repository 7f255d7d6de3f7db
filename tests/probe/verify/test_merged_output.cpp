// The attention output that errors are taken of is the one the model went on with.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

#include "probe/policies/mage_policy.h"
#include "probe/policies/quest_policy.h"
#include "probe/verify/lockstep.h"
#include "tests/probe/policies/selection_reference.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: helpers of the policies' tests

TEST(MergedOutput, IsWhatEveryPolicyHandsToTheModel) {
  at::manual_seed(31);
  SelectionOptions with_residual = with_k(5);
  with_residual.residual = true;
  for (const auto& make : {std::function<std::unique_ptr<AttentionPolicy>()>(
                               [] { return make_mage_policy(with_k(5)); }),
                           std::function<std::unique_ptr<AttentionPolicy>()>(
                               [&] { return make_mage_policy(with_residual); }),
                           std::function<std::unique_ptr<AttentionPolicy>()>(
                               [] { return make_quest_policy(with_k(5), 4); })}) {
    const auto policy = make();
    PolicyPass pass({25, 3, 0});
    for (int64_t step = 1; step <= 3; ++step) {
      const AttentionParts parts = pass.run(*policy);
      EXPECT_TRUE(at::allclose(merged_output(parts), parts.out.to(at::kFloat), 1e-5, 1e-6))
          << policy->name() << ", step " << step;
      pass = pass.next();
    }
  }
}

}  // namespace
}  // namespace blockscope
