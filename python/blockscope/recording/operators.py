"""Attention calls of operators: flash-attn 2 and 3, under their own names or those of the kernels hub,
``torch.nn.attention.varlen``, and ``blockscope.ops.split_attention``. Arguments are identified by their names in the
operator's schema."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import UsageError
from .calls import AttentionCall, Maker, scale_of

# Arguments that would change the keys that a query sees, or their values.
_REFUSED = {
    "alibi_slopes": "ALiBi slopes", "block_table": "paged caches", "page_table": "paged caches",
    "leftpad_k": "padding on the left", "seqused_q": "sequences shorter than their rows",
    "seqused_k": "caches longer than their keys", "k_new": "keys that the operator itself appends",
    "v_new": "values that the operator itself appends", "qv": "queries of values", "q_v": "queries of values",
    "kv_batch_idx": "caches in another order than the queries", "rotary_cos": "positions that the operator itself adds",
    "q_descale": "scaled queries", "k_descale": "scaled keys", "v_descale": "scaled values",
    "attention_chunk": "attention in chunks", "learnable_sink": "attention sinks", "s_aux": "attention sinks",
    "sink": "attention sinks"}
_FLASH = ("_flash_attn_forward", "_flash_attn_varlen_forward", "fwd", "varlen_fwd")


def maker_of(name: str) -> Maker | None:
    """The call of an operator with a qualified name, such as ``flash_attn::_flash_attn_forward``."""
    space, _, operator = name.partition("::")
    if operator in _FLASH and "flash_attn" in space:  # the hub's are called _flash_attn2_<digest>
        return _of_flash
    return {"torch_attn::_varlen_attn": _of_varlen, "blockscope::split_attention": _of_split}.get(name)


def _bound(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    overload = function.default if isinstance(function, torch._ops.OpOverloadPacket) else function
    arguments = overload._schema.arguments
    values = {argument.name: argument.default_value for argument in arguments}
    return {**values, **{argument.name: value for argument, value in zip(arguments, args)}, **kwargs}


def _rows(x: torch.Tensor, cumulative: torch.Tensor | None, longest: int | None, name: str) -> torch.Tensor:
    """[S, T, H, D] from rows that may be packed, one sequence after the other."""
    if cumulative is None:
        return x
    sequences = cumulative.numel() - 1
    if longest is None or x.shape[0] != sequences * longest:
        raise UsageError(f"{name}: sequences of different lengths aren't recorded. HINT: record them one at a time")
    return x.view(sequences, longest, *x.shape[1:])


def _of_flash(function: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionCall:
    given = _bound(function, args, kwargs)
    name = getattr(function, "overloadpacket", function)._qualified_op_name
    for argument, what in _REFUSED.items():
        value = given.get(argument)
        if value is not None and value is not False and not (isinstance(value, int) and value == 0):
            raise UsageError(f"{name}: {what} ({argument}) aren't recorded")
    packed_q, packed_k = given.get("cu_seqlens_q"), given.get("cu_seqlens_k")
    out = result[0] if isinstance(result, (tuple, list)) else result
    q, out = (_rows(x, packed_q, given.get("max_seqlen_q"), name).transpose(1, 2) for x in (given["q"], out))
    k, v = (_rows(given[x], packed_k, given.get("max_seqlen_k"), name).transpose(1, 2) for x in ("k", "v"))
    causal = given.get("causal", given.get("is_causal"))
    window = (given.get("window_size_left", -1), given.get("window_size_right", -1))
    dropout = given.get("dropout_p", given.get("p_dropout")) or 0.0
    return AttentionCall("flash_attn", q, k, v, None, "bottom" if causal else "", window,
                         scale_of(q, given.get("softmax_scale")), given.get("softcap") or 0.0, dropout, out)


def _of_varlen(function: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionCall:
    given = _bound(function, args, kwargs)
    name = "torch.nn.attention.varlen.varlen_attn"
    for argument in ("seqused_k", "page_table", "block_table"):
        if given.get(argument) is not None:
            raise UsageError(f"{name}: {argument} isn't recorded")
    q, out = (_rows(x, given["cu_seq_q"], given["max_q"], name).transpose(1, 2) for x in (given["query"], result[0]))
    k, v = (_rows(given[x], given["cu_seq_k"], given["max_k"], name).transpose(1, 2) for x in ("key", "value"))
    window = tuple(given.get("window_size") or (-1, -1))
    return AttentionCall("varlen_attn", q, k, v, None, "bottom" if given.get("is_causal") else "", window,
                         scale_of(q, given.get("scale")), 0.0, 0.0, out)


def _of_split(function: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionCall:
    given = _bound(function, args, kwargs)
    length, *others = sorted(set(given["ext_len"].tolist()))
    if others:
        raise UsageError(f"blockscope.ops.split_attention: expected one ext_len for the whole batch, got {length} to "
                         f"{others[-1]}. HINT: record sequences of one length together, or one at a time")
    k, v = (torch.cat([given[f"{name}_ext"][:, :, :length], given[f"{name}_in"]], 2) for name in "kv")
    return AttentionCall("blockscope.ops.split_attention", given["q"], k, v, None, "", (-1, -1),
                         scale_of(given["q"], given["scale"]), 0.0, 0.0, result[0])
