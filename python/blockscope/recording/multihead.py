"""``torch.nn.MultiheadAttention``: computes its queries, keys and values again from its inputs and weights."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn import functional as F

from ..errors import UsageError
from .calls import AttentionCall

_NAME = "nn.MultiheadAttention"
_FORWARD = inspect.signature(torch.nn.MultiheadAttention.forward)
_FUNCTION = inspect.signature(F.multi_head_attention_forward)


def of_function(function: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionCall:
    """F.multi_head_attention_forward, whose tensors are [T, S, E] or [T, E]."""
    bound = _FUNCTION.bind(*args, **kwargs)
    bound.apply_defaults()
    return _call(bound.arguments, result[0])


def of_module(module: torch.nn.MultiheadAttention, result: Any, args: tuple[Any, ...],
              kwargs: dict[str, Any]) -> AttentionCall:
    bound = _FORWARD.bind(module, *args, **kwargs)
    bound.apply_defaults()
    given = {**bound.arguments, "num_heads": module.num_heads, "in_proj_weight": module.in_proj_weight,
             "in_proj_bias": module.in_proj_bias, "bias_k": module.bias_k, "add_zero_attn": module.add_zero_attn,
             "dropout_p": module.dropout, "training": module.training, "static_k": None,
             "use_separate_proj_weight": not module._qkv_same_embed_dim, "out_proj_weight": module.out_proj.weight,
             "out_proj_bias": module.out_proj.bias, "q_proj_weight": module.q_proj_weight,
             "k_proj_weight": module.k_proj_weight, "v_proj_weight": module.v_proj_weight}
    out = result[0]
    if module.batch_first and given["query"].dim() == 3:
        given.update({name: given[name].transpose(0, 1) for name in ("query", "key", "value")})
        out = out.transpose(0, 1)
    return _call(given, out)


def _call(given: dict[str, Any], result: torch.Tensor) -> AttentionCall:
    for name, what in (("bias_k", "keys of the module's own (add_bias_kv)"), ("static_k", "static keys (static_k)")):
        if given[name] is not None:
            raise UsageError(f"{_NAME}: {what} aren't recorded")
    if given["add_zero_attn"]:
        raise UsageError(f"{_NAME}: a key of zeros (add_zero_attn) isn't recorded")
    inputs = [given[name] for name in ("query", "key", "value")]
    if inputs[0].dim() == 2:
        inputs, result = [x.unsqueeze(1) for x in inputs], result.unsqueeze(1)
    separate = [given[f"{name}_proj_weight"] for name in "qkv"]
    weights = separate if given["use_separate_proj_weight"] else given["in_proj_weight"].chunk(3)
    biases = (None,) * 3 if given["in_proj_bias"] is None else given["in_proj_bias"].chunk(3)
    heads = given["num_heads"]
    q, k, v = (F.linear(x, weight, bias).unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
               for x, weight, bias in zip(inputs, weights, biases))
    mask = _mask(given["attn_mask"], given["key_padding_mask"], q)

    def confirm() -> tuple[torch.Tensor, torch.Tensor]:
        out = F.scaled_dot_product_attention(q, k, v, mask).permute(2, 0, 1, 3).flatten(2)
        return F.linear(out, given["out_proj_weight"], given["out_proj_bias"]), result

    return AttentionCall(_NAME, q, k, v, mask, "", (-1, -1), q.shape[-1] ** -0.5, 0.0,
                         given["dropout_p"] if given["training"] else 0.0, None, confirm=confirm)


def _mask(of_pairs: torch.Tensor | None, of_keys: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor | None:
    """[S or 1, H or 1, T or 1, N], added to the scores. The module's bool is True where a key is hidden."""
    if of_pairs is not None and of_pairs.dim() == 3:
        of_pairs = of_pairs.unflatten(0, q.shape[:2])
    if of_keys is not None:
        of_keys = torch.atleast_2d(of_keys)[:, None, None]
    both = [torch.zeros(x.shape, dtype=q.dtype, device=q.device).masked_fill(x, -torch.inf) if x.dtype == torch.bool
            else x for x in (of_pairs, of_keys) if x is not None]
    if not both:
        return None
    mask = both[0] if len(both) == 1 else both[0] + both[1]
    return mask[(None,) * (4 - mask.dim())]
