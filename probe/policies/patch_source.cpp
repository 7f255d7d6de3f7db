#include "probe/policies/patch_source.h"

#include <ATen/ATen.h>

namespace blockscope {
namespace {

SoughtStep sought(const SequencePass& pass) {
  return {pass.sequence, *pass.prompt, pass.block_start, std::ssize(pass.masked), pass.step};
}

}  // namespace

at::Tensor PatchSource::of_heads(Field field, const SequencePass& pass, int64_t layer,
                                 const at::Tensor& heads) const {
  std::vector<int64_t> wanted;
  for (int64_t i = 0; i < heads.numel(); ++i) wanted.push_back(heads[i].item<int64_t>());
  const at::Tensor all =
      at::tensor(source_.of_heads(field, sought(pass), layer, wanted), at::kFloat)
          .view({heads.numel(), std::ssize(pass.masked), -1});
  return spec_of(field).rank == 4 ? all.squeeze(2) : all;
}

at::Tensor PatchSource::hidden(const SequencePass& pass, int64_t layer) const {
  return at::tensor(source_.hidden(sought(pass), layer), at::kFloat)
      .view({std::ssize(pass.masked), -1});
}

}  // namespace blockscope
