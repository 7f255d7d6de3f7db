"""Identifies a model's weights, so that a calibration says which ones it is for."""

from __future__ import annotations

import hashlib

import torch

SAMPLED_BYTES = 64 << 10  # at each end of a tensor


def digest_of(model: torch.nn.Module) -> str:
    """SHA-256 over the name, type, shape and first and last 64 KiB of every parameter and buffer, in name order. It is
    not the digest of a checkpoint's files, so a calibration from a recording is for `apply` and `compare`."""
    found = hashlib.sha256(b"blockscope module 1\n")
    for name, values in sorted(model.state_dict().items()):
        if not isinstance(values, torch.Tensor):  # a module's extra state
            continue
        values = values.detach()
        kind = str(values.dtype).removeprefix("torch.")
        found.update(f"{name} {kind} {list(values.shape)}\n".encode())
        flat, most = values.reshape(-1), SAMPLED_BYTES // max(values.element_size(), 1)
        ends = [flat] if len(flat) <= 2 * most else [flat[:most], flat[-most:]]
        for part in ends:
            try:
                found.update(part.cpu().contiguous().view(torch.uint8).numpy().tobytes())
            except (NotImplementedError, RuntimeError, TypeError):  # on the meta device; of a quantised type
                found.update(b"unread")
    return found.hexdigest()
