"""Products of two tensors as equations of axes, whichever operator computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

NAMES = frozenset(("matmul", "__matmul__", "bmm", "baddbmm", "einsum"))


@dataclass(frozen=True)
class Product:
    """scale * left @ right + share * added."""

    left: torch.Tensor
    right: torch.Tensor
    labels: tuple[str, str, str]  # of left, right and the result: a letter for each dimension
    plain: bool  # the last but one dimension of left holds its rows, as in a product of matrices
    scale: float = 1.0
    added: torch.Tensor | None = None
    share: float = 1.0


def product_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Product | None:
    """None: no product of two batches of matrices."""
    given = {key: value for key, value in kwargs.items() if key != "out"}
    if name == "einsum":
        return None if given else _of_einsum(args)
    if name == "baddbmm":
        given = {**dict(zip(("input", "batch1", "batch2"), args)), **given}
        product = _of_matrices(given.get("batch1"), given.get("batch2"))
        if product is None or len(args) > 3:
            return None
        share = float(given.get("beta", 1.0))
        return Product(product.left, product.right, product.labels, True, float(given.get("alpha", 1.0)),
                       given["input"] if share else None, share)
    values = [*args, *given.values()]
    return _of_matrices(*values) if len(values) == 2 else None


def _of_matrices(left: Any, right: Any) -> Product | None:
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return None
    if left.dim() != right.dim() or not 3 <= left.dim() <= 12:
        return None
    batch = "ABCDEFGHIJ"[:left.dim() - 2]
    return Product(left, right, (batch + "tc", batch + "cn", batch + "tn"), True)


def _of_einsum(args: tuple[Any, ...]) -> Product | None:
    if len(args) == 2 and isinstance(args[1], (list, tuple)):
        args = (args[0], *args[1])
    if len(args) != 3 or not isinstance(args[0], str) or "->" not in args[0]:
        return None
    equation, *operands = args
    inputs, result = equation.replace(" ", "").split("->")
    terms = inputs.split(",")
    if len(terms) != 2 or not all(isinstance(x, torch.Tensor) for x in operands):
        return None
    ranks = [x.dim() - len(term.replace("...", "")) for x, term in zip(operands, terms)]
    hidden = "".join(chr(0x100 + i) for i in range(max(ranks)))  # the letters of "..."
    labels = [term.replace("...", hidden[len(hidden) - rank:]) for term, rank in zip(terms, ranks)]
    labels.append(result.replace("...", hidden))
    if any(len(set(label)) != len(label) for label in labels) or any(len(x.shape) != len(label)
                                                                     for x, label in zip(operands, labels)):
        return None
    return Product(operands[0], operands[1], (labels[0], labels[1], labels[2]), False)
