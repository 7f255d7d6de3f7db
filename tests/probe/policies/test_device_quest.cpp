// Quest's pages on the emulated cuda:0: those of the CPU, also where scores are no numbers.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "probe/policies/quest_policy.h"
#include "tests/probe/policies/policy_pass.h"

namespace blockscope {
namespace {

using testing::PolicyPass;

SelectionOptions with_k(int64_t k) {
  SelectionOptions options;
  options.num_layers = 1;
  options.k = k;
  return options;
}

PolicyPass on_cuda(PolicyPass pass) {
  for (at::Tensor* each : {&pass.q, &pass.k, &pass.v, &pass.key, &pass.value}) {
    *each = each->to(at::kCUDA);
  }
  return pass;
}

TEST(DeviceQuest, RanksInfinitiesAndNaNAsTheCpu) {
  constexpr int64_t kPage = 4;
  at::manual_seed(11);
  PolicyPass pass({38});  // ten pages, the last one short
  const auto page = [&](int64_t index) { return pass.key.narrow(2, index * kPage, kPage); };
  page(2).fill_(std::numeric_limits<float>::quiet_NaN());
  pass.q.select(-1, 0).fill_(1e20F);  // products overflow in two pages
  page(5).select(-1, 0).fill_(-1e20F);
  page(7).select(-1, 0).fill_(1e20F);
  const PolicyPass there = on_cuda(pass);
  for (int64_t k = kPage; k <= 40; k += kPage) {
    const auto host_policy = make_quest_policy(with_k(k), kPage);
    const auto device_policy = make_quest_policy(with_k(k), kPage);
    const at::Tensor want = pass.run(*host_policy).selected;
    const at::Tensor got = there.run(*device_policy).selected;
    // The CPU leaves out columns that are empty in all rows.
    const at::Tensor known = got.cpu().narrow(-1, 0, want.size(-1));
    EXPECT_TRUE(known.equal(want)) << "k " << k << "\n" << known << want;
    EXPECT_TRUE(got.cpu()
                    .narrow(-1, want.size(-1), got.size(-1) - want.size(-1))
                    .eq(-1)
                    .all()
                    .item<bool>());
  }
}

}  // namespace
}  // namespace blockscope
