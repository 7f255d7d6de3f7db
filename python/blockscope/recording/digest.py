"""Identifies a model's weights, so that a calibration says which ones it is for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch

SAMPLED_BYTES = 64 << 10  # at each end of a tensor


def digest_of(model: torch.nn.Module, of_ranks: bool = False) -> str:
    """SHA-256 over the name, type, shape and first and last 64 KiB of every parameter and saved buffer, in name order.
    It is not the digest of a checkpoint's files, so a calibration from a recording is for `apply` and `compare`. Values
    that can't be read aren't in it. Nor are those of a tensor that several processes share (DTensor), because each has
    others; of_ranks: the part of this process is, where ranks write one trace."""
    found = hashlib.sha256(b"blockscope module 1\n")
    for name, values in sorted(_weights(model), key=lambda item: item[0]):
        try:
            found.update(_described(name, values, of_ranks))
        except Exception:  # of the meta device, quantised, not initialised: a subclass may raise any error
            found.update(f"{name} unread\n".encode())
    return found.hexdigest()


def _weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Those of state_dict(), without its hooks, which may raise errors."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        passing = getattr(module, "_non_persistent_buffers_set", ())
        for name, values in (*module._parameters.items(), *module._buffers.items()):
            if values is not None and name not in passing:
                yield f"{prefix}.{name}" if prefix else name, values


def _described(name: str, values: torch.Tensor, of_ranks: bool) -> bytes:
    values = values.detach()
    kind = str(values.dtype).removeprefix("torch.")
    text = f"{name} {kind} {list(values.shape)}\n".encode()
    if hasattr(values, "to_local"):  # of torch.distributed
        if not of_ranks:
            return text
        values = values.to_local()
    most = SAMPLED_BYTES // values.element_size()
    if values.numel() <= 2 * most:
        parts = [values.reshape(-1)]
    else:  # without a copy of the whole
        rows = -(-most * len(values) // values.numel())
        parts = [values[:rows].reshape(-1)[:most], values[-rows:].reshape(-1)[-most:]]
    return text + b"".join(part.cpu().contiguous().view(torch.uint8).numpy().tobytes() for part in parts)
