"""Observes attention in transformers' attention interface. While a recording is open, the interface has our entries for
attention that no ``TorchFunctionMode`` sees as one call: eager attention, and flex attention, which transformers
compiles. They call the model's own function and return its result."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from ..errors import UsageError
from .attention import unseen, watchers
from .calls import AttentionCall, scale_of


def _of_eager(module: torch.nn.Module, result: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attention_mask: Any, options: dict[str, Any]) -> AttentionCall:
    dropout = options.get("dropout", 0.0) if module.training else 0.0
    mask = None if attention_mask is None else attention_mask[..., :key.shape[2]]
    return AttentionCall("eager attention", query, key, value, mask, "", (-1, -1),
                         scale_of(query, options.get("scaling")), options.get("softcap") or 0.0, dropout,
                         result[0].transpose(1, 2))


def _of_flex(module: torch.nn.Module, result: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
             attention_mask: Any, options: dict[str, Any]) -> AttentionCall:
    from .flex import BlockMask, LazyMask

    if options.get("position_bias") is not None:
        raise UsageError(f"{type(module).__name__}: flex attention with a bias of positions isn't recorded. HINT: "
                         "attn_implementation=\"sdpa\"")
    if isinstance(attention_mask, BlockMask):
        mask = LazyMask(attention_mask, (), query.shape[2], key.shape[2])
    elif attention_mask is None:
        mask = None
    else:  # added to the scores whatever its type
        mask = attention_mask[..., :key.shape[2]].to(query.dtype)
    return AttentionCall("flex_attention", query, key, value, mask, "", (-1, -1),
                         scale_of(query, options.get("scaling")), options.get("softcap") or 0.0, 0.0,
                         result[0].transpose(1, 2))


def _shown(own: Callable[..., Any], names: tuple[str, ...], of: Callable[..., AttentionCall], module: torch.nn.Module,
           query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, args: tuple[Any, ...],
           kwargs: dict[str, Any]) -> Any:
    if torch.compiler.is_compiling() or not watchers():
        return own(module, query, key, value, attention_mask, *args, **kwargs)
    with unseen():
        result = own(module, query, key, value, attention_mask, *args, **kwargs)
    options = {**dict(zip(names, args)), **kwargs}
    if options.get("s_aux") is not None:
        raise UsageError(f"{type(module).__name__}: attention sinks aren't recorded")
    call = of(module, result, query, key, value, attention_mask, options)
    with unseen():
        for watcher in list(watchers()):
            watcher(call)
    return result


def _eager(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
           attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
    own = getattr(sys.modules[type(module).__module__], "eager_attention_forward")
    return _shown(own, ("scaling", "dropout"), _of_eager, module, query, key, value, attention_mask, args, kwargs)


def _flex(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
          attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
    return _shown(_own["flex_attention"], ("scaling", "softcap", "s_aux", "position_bias"), _of_flex, module, query,
                  key, value, attention_mask, args, kwargs)


_ENTRIES = {"eager": _eager, "flex_attention": _flex}
_own: dict[str, Any] = {}  # the previous entries
_lock = threading.Lock()
_users = 0


def _interface() -> Any:
    """Transformers' table of attention functions, if transformers is imported."""
    return getattr(sys.modules.get("transformers.modeling_utils"), "ALL_ATTENTION_FUNCTIONS", None)


def watch_interface() -> None:
    global _users
    with _lock:
        interface = _interface()
        if interface is not None:
            before = interface.get("flex_attention")
            if before is not None and "flex_attention" not in _own:
                _own["flex_attention"], interface["flex_attention"] = before, _flex
            # Before transformers 5, "eager" is not looked up. An entry of the user stays.
            if hasattr(interface, "get_interface") and "eager" not in interface:
                _own["eager"], interface["eager"] = None, _eager
        _users += 1


def unwatch_interface() -> None:
    global _users
    with _lock:
        _users -= 1
        interface = _interface()
        if _users > 0 or interface is None:
            return
        for name, before in list(_own.items()):
            if interface.get(name) is _ENTRIES[name]:
                del interface[name]
                if before is not None and interface.get(name) is not before:
                    interface[name] = before
            del _own[name]
