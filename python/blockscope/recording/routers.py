"""The experts that the routers of a model's layers choose, for /router. A router is a module of a layer that returns
the chosen experts and their weights, as those of transformers do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UsageError
from .settings import config_value

NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_NAME = re.compile("(router|gate)$", re.IGNORECASE)


@dataclass(frozen=True)
class Choice:
    """By falling weight."""

    expert: torch.Tensor  # [S, B, k]; -1: the pass didn't compute the position
    weight: torch.Tensor  # [S, B, k]


def chosen_of(output: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Experts and weights [..., k] among what a module returns."""
    if not isinstance(output, (tuple, list)):
        return None
    tensors = [x for x in output if isinstance(x, torch.Tensor) and x.dim() in (2, 3)]
    for expert in tensors:
        if expert.dtype in (torch.int64, torch.int32):
            weight = next((x for x in tensors if x.is_floating_point() and x.shape == expert.shape), None)
            if weight is not None:
                return expert, weight
    return None


def watch_routers(layers: Iterable[tuple[int, torch.nn.Module]],
                  take: Callable[[int, torch.Tensor, torch.Tensor], None]) -> list[Any]:
    """Hooks on the routers of these layers; take(layer, experts, weights) gets what they choose."""
    def hook(index: int) -> Any:
        def after(module: torch.nn.Module, args: Any, output: Any) -> None:
            chosen = None if torch.compiler.is_compiling() else chosen_of(output)
            if chosen is not None:
                take(index, *chosen)
        return after

    return [module.register_forward_hook(hook(index)) for index, layer in layers
            for name, module in layer.named_modules() if _NAME.search(name) or _NAME.search(type(module).__name__)]


def by_weight(expert: torch.Tensor, weight: torch.Tensor, there: torch.Tensor | None) -> Choice:
    """there [S, B]: which positions the pass computed; None: all."""
    weight, order = weight.detach().float().sort(stable=True, dim=-1, descending=True)
    expert = expert.detach().gather(-1, order.to(expert.device))
    if there is not None:
        expert = expert.masked_fill(~there.unsqueeze(-1), -1)
        weight = weight.masked_fill(~there.unsqueeze(-1), float("nan"))
    return Choice(expert, weight)


def sizes_of(model: torch.nn.Module, routed: dict[int, Choice]) -> dict[str, int]:
    """Of the header."""
    if not routed:
        raise UsageError(f"{type(model).__name__}: router: no layer has a router that can be seen: a module whose name "
                         "ends with \"router\" or \"gate\" and returns experts [..., k] with their weights. HINT: "
                         "leave router= out")
    found = {choice.expert.shape[-1] for choice in routed.values()}
    experts = config_value(model, *NUM_EXPERTS)
    if len(found) != 1 or not isinstance(experts, int):
        raise UsageError(f"{type(model).__name__}: router: expected one number of experts a token, and "
                         f"model.config.{NUM_EXPERTS[0]}; found {sorted(found)} and {experts}. HINT: record layers of "
                         "one kind with layers=...")
    return {"experts_per_token": found.pop(), "num_experts": experts}


def arrays_of(routed: dict[int, Choice], layers: list[int], slot: int) -> dict[str, tuple[torch.Tensor, torch.dtype]]:
    """The datasets of one sequence, [L, B, k]. A layer without experts holds -1 and NaN."""
    like = next(iter(routed.values()))
    nothing = Choice(torch.full_like(like.expert, -1), torch.full_like(like.weight, float("nan")))
    chosen = [routed.get(layer, nothing) for layer in layers]
    return {"/router/expert": (torch.stack([one.expert[slot] for one in chosen]), torch.int32),
            "/router/weight": (torch.stack([one.weight[slot] for one in chosen]), torch.float32)}
