"""Copies the arrays of a row to the host, for the file."""

from __future__ import annotations

from typing import Any

import torch

from .layer_sizes import stack_padded


class HostCopies:
    """Arrays that are being copied to the host, in the file's types."""

    def __init__(self) -> None:
        self._arrays: list[tuple[str, torch.Tensor]] = []
        self._event: Any = None

    def add(self, path: str, values: torch.Tensor, dtype: torch.dtype) -> None:
        values = values.detach().to(dtype).contiguous()
        if values.device.type == "cuda":
            host = torch.empty(values.shape, dtype=dtype, pin_memory=True)
            host.copy_(values, non_blocking=True)
            values = host
            if self._event is None:
                self._event = torch.cuda.Event()
            self._event.record()
        elif values.device.type != "cpu":
            values = values.cpu()
        self._arrays.append((path, values))

    def add_layers(self, path: str, layers: list[torch.Tensor], dtype: torch.dtype) -> None:
        """To be [L, ...] in the file; rounded while they are put together. Smaller ones are padded."""
        if len({layer.shape for layer in layers}) > 1:
            return self.add(path, stack_padded([layer.detach().to(dtype) for layer in layers]), dtype)
        stacked = layers[0].new_empty((len(layers), *layers[0].shape), dtype=dtype)
        torch._foreach_copy_(list(stacked.unbind(0)), layers)
        self.add(path, stacked, dtype)

    def take(self) -> list[tuple[str, int, Any]]:
        if self._event is not None:
            self._event.synchronize()
        return [(path, -1, (values.view(torch.int16) if values.dtype == torch.bfloat16 else values).numpy())
                for path, values in self._arrays]
