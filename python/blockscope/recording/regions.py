"""Named parts of prompts, by which a trace sums attention and interventions hide keys. The rules are the runtime's."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from .. import _core
from .._arguments import whole_number, whole_numbers
from ..errors import UsageError

if TYPE_CHECKING:  # pragma: no cover
    from .steps import Sequence

_EXAMPLE = "[{\"region\": \"question\", \"between\": [\"Q:\", \"A:\"]}]"


class Regions:
    """The regions of keys in a trace, and what they are in each sequence."""

    def __init__(self, rules: _core.PromptParts | None = None, tokenizer: Any = None, text: bytes = b"") -> None:
        self._rules, self._tokenizer, self._text = rules, tokenizer, text
        self.names: list[str] = list(_core.region_names if rules is None else rules.region_names())
        self._pieces: list[bytes] | None = None
        self._known: weakref.WeakKeyDictionary[Sequence, tuple[list[int], bytes]] = weakref.WeakKeyDictionary()
        self._count = 0  # of sequences so far

    def __bool__(self) -> bool:
        """Whether parts of prompts have names."""
        return self._rules is not None

    def __repr__(self) -> str:
        """The rules, which are compared between the ranks of a recording."""
        return self._text.decode(errors="replace")

    def of(self, sequence: Sequence) -> bytes:
        """The region of each token of the prompt, an index into `names`; empty without named parts."""
        if self._rules is None:
            return b""
        prompt, known = sequence.prompt, self._known.get(sequence)
        if known is None:
            self._count += 1
        if known is None or known[0] != prompt:
            name = sequence.name or str(self._count - 1)
            pieces = self._pieces_of(prompt)
            try:
                regions = self._rules.regions_of(name.encode(errors="replace"), prompt, pieces)
            except UsageError as error:
                if pieces is not None or self._tokenizer is None or "tokenizer" not in str(error):
                    raise
                raise UsageError(f"{error}. HINT: tokenizer= takes one of transformers, with convert_ids_to_tokens() "
                                 f"and a length, got {type(self._tokenizer).__name__}") from None
            known = self._known[sequence] = prompt, regions
        return known[1]

    def around(self, sequence: Sequence, block_start: int, size: int) -> _core.SequenceRegions:
        """What stands at the positions of a sequence while a block is decoded."""
        return _core.SequenceRegions(len(self.names), len(sequence.prompt), block_start, block_start + size,
                                     self.of(sequence))

    def _pieces_of(self, prompt: list[int]) -> list[bytes] | None:
        from .model import vocabulary_pieces

        if self._pieces is None and self._tokenizer is not None:
            self._pieces = vocabulary_pieces(self._tokenizer)
        if not self._pieces:
            return None
        return [self._pieces[token] if token < len(self._pieces) else b"" for token in prompt]


class KeyPlaces:
    """Where the external keys of a pass stand on the axes of /spread. Keys that stand next to each other and at one
    place on all axes make a range."""

    def __init__(self, regions: Regions, sequences: list[Sequence], starts: list[int], size: int) -> None:
        """starts: position of each sequence's block. size: its length."""
        self._regions, self._blocks, self._size = regions, list(zip(sequences, starts)), size
        # Windows differ by layer.
        self._known: dict[tuple[tuple[int, int], ...], tuple[torch.Tensor, torch.Tensor]] = {}

    def of(self, positions: tuple[tuple[int, int], ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """positions: [begin, end) of the keys. Returns the ends of the ranges among them [S, R], and the place of each
        range [S, 3, R] on the axes distance, region and answer block; int64. Ranges at the end may be empty."""
        found = self._known.get(positions)
        if found is None:
            numbers = []
            for sequence, start in self._blocks:
                around = self._regions.around(sequence, start, self._size)
                numbers.append([_numbers(x) for x in around.places(list(positions), _core.distance_bins)])
            most = max(len(ends) for ends, *_ in numbers)
            wide = [torch.stack([_filled(x, most) for x in one]) for one in numbers]
            found = self._known[positions] = (torch.stack([x[0] for x in wide]), torch.stack([x[1:] for x in wide]))
        return found


def _numbers(values: bytearray) -> torch.Tensor:
    return torch.frombuffer(values, dtype=torch.int64) if values else torch.empty(0, dtype=torch.int64)


def _filled(x: torch.Tensor, size: int) -> torch.Tensor:
    """With its last element again at the end."""
    return x if len(x) == size or len(x) == 0 else torch.cat([x, x[-1:].expand(size - len(x))])


def read_regions(given: Any, tokenizer: Any) -> Regions:
    """From the name of a JSON file, or a list of rules such as {"region": "question", "between": ["Q:", "A:"]}."""
    if given is None:
        return Regions()
    where = "regions"
    if isinstance(given, (str, os.PathLike)):
        where = os.fsdecode(given)
        try:
            with open(given, "rb") as file:
                text = file.read()
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise UsageError(f"regions: {where}: can't be read: {getattr(error, 'strerror', error)}. HINT: a JSON "
                             f"file such as {_EXAMPLE}") from None
    else:
        if isinstance(given, Mapping):
            given = [given]
        if not isinstance(given, Iterable):
            raise UsageError(f"regions: expected a list of regions, got {given!r}. HINT: {_EXAMPLE}")
        try:
            text = json.dumps([_plain(rule) for rule in given], default=_number, ensure_ascii=False,
                              allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:  # a rule in itself, NaN, half of a character
            raise UsageError(f"regions: expected texts and numbers: {error}. HINT: {_EXAMPLE}") from None
    return Regions(_core.PromptParts(text, where.encode(errors="replace")), tokenizer, text)


def _plain(rule: Any) -> Any:
    """Positions may be numbers, too."""
    if not isinstance(rule, Mapping):
        return rule
    positions = rule.get("positions")
    if positions is None or isinstance(positions, str):
        return dict(rule)
    numbers = whole_numbers(positions)
    if numbers is None:
        raise TypeError(f"got {positions!r}")
    return {**rule, "positions": ",".join(map(str, numbers))}


def _number(value: Any) -> int:
    number = whole_number(value)
    if number is None:
        raise TypeError(f"got {value!r}")
    return number
