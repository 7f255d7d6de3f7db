"""The calls of a model by which a decoding loop runs forward passes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .compiled import uncompiled
from .continuous import VideoInputs
from .model import Inputs, encoder_and_decoder
from .settings import Settings

Before = Callable[[Inputs, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[Any], None]


class Entrances:
    """For an ordinary model, each of its calls is a pass. If an encoder fills the cache that a decoder reads, each call
    of either is a pass. The decoder's pass ends with the call of the model around it, which computes the logits."""

    def __init__(self, model: torch.nn.Module, settings: Settings) -> None:
        self._model, self._settings = model, settings  # as it is called
        self._rows = settings.batch_rows
        self._inner = uncompiled(model)
        self._parts = encoder_and_decoder(self._inner)
        self._around = 0  # calls of the whole model that are running
        self._waiting = False  # for the end of the call around the decoder

    def open(self, before: Before, after: After) -> list[Any]:
        """-> handles with remove()."""
        if self._parts is None:
            inputs = (Inputs(self._inner, self._rows) if self._settings.video is None
                      else VideoInputs(self._inner, self._settings))
            return self._hooks(self._model, inputs, before, after)
        encoder, decoder = self._parts

        def decoder_ends(output: Any) -> None:
            if self._around == 0 or output is None:
                after(output)
            else:
                self._waiting = True

        read = Inputs(encoder, self._rows, "encoder"), Inputs(decoder, self._rows, "decoder")
        return [*self._hooks(encoder, read[0], before, lambda output: after(_nothing(output))),
                *self._hooks(decoder, read[1], before, lambda output: decoder_ends(_nothing(output))),
                self._wrap(after)]

    @staticmethod
    def _hooks(module: torch.nn.Module, inputs: Inputs, before: Before, after: After) -> list[Any]:
        return [module.register_forward_pre_hook(lambda _, args, kwargs: before(inputs, args, kwargs), with_kwargs=True,
                                                 prepend=True),
                module.register_forward_hook(lambda _, args, output: after(output), always_call=True)]

    def _wrap(self, after: After) -> Any:
        """Wraps the model's forward, because its own loop calls forward directly, which no hook sees."""
        own = self._model.forward

        @functools.wraps(own)
        def forward(*args: Any, **kwargs: Any) -> Any:
            self._around, self._waiting = self._around + 1, False
            output = None
            try:
                output = own(*args, **kwargs)
            finally:
                self._around -= 1
                if self._waiting:
                    self._waiting = False
                    after(output)
            return output

        return _Replaced(self._model, forward)


class _Replaced:
    """The model's forward while a recording is open."""

    def __init__(self, model: torch.nn.Module, forward: Callable[..., Any]) -> None:
        self._model, self._before = model, model.__dict__.get("forward")
        model.__dict__["forward"] = forward

    def remove(self) -> None:
        if self._before is None:
            self._model.__dict__.pop("forward", None)
        else:
            self._model.__dict__["forward"] = self._before


def _nothing(output: Any) -> Any:
    """Hidden states are not logits. None stays None, because the part raised an error."""
    return None if output is None else ()
