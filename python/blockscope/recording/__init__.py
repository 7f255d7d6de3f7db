"""Recording a trace of somebody else's PyTorch model while their own loop decodes with it. :func:`record` is all
that users see; torch is imported when it is called."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:  # pragma: no cover
    from collections.abc import Iterable

    from .recorder import Recorder


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"blockscope.record: needs torch, which this Python doesn't have ({error}). HINT: install the torch that "
            "your model runs with; opening and analysing traces needs none"
        ) from error
    return torch


def record(
    model: Any,
    path: str | os.PathLike[str],
    *,
    level: str = "outputs",
    block_length: int | None = None,
    mask_token_id: int | None = None,
    tokenizer: Any = None,
    gen_length: int | None = None,
    bidirectional: bool | None = None,
    logit_shift: int | None = None,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    steps: Iterable[int] | None = None,
    blocks: Iterable[int] | None = None,
    batch_rows: Iterable[int] | None = None,
    set_size: int = 32,
    set_normaliser: str = "prefix",
    array_type: str = "bf16",
    decoder_layers: Any = None,
    compiled: str = "keep",
    attention: str = "observe",
    force: bool = False,
) -> Recorder:
    """Records what ``model`` does within ``with blockscope.record(...) as run:`` as a trace at ``path``.

    The model is called by your own loop, as always; no token changes. Attention is seen where the model calls
    ``scaled_dot_product_attention``, flash-attn's operators, flex attention, ``nn.MultiheadAttention``,
    ``blockscope.ops.split_attention`` or transformers' eager attention, and where it writes out the products and the
    softmax. Steps are seen by the model's inputs. What can't be inferred has to be stated
    (:meth:`Recorder.begin_sequence`, :meth:`Recorder.step`, :meth:`Recorder.attention`), and an error says what.

    level: ``trajectory``, ``summary``, ``sets``, ``outputs`` or ``full``; docs/trace_format.md says what each holds.
    block_length: positions of a block. 1 for a model without masks, which is recorded token by token. None: of a
        model whose decoder denoises a canvas, ``model.config.canvas_length``.
    mask_token_id: None: of ``model.config`` or of the tokenizer; a model without one decodes token by token.
    tokenizer: of transformers; gives the trace its vocabulary and texts.
    gen_length: positions behind the prompt. None: known of a loop over the whole canvas; otherwise the trace's
        frames grow by a block at a time.
    bidirectional: whether a block sees what stands behind it. None: where one pass goes over more than a block.
    logit_shift: 1: the logits of position p predict p + 1. None: 1 token by token, otherwise 0.
    layers, heads, steps, blocks: the layers, query heads, denoising steps (from 1) and blocks (from 0) whose arrays
        are kept; None: all. Of KV heads those that the kept query heads read.
    batch_rows: the rows of each batch that are recorded; None: all. ``[0]``: the first branch alone where
        classifier-free guidance runs both in one batch.
    set_size, set_normaliser: k of the top-k sets, and ``prefix`` or ``prefix+block``.
    array_type: ``bf16`` or ``f32``: of A_in, A_out and the queries in the file.
    decoder_layers: the model's layers in order, such as ``model.model.layers``. None: the only ``ModuleList`` that is
        as long as ``model.config.num_hidden_layers`` says; where there is none, or there are several, an error asks.
    compiled: ``keep``: code behind ``torch.compile`` runs as it is, and attention within it ends the recording with
        an error. ``eager``: while the recording is open, all of the process runs as if it weren't compiled
        (``torch.compiler.set_stance``), which is seen; rounding, and with it a token, may differ from the compiled
        loop's. ``run`` in the trace says so.
    attention: ``observe``: the model computes its attention, the recorder computes it again in two parts. ``replace``:
        where ``scaled_dot_product_attention`` is asked for plain attention on a CPU, the recorder computes it once
        and hands the model both parts together, which takes less time than the model alone. Its last bits differ, so a
        token can where two are nearly as likely; ``run`` in the trace says so.
    force: replace an existing trace.
    """
    torch = _torch()
    from .model import encoder_and_decoder, model_within
    from .recorder import Recorder
    from .settings import LEVELS, Settings

    if level not in LEVELS:
        raise UsageError(f"level: expected one of {', '.join(LEVELS)}, got {level!r}")
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    model = model_within(model)
    canvas = encoder_and_decoder(model) is not None
    settings = Settings.of(
        model, tokenizer, level=level, block_length=block_length, mask_token_id=mask_token_id, gen_length=gen_length,
        bidirectional=bidirectional, logit_shift=logit_shift, layers=layers, heads=heads, steps=steps, blocks=blocks,
        batch_rows=batch_rows, set_size=set_size, set_normaliser=set_normaliser, array_type=array_type,
        compiled=compiled, attention=attention, canvas=canvas)
    return Recorder(model, os.fsencode(path), settings, tokenizer=tokenizer, decoder_layers=decoder_layers,
                    force=force)
