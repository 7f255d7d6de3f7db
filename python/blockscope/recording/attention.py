"""Observes a model's attention while it runs. A ``TorchFunctionMode`` sees ``scaled_dot_product_attention``, operators
of flash-attn and ours (operators.py), flex attention (flex.py) and products around a softmax (spelled_out.py).
Functions in transformers' attention interface see its calls (interface.py). Hooks see the calls of
``nn.MultiheadAttention`` (multihead.py). The model gets the same results as without recording. Nothing is patched."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from ..errors import UsageError
from . import multihead, operators, spelled_out
from .calls import AttentionCall, Maker, scale_of
from .spelled_out import SpelledOut
from .trails import Lost

LOOKED_FOR = ("torch.nn.functional.scaled_dot_product_attention", "flash_attn_func and flash_attn_varlen_func of "
              "flash-attn 2 and 3 (torch.ops.flash_attn, torch.ops.flash_attn_3, those of the kernels hub)",
              "torch.nn.attention.varlen.varlen_attn", "torch.nn.attention.flex_attention.flex_attention",
              "torch.nn.MultiheadAttention", "blockscope.ops.split_attention", "transformers' eager attention",
              "matmul, softmax and matmul (or bmm, baddbmm, einsum; or exp and sum)")

Watcher = Callable[[AttentionCall], None]
# From a call and its own function: the call's result, or None: the function must compute it.
Giver = Callable[[AttentionCall, Callable[[], torch.Tensor]], "torch.Tensor | None"]
_local = threading.local()


def watchers() -> list[Watcher]:
    """The watchers of this thread."""
    if not hasattr(_local, "watchers"):
        _local.watchers = []
    return _local.watchers


def _of_sdpa(out: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
             attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
             scale: float | None = None, enable_gqa: bool = False) -> AttentionCall:
    mask = attn_mask
    if mask is not None:
        mask = mask[(None,) * (4 - mask.dim())]
    return AttentionCall("scaled_dot_product_attention", query, key, value, mask, "top" if is_causal else "", (-1, -1),
                         scale_of(query, scale), 0.0, dropout_p, out)


_SDPA = torch._C._nn.scaled_dot_product_attention  # itself, whatever stands for it in torch.nn.functional
_OPERATOR_TYPES = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_MOST_KINDS = 4096


_kinds: dict[Any, tuple[Maker | None, str]] = {}  # of functions that were called


def _kind_of(function: Any) -> tuple[Maker | None, str]:
    """What makes a call of it, and what it is to spelled-out attention. Called for every operation of a pass."""
    found = _kinds.get(function)
    if found is None:
        found = _maker_of(function), spelled_out.kind_of(function)
        # Functions that are made for one call would stay, and what they hold.
        if len(_kinds) < _MOST_KINDS and getattr(function, "__closure__", None) is None and not isinstance(
                getattr(function, "__self__", None), (torch.Tensor, torch.nn.Module)):
            _kinds[function] = found
    return found


def _maker_of(function: Any) -> Maker | None:
    if function is _SDPA:
        return lambda function, result, args, kwargs: _of_sdpa(result, *args, **kwargs)
    if function is torch.nn.functional.multi_head_attention_forward:
        return multihead.of_function
    if type(function) in _OPERATOR_TYPES:
        return operators.maker_of(getattr(function, "overloadpacket", function)._qualified_op_name)
    if isinstance(function, torch._ops.HigherOrderOperator) and function.name() == "flex_attention":
        from .flex import of_operator  # of torch 2.5 and later

        return of_operator
    return None


def operation_name(function: Any) -> str:
    """As users write it: torch.cumsum."""
    name = torch.overrides.resolve_name(function) if callable(function) else None
    return name or getattr(function, "__name__", type(function).__name__)


def trail_ends(lost: dict[int, list[Lost]], missing: list[int], layers: list[tuple[str, torch.nn.Module]]) -> str:
    """Where spelled-out attention of the missing layers was lost: in the first layer that has some, with the end of the
    trail."""
    layer = next((index for index in missing if index in lost), None)
    if layer is None:
        return ""
    furthest = max(one.stage for one in lost[layer])
    ends = {f"{operation_name(one.function)} after {one.after}{one.why and f' ({one.why})'}": None
            for one in lost[layer] if one.stage == furthest}
    return f"In {layers[layer][0]} it was followed and lost at {', at '.join(list(ends)[:3])}. "


class _Seer(TorchFunctionMode):
    def __init__(self, watcher: Watcher, giver: Giver | None, spelled_out: SpelledOut, refuses: bool) -> None:
        super().__init__()
        self._watcher, self._giver, self._spelled_out, self._refuses = watcher, giver, spelled_out, refuses
        self.hidden = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_compiling():  # its graph must not keep this object alive
            return function(*args, **(kwargs or {}))
        kwargs = kwargs or {}
        if self._giver is not None and function is _SDPA and not self.hidden:
            given = self._giver(_of_sdpa(None, *args, **kwargs), functools.partial(function, *args, **kwargs))
            if given is not None:
                return given
        result = function(*args, **kwargs)
        if not self.hidden:
            maker, kind = _kind_of(function)
            if maker is not None:
                self.show(maker, function, result, args, kwargs)
            elif self._spelled_out.wants(kind):
                self._spelled_out.see(function, args, kwargs, result)
        return result

    def show(self, maker: Maker, function: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            call = maker(function, result, args, kwargs)
        except UsageError:
            if self._refuses:
                raise
            return
        self._watcher(call)


class Watch:
    """Reports every attention call of this thread to a watcher until end(), and where spelled-out attention was lost. A
    giver may compute scaled_dot_product_attention instead of the model. sequences, length: those of the pass. refuses:
    whether a call that can't be recorded is an error."""

    def __init__(self, watcher: Watcher, lost: Callable[[Lost], None], giver: Giver | None, sequences: int,
                 length: int, refuses: bool) -> None:
        self._watcher = watcher
        self.seer = _Seer(watcher, giver, SpelledOut(watcher, lost, sequences, length), refuses)
        self.seer.__enter__()
        watchers().append(watcher)
        _seers().append(self.seer)

    def end(self) -> None:
        if self._watcher in watchers():
            watchers().remove(self._watcher)
            _seers().remove(self.seer)
            self.seer.__exit__(None, None, None)


def _seers() -> list[_Seer]:
    if not hasattr(_local, "seers"):
        _local.seers = []
    return _local.seers


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Hides calls within the block, because they are reported as one call."""
    seers = [seer for seer in _seers() if not seer.hidden]
    stack = _get_current_function_mode_stack()
    # The modes are removed if they are the topmost ones, so that code isn't compiled again for them.
    off = bool(seers) and stack[-len(seers):] == seers
    for seer in reversed(seers):
        seer.hidden = True
        if off:
            seer.__exit__(None, None, None)
    try:
        yield
    finally:
        for seer in seers:
            if off:
                seer.__enter__()
            seer.hidden = False


def watch_multihead(model: torch.nn.Module) -> list[Any]:
    """Hooks with remove() that report what each ``nn.MultiheadAttention`` of the model computes. No mode is active
    while the module runs, because a mode would disable PyTorch's fused kernel and change the last bits."""

    def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        seers = [seer for seer in _seers() if not seer.hidden]
        if not seers or torch.compiler.is_compiling() or getattr(_local, "module", None) is not None:
            return  # another recording may have hooks, too
        _local.module, _local.hidden, _local.looking = module, unseen(), seers
        _local.hidden.__enter__()

    def after(module: torch.nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        if torch.compiler.is_compiling() or getattr(_local, "module", None) is not module:
            return
        _local.module = None
        _local.hidden.__exit__(None, None, None)
        if result is not None:  # else it raised
            with unseen(), torch.no_grad():
                for seer in _local.looking:
                    seer.show(multihead.of_module, module, result, args, kwargs)

    found = [module for module in model.modules() if isinstance(module, torch.nn.MultiheadAttention)
             and type(module).forward is torch.nn.MultiheadAttention.forward]
    return [hook for module in found for hook in (
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after, prepend=True, with_kwargs=True, always_call=True))]  # a layer may be one
