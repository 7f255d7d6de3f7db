"""How much the outputs of a loop with and without a policy agree."""

from __future__ import annotations

import math
from typing import Any

import torch

_CLOSE = 1e-3  # relative L2 of numbers, above which two runs of one loop are not the same


def kept(output: Any) -> Any:
    """A copy on the CPU, because a loop may return memory that its next run overwrites."""
    if isinstance(output, torch.Tensor):
        return output.detach().to("cpu", copy=True)
    if _is_array(output):
        return output.copy()
    if isinstance(output, dict):
        return {key: kept(value) for key, value in output.items()}
    if isinstance(output, (list, tuple)):
        return [kept(value) for value in output]
    return output


def _is_array(output: Any) -> bool:
    return type(output).__module__ == "numpy" and hasattr(output, "__array__") and hasattr(output, "copy")


def _tensor(output: Any) -> torch.Tensor | None:
    if isinstance(output, torch.Tensor):
        return output.detach().cpu()
    if not _is_array(output):
        return None
    try:
        return torch.as_tensor(output.copy())
    except TypeError:  # texts, objects
        return None


def _tokens(output: Any) -> list[int] | None:
    """Only int32 and int64 are token ids; uint8 is a picture."""
    numbers = _tensor(output)
    if numbers is not None:
        return numbers.flatten().tolist() if numbers.dtype in (torch.int32, torch.int64) else None
    whole = isinstance(output, (list, tuple)) and all(type(one) is int for one in output)
    return list(output) if whole and output else None


def _without(prompt: Any, tokens: list[int]) -> list[int]:
    """The tokens after the prompt, if they begin with it."""
    given = _tokens(prompt) or []
    return tokens[len(given):] if given and tokens[:len(given)] == given else tokens


def _sums(exact: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """Of squares: the error, and the exact values."""
    kind = torch.complex128 if exact.is_complex() or other.is_complex() else torch.float64
    true, got = exact.to(kind), other.to(kind)
    return (got - true).abs().square().sum().item(), true.abs().square().sum().item()


def same(exact: Any, other: Any) -> bool | None:
    """Whether two runs of one loop gave the same; None: it can't be told."""
    if _tokens(exact) is None:
        a, b = _tensor(exact), _tensor(other)
        if a is not None and b is not None:
            if a.shape != b.shape:
                return False
            error, true = _sums(a, b)
            return not error > _CLOSE ** 2 * true  # NaN in both is nothing new
    return Agreement().add(exact, other, None)


class Agreement:
    """Sums over the prompts: of token ids, and the relative L2 of outputs that are numbers."""

    def __init__(self) -> None:
        self._positions = self._equal = self._compared = self._identical = 0
        self._error = self._true = 0.0

    def add(self, exact: Any, other: Any, prompt: Any) -> bool | None:
        """Whether the outputs are the same; None: they can't be compared, and don't count."""
        found = self._compare(exact, other, prompt)
        if found is not None:
            self._compared += 1
            self._identical += found
        return found

    def _compare(self, exact: Any, other: Any, prompt: Any) -> bool | None:
        first, second = _tokens(exact), _tokens(other)
        if first is not None and second is not None:
            first, second = _without(prompt, first), _without(prompt, second)
            self._positions += max(len(first), len(second))
            self._equal += sum(x == y for x, y in zip(first, second))
            return first == second
        a, b = _tensor(exact), _tensor(other)
        if a is not None and b is not None:
            if a.shape != b.shape:
                return False
            error, true = _sums(a, b)
            self._error, self._true = self._error + error, self._true + true
            return torch.equal(a, b)
        if a is not None or b is not None:
            return False
        try:
            found = exact == other
        except Exception:  # of tensors inside, or of an own class
            return None
        return found if isinstance(found, bool) else None

    def json(self) -> dict[str, Any]:
        return {"positions": self._positions, "equal": self._equal,
                "share": self._equal / self._positions if self._positions else None, "sequences": self._compared,
                "identical": self._identical,
                "relative_l2": math.sqrt(self._error / self._true) if self._true else None}
