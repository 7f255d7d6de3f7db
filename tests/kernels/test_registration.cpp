// The operators as the dispatcher sees them: what torch.ops.blockscope calls.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "tests/kernels/attention_case.h"

namespace blockscope::testing {
namespace {

std::vector<at::Tensor> call(const char* name, const std::vector<c10::IValue>& arguments) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  torch::jit::Stack stack(arguments.begin(), arguments.end());
  op.callBoxed(&stack);
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) results.push_back(value.toTensor());
  return results;
}

struct Call {
  const char* name;
  std::vector<c10::IValue> arguments;
};

c10::IValue tensor_list(const std::vector<at::Tensor>& tensors) { return c10::IValue(tensors); }

std::vector<Call> all_calls(const at::Device& device) {
  const AttentionCase c = make_case({.heads = 6, .ext_len = {70, 5}, .dtype = at::kHalf}, 1);
  const SplitAttention s =
      split_attention(c.q, c.k_ext, c.v_ext, c.ext_len, c.k_in, c.v_in, c.scale);
  const at::Tensor mask = at::zeros({6}, at::kBool);
  at::Tensor rows = at::zeros({2, c.q.size(2)}, at::kBool);
  rows[0][1] = true;
  const at::Tensor set = block_topk(c.q, c.k_ext, c.ext_len, s.lse_external, 4, c.scale).index;
  const PageBounds bounds = page_bounds(c.k_ext, c.ext_len, 16);
  const at::Tensor weight = at::ones({c.q.size(3)}, at::kHalf);
  const at::Tensor table = at::ones({1, 1, c.q.size(2), c.q.size(3)});
  const auto on = [&](const at::Tensor& tensor) { return tensor.to(device); };
  return {
      {"blockscope::split_attention",
       {on(c.q), on(c.k_ext), on(c.v_ext), on(c.ext_len), on(c.k_in), on(c.v_in), c.scale}},
      {"blockscope::reuse_attention",
       {on(c.q), on(c.k_ext), on(c.v_ext), on(c.ext_len), on(c.k_in), on(c.v_in), on(s.external),
        on(s.lse_external), on(mask), c.scale, c10::IValue()}},
      {"blockscope::reuse_attention",
       {on(c.q), on(c.k_ext), on(c.v_ext), on(c.ext_len), on(c.k_in), on(c.v_in), on(s.external),
        on(s.lse_external), on(mask.logical_not()), c.scale, on(rows)}},
      {"blockscope::prefill_attention",
       {on(c.q), on(c.k_ext), on(c.v_ext), on(c.ext_len), int64_t{4}, c.scale, int64_t{0}}},
      {"blockscope::merge_attention",
       {tensor_list({on(s.external), on(s.internal)}),
        tensor_list({on(s.lse_external), on(s.lse_internal)})}},
      {"blockscope::block_topk",
       {on(c.q), on(c.k_ext), on(c.ext_len), on(s.lse_external), int64_t{7}, c.scale}},
      {"blockscope::token_topk",
       {on(c.q), on(c.k_ext), on(c.ext_len), on(s.lse_external), int64_t{7}, c.scale}},
      {"blockscope::gather_attention",
       {on(c.q), on(c.k_ext), on(c.v_ext), on(c.ext_len), on(set), on(c.k_in), on(c.v_in), c.scale,
        c10::IValue(), on(s.external), on(s.lse_external)}},
      {"blockscope::unselected_attention",
       {on(c.q), on(c.k_ext), on(c.v_ext), on(c.ext_len), on(set), c.scale}},
      {"blockscope::page_bounds", {on(c.k_ext), on(c.ext_len), int64_t{16}}},
      {"blockscope::page_scores",
       {on(c.q), on(bounds.max), on(bounds.min), on(c.ext_len), int64_t{16}}},
      {"blockscope::token_page_scores",
       {on(c.q), on(bounds.max), on(bounds.min), on(c.ext_len), int64_t{16}}},
      {"blockscope::cross_step_similarity", {on(s.external), on(s.internal)}},
      {"blockscope::rms_norm_rows", {on(c.q), on(weight), 1e-6, true}},
      {"blockscope::add_rms_norm_rows", {on(c.k_in), on(c.v_in), on(weight), 1e-6, false}},
      {"blockscope::norm_rotate_rows",
       {on(c.q), on(c.k_in.narrow(2, 0, c.q.size(2))), on(weight), c10::IValue(), on(table),
        on(table), 1e-6, false}},
      {"blockscope::silu_multiply", {on(c.k_in), on(c.v_in)}},
  };
}

TEST(Registration, TheDispatcherGivesWhatTheFunctionGives) {
  const AttentionCase c = make_case({.heads = 6, .ext_len = {70, 5}, .dtype = at::kHalf}, 1);
  const SplitAttention expected =
      split_attention(c.q, c.k_ext, c.v_ext, c.ext_len, c.k_in, c.v_in, c.scale);
  const std::vector<Call> calls = all_calls(at::kCPU);
  const std::vector<at::Tensor> got = call(calls[0].name, calls[0].arguments);
  ASSERT_EQ(got.size(), 5u);
  EXPECT_TRUE(at::equal(got[0], expected.out));
  EXPECT_TRUE(at::equal(got[1], expected.external));
  EXPECT_TRUE(at::equal(got[2], expected.lse_external));
  EXPECT_TRUE(at::equal(got[3], expected.internal));
  EXPECT_TRUE(at::equal(got[4], expected.lse_internal));
}

TEST(Registration, MetaKernelsPredictShapesAndDtypesOfEveryOperator) {
  const std::vector<Call> real = all_calls(at::kCPU);
  const std::vector<Call> meta = all_calls(at::kMeta);
  for (size_t i = 0; i < real.size(); ++i) {
    SCOPED_TRACE(real[i].name);
    const std::vector<at::Tensor> expected = call(real[i].name, real[i].arguments);
    const std::vector<at::Tensor> predicted = call(meta[i].name, meta[i].arguments);
    ASSERT_EQ(predicted.size(), expected.size());
    for (size_t j = 0; j < expected.size(); ++j) {
      EXPECT_EQ(predicted[j].sizes(), expected[j].sizes()) << "result " << j;
      EXPECT_EQ(predicted[j].scalar_type(), expected[j].scalar_type()) << "result " << j;
      EXPECT_TRUE(predicted[j].is_meta()) << "result " << j;
    }
  }
}

}  // namespace
}  // namespace blockscope::testing
