"""Seeing a model's attention while it runs: a ``TorchFunctionMode`` sees ``scaled_dot_product_attention`` and the
operators behind flash-attn's functions, a function in transformers' attention interface sees its eager attention.
What the model gets back is what it would have got. Nothing is patched."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..errors import UsageError
from .spelled_out import SpelledOut, ignored

LOOKED_FOR = ("torch.nn.functional.scaled_dot_product_attention", "flash_attn_func and flash_attn_varlen_func "
              "(torch.ops.flash_attn)", "transformers' eager attention (from transformers 5 on)",
              "matmul, softmax and matmul")


@dataclass
class AttentionCall:
    """One call, in one layout. Nothing is copied."""

    function: str
    q: torch.Tensor  # [S, H, T, D]
    k: torch.Tensor  # [S, K, N, D]
    v: torch.Tensor  # [S, K, N, D]
    mask: torch.Tensor | None  # [S or 1, H or 1, T or 1, N]: True where seen, or added to the scores
    causal: str  # "" , "top" or "bottom": which corner the triangle is aligned to
    window: tuple[int, int]  # keys before and behind a query that it sees, -1: all
    scale: float
    softcap: float
    dropout: float
    out: torch.Tensor  # [S, H, T, D]


Watcher = Callable[[AttentionCall], None]
_local = threading.local()


def _watchers() -> list[Watcher]:
    if not hasattr(_local, "watchers"):
        _local.watchers = []
    return _local.watchers


def _scale(q: torch.Tensor, scale: float | None) -> float:
    return float(scale) if scale is not None else q.shape[-1] ** -0.5


def _of_sdpa(out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
             attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
             scale: float | None = None, enable_gqa: bool = False) -> AttentionCall:
    mask = attn_mask
    if mask is not None:
        mask = mask[(None,) * (4 - mask.dim())]
    return AttentionCall("scaled_dot_product_attention", query, key, value, mask, "top" if is_causal else "", (-1, -1),
                         _scale(query, scale), 0.0, dropout_p, out)


def _of_flash(result: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float, softmax_scale: float,
              causal: bool, window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0,
              alibi_slopes: torch.Tensor | None = None, *rest: Any, **more: Any) -> AttentionCall:
    if alibi_slopes is not None:
        raise UsageError("flash_attn: ALiBi slopes aren't recorded")
    out = result[0] if isinstance(result, (tuple, list)) else result
    return AttentionCall("flash_attn", q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None,
                         "bottom" if causal else "", (window_size_left, window_size_right),
                         _scale(q, softmax_scale), softcap or 0.0, dropout_p, out.transpose(1, 2))


def _of_flash_varlen(result: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
                     cu_seqlens_k: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int, *rest: Any,
                     **more: Any) -> AttentionCall:
    sequences = cu_seqlens_q.numel() - 1
    if q.shape[0] != sequences * max_seqlen_q or k.shape[0] != sequences * max_seqlen_k:
        raise UsageError("flash_attn_varlen_func: sequences of different lengths aren't recorded. HINT: record them "
                         "one at a time")

    def split(x: torch.Tensor, length: int) -> torch.Tensor:
        return x.view(sequences, length, *x.shape[1:])

    out = result[0] if isinstance(result, (tuple, list)) else result
    return _of_flash(split(out, max_seqlen_q), split(q, max_seqlen_q), split(k, max_seqlen_k),
                     split(v, max_seqlen_k), *rest, **more)


_SDPA = torch._C._nn.scaled_dot_product_attention  # itself, whatever stands for it in torch.nn.functional
_OPERATORS: dict[str, Callable[..., AttentionCall]] = {
    "flash_attn::_flash_attn_forward": _of_flash,
    "flash_attn::_flash_attn_varlen_forward": _of_flash_varlen,
}
_OPERATOR_TYPES = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def _maker_of(function: Any) -> Callable[..., AttentionCall] | None:
    """Asked of every operation of a forward pass, so it has to be cheap."""
    if function is _SDPA:
        return _of_sdpa
    if type(function) not in _OPERATOR_TYPES:
        return None
    return _OPERATORS.get(getattr(function, "overloadpacket", function)._qualified_op_name)


class _Seer(TorchFunctionMode):
    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher
        self._spelled_out = SpelledOut(self._found)

    def _found(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float,
               softcap: float, dropout: float, out: torch.Tensor) -> None:
        self._watcher(AttentionCall("matmul and softmax", q, k, v, mask, "", (-1, -1), scale, softcap, dropout, out))

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        maker = _maker_of(function)
        if maker is not None:
            self._watcher(maker(result, *args, **kwargs))
        else:
            self._spelled_out.see(function, args, kwargs, result)
        return result


class Watch:
    """Shows a watcher every attention call of this thread between begin() and end()."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._seer = _Seer(watcher)
        self._seer.__enter__()
        _watchers().append(watcher)

    def end(self) -> None:
        if self._watcher in _watchers():
            _watchers().remove(self._watcher)
            self._seer.__exit__(None, None, None)


# --- transformers' eager attention ------------------------------------------------------------------------------------


def _eager(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
           attention_mask: torch.Tensor | None, *args: Any, **kwargs: Any) -> Any:
    """In transformers' interface under "eager" while a recording is open: the model's own function, watched."""
    own = getattr(sys.modules[type(module).__module__], "eager_attention_forward")
    with ignored():
        result = own(module, query, key, value, attention_mask, *args, **kwargs)
    watchers = _watchers()
    if watchers:
        if kwargs.get("s_aux") is not None:
            raise UsageError(f"{type(module).__name__}: attention sinks aren't recorded")
        scaling = kwargs.get("scaling", args[0] if args else None)
        dropout = kwargs.get("dropout", args[1] if len(args) > 1 else 0.0)
        mask = None if attention_mask is None else attention_mask[..., :key.shape[2]]
        call = AttentionCall("eager attention", query, key, value, mask, "", (-1, -1), _scale(query, scaling),
                             kwargs.get("softcap") or 0.0, dropout if module.training else 0.0,
                             result[0].transpose(1, 2))
        for watcher in list(watchers):
            watcher(call)
    return result


_interface_lock = threading.Lock()
_interface_users = 0


def _interface() -> Any:
    modeling = sys.modules.get("transformers.modeling_utils")
    interface = getattr(modeling, "ALL_ATTENTION_FUNCTIONS", None)
    return interface if hasattr(interface, "get_interface") else None


def watch_eager() -> None:
    global _interface_users
    with _interface_lock:
        interface = _interface()
        if interface is not None and "eager" not in interface:
            interface["eager"] = _eager
        _interface_users += 1


def unwatch_eager() -> None:
    global _interface_users
    with _interface_lock:
        _interface_users -= 1
        interface = _interface()
        if _interface_users == 0 and interface is not None and interface.get("eager") is _eager:
            del interface["eager"]
