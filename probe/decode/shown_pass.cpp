#include "probe/decode/shown_pass.h"

#include <ATen/ATen.h>

#include <map>
#include <utility>

namespace blockscope {
namespace {

/// The tensors that the call shows, without keys and values.
std::vector<at::Tensor*> tensors_of(ShownCall& call) {
  std::vector<at::Tensor*> all;
  if (auto* hidden = std::get_if<ShownHidden>(&call)) all = {&hidden->hidden};
  if (auto* router = std::get_if<ShownRouter>(&call)) {
    all = {&router->choice.expert, &router->choice.weight};
  }
  if (auto* attention = std::get_if<ShownAttention>(&call)) {
    all = {&attention->q, &attention->rows, &attention->present};
    const auto add = [&](const auto& tensors) {
      all.insert(all.end(), tensors.begin(), tensors.end());
    };
    add(attention->used.tensors());
    if (attention->shadow) add(attention->shadow->tensors());
    if (attention->spread) add(attention->spread->answer());
  }
  std::erase_if(all,
                [](const at::Tensor* tensor) { return !tensor->defined() || tensor->is_cpu(); });
  return all;
}

/// The view of a call. `shown` must outlive it.
AttentionView view_of(const ShownAttention& shown, const PassContext& context,
                      const AttentionInput& input) {
  const AttentionParts* exact = shown.used.approximate() ? nullptr : &shown.used;
  if (shown.shadow) exact = &*shown.shadow;
  return {context,
          input,
          shown.external,
          shown.used,
          exact,
          shown.rows.defined() ? &shown.rows : nullptr,
          shown.present.defined() ? &shown.present : nullptr,
          shown.spread ? &*shown.spread : nullptr};
}

}  // namespace

ShownAttention::ShownAttention(const AttentionInput& input, const ExternalKeys& keys,
                               AttentionParts parts)
    : layer(input.layer),
      scale(input.scale),
      q(input.q),
      k(input.k),
      v(input.v),
      external(keys),
      used(std::move(parts)) {
  if (input.spread != nullptr) spread = *input.spread;
}

void show(const ShownCall& call, const PassContext& context, DecodeObserver& observer) {
  if (const auto* hidden = std::get_if<ShownHidden>(&call)) {
    observer.on_hidden(context, hidden->layer, hidden->hidden);
  } else if (const auto* router = std::get_if<ShownRouter>(&call)) {
    observer.on_router(context, router->layer, router->choice);
  } else {
    const auto& shown = std::get<ShownAttention>(call);
    const AttentionInput input{shown.layer, shown.q, shown.k, shown.v, shown.scale};
    observer.on_attention(view_of(shown, context, input));
  }
}

void close_gaps(ShownCall& call) {
  for (at::Tensor* tensor : tensors_of(call)) {
    if (!tensor->is_non_overlapping_and_dense()) *tensor = tensor->contiguous();
  }
}

std::vector<ShownCall> copied(const std::vector<ShownCall>& calls) {
  std::vector<ShownCall> copies = calls;
  std::map<at::ScalarType, std::vector<at::Tensor*>> by_type;
  for (ShownCall& call : copies) {
    for (at::Tensor* tensor : tensors_of(call)) by_type[tensor->scalar_type()].push_back(tensor);
  }
  for (const auto& [type, tensors] : by_type) {
    std::vector<at::Tensor> memory;
    for (const at::Tensor* tensor : tensors) {
      memory.push_back(tensor->as_strided({tensor->numel()}, {1}));
    }
    const at::Tensor whole = at::cat(memory);
    int64_t begin = 0;
    for (at::Tensor* tensor : tensors) {
      *tensor = whole.as_strided(tensor->sizes(), tensor->strides(), begin);
      begin += tensor->numel();
    }
  }
  return copies;
}

}  // namespace blockscope
