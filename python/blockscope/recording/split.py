"""The two parts of a block's attention, and its top-k keys: the results of the operators, with names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from . import kernels, torch_operators
from .geometry import Biases

if TYPE_CHECKING:  # pragma: no cover
    from .large_blocks import LayerSums
    from .layer_maps import LayerMap


@dataclass
class Part:
    output: torch.Tensor  # [S, H, B, D] float32
    lse: torch.Tensor  # [S, H, B] float32, natural; -inf: no key


@dataclass
class Sets:
    index: torch.Tensor  # [S, K, k] int32 by falling probability, then by rising index; -1: fewer keys
    probability: torch.Tensor  # [S, K, k] float32, mean over the queries; 0 where -1
    union_size: torch.Tensor  # [S, K] int32, of the tokens' own sets
    token_index: torch.Tensor | None = None  # [S, K, B, k] int32, each token's own set, ordered as index is
    key_norm: torch.Tensor | None = None  # [S, K, k] float32: L2 norms of the set's keys and values, NaN where -1
    value_norm: torch.Tensor | None = None

    def measure(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Fills the norms: keys, values [S, K, N, D], the external ones."""
        self.key_norm, self.value_norm = (_norms(x.detach(), self.index) for x in (keys, values))


def _norms(all_rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    if all_rows.shape[2] == 0:
        return torch.full(index.shape, torch.nan, dtype=torch.float32, device=index.device)
    places = index.long().clamp_min(0).unsqueeze(-1).expand(*index.shape, all_rows.shape[3])
    norms = torch.linalg.vector_norm(all_rows.gather(2, places).float(), dim=-1)
    return norms.masked_fill(index < 0, torch.nan)


@dataclass
class Spread:
    """How the weights are spread over the keys: means over the queries, as recorded_attention gives them."""

    entropy: torch.Tensor  # [S, H, 3]: external keys, the block's, all
    largest: torch.Tensor  # [S, H, 3]
    range: torch.Tensor  # [S, H, R]: of each range of external keys
    internal: torch.Tensor  # [S, H, B]
    offset: torch.Tensor  # [S, H, 2 B - 1]
    places: torch.Tensor  # [S, 3, R], of the ranges: KeyPlaces

    def each(self, of: Callable[[torch.Tensor], torch.Tensor]) -> Spread:
        """With of(values)."""
        return Spread(*(of(x) for x in (self.entropy, self.largest, self.range, self.internal, self.offset)),
                      self.places)


@dataclass
class LayerAttention:
    external: Part
    internal: Part
    query: torch.Tensor  # [S, H, B, D]
    sets: Sets | None
    key: torch.Tensor | None  # [S, K, B, D], of the block; None below level full
    value: torch.Tensor | None
    spread: Spread | None = None  # None below level summary
    intervened: torch.Tensor | None = None  # [S, H] bool: heads that interventions changed; None: none
    map: LayerMap | None = None  # None: the weights of this layer and step aren't recorded
    statistics: LayerSums | None = None  # of a continuous model's block
    num_external: int = 0  # keys before the block that this layer has


def moved(values: Any, device: torch.device) -> Any:
    """The same with its tensors on this device."""
    if isinstance(values, torch.Tensor):
        return values.to(device)
    if isinstance(values, dict):
        return {key: moved(value, device) for key, value in values.items()}
    if isinstance(values, tuple):
        return tuple(moved(value, device) for value in values)
    if is_dataclass(values):
        return replace(values, **{field.name: moved(getattr(values, field.name), device) for field in fields(values)})
    return values


def split_attention(
    q: torch.Tensor, external: tuple[torch.Tensor, torch.Tensor], internal: tuple[torch.Tensor, torch.Tensor],
    scale: float, softcap: float, biases: Biases, ranges: tuple[torch.Tensor, torch.Tensor] | None, set_size: int,
    with_block: bool, with_tokens: bool, there: torch.Tensor | None, result: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Part, Part, Spread | None, Sets | None]:
    """For q [S, H, B, D] over keys and values [S, K, N, D]: attention over all keys [S, H, B, D] in q's type, both
    parts, the spread over the ranges of KeyPlaces.of (None: none), and the sets of external keys (set_size 0: none).
    with_block: normalise over all keys, not only the external ones. there [S, B]: the queries that count for spread and
    sets; None: all. result: the model's own attention over all keys, from which the external output may follow."""
    length = torch.full((q.shape[0],), external[0].shape[2], dtype=torch.int64)
    given = q, *external, length, *internal, scale
    more = (softcap, biases.external, biases.internal) if softcap or biases.any else ()  # than the library has
    operators = kernels.operators(not more and kernels.fit(q, *external, *internal))
    if ranges is None:
        out, *parts = operators.split_attention(*given, *more)
        return out, Part(*parts[:2]), Part(*parts[2:4]), None, None
    size = 0 if with_tokens else set_size  # the library has no operator for the tokens' own sets
    if there is None:
        if operators is torch_operators or not external[0].shape[2]:
            result = None
        more = (result,) if result is not None else more
        out, *parts = operators.recorded_attention(*given, ranges[0], size, with_block, *more)
    else:
        out, *parts = operators.split_attention(*given, *more)
        parts += torch_operators.weight_spread(q, external[0], internal[0], scale, ranges[0], softcap, biases.external,
                                               biases.internal, there)
        size = 0
    if set_size > size:
        lse = torch.logaddexp(parts[1], parts[3]) if with_block else parts[1]
        parts += torch_operators.topk_sets(q, external[0], length, lse, set_size, scale, with_tokens, softcap,
                                           biases.external, there)
    sets = Sets(*parts[9:]) if set_size else None
    if sets is not None:
        sets.measure(*external)
    return out, Part(*parts[:2]), Part(*parts[2:4]), Spread(*parts[4:9], ranges[1]), sets
