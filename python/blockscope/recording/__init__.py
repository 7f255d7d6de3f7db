"""Records a trace of any PyTorch model while its own loop decodes with it (:func:`record`), or while a serving engine
does (:func:`record_engine`). Both import torch when they are called."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:  # pragma: no cover
    from collections.abc import Iterable

    from .engines import EngineRecorder
    from .recorder import Recorder


def torch_for(function: str) -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"blockscope.{function}: needs torch, which this Python doesn't have ({error}). HINT: install the torch "
            "that your model runs with; opening and analysing traces needs none"
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
    interventions: Any = None,
    maps: Any = None,
    regions: Any = None,
    router: bool = False,
    rows: Iterable[int] | int | None = None,
    tokens_per_frame: int | None = None,
    sinks: int | None = None,
    context_noise: float = 0.0,
    pair_steps: int = 8,
    ranks: str | None = None,
    group: Any = None,
    rank_timeout: float = 300.0,
    force: bool = False,
) -> Recorder:
    """Records what ``model`` does within ``with blockscope.record(...) as run:`` as a trace at ``path``.

    Your own loop calls the model as always, and no token changes. The recorder sees attention if the model calls
    ``scaled_dot_product_attention``, flash-attn's operators, flex attention, ``nn.MultiheadAttention``,
    ``blockscope.ops.split_attention`` or transformers' eager attention. It also sees attention that the model spells
    out as products and a softmax. It infers steps from the model's inputs. If it can't infer something, an error says
    what to state with :meth:`Recorder.begin_sequence`, :meth:`Recorder.step` or :meth:`Recorder.attention`.

    level: ``trajectory``, ``summary``, ``sets``, ``outputs`` or ``full``; docs/trace_format.md describes them.
    block_length: positions of a block. 1 for a model without masks, which is recorded token by token. None: for a
        model with a decoder that denoises a canvas, ``model.config.canvas_length``.
    mask_token_id: None: from ``model.config`` or the tokenizer. A model without one decodes token by token.
    tokenizer: a tokenizer of transformers, for the vocabulary and the texts of the trace.
    gen_length: positions after the prompt. None: inferred for a loop over the whole canvas; for other loops, the
        trace's frames grow by one block at a time.
    bidirectional: whether a block sees the positions after it. None: yes if one pass goes over more than a block.
    logit_shift: 1: the logits of position p predict position p + 1. None: 1 if decoding is token by token, else 0.
    layers, heads, steps, blocks: keep arrays only of these layers, query heads, denoising steps (from 1) and blocks
        (from 0); None: all. KV heads are those that the kept query heads read.
    batch_rows: the rows of each batch to record; None: all. Use ``[0]`` for only the first branch of classifier-free
        guidance that runs both branches in one batch.
    set_size, set_normaliser: k of the top-k sets, and ``prefix`` or ``prefix+block``.
    array_type: ``bf16`` or ``f32``, the type of A_in, A_out and the queries in the file.
    decoder_layers: the model's layers in order, such as ``model.model.layers``. None: the only ``ModuleList`` with
        ``model.config.num_hidden_layers`` elements. If there is none, or several, an error asks for this argument.
    compiled: ``keep``: code of ``torch.compile`` runs unchanged, and attention in it ends the recording with an error.
        ``eager``: while the recording is open, the whole process runs without compilation
        (``torch.compiler.set_stance``), so attention is seen. Its rounding differs from the compiled loop's, so a
        token may differ. ``run`` in the trace says so.
    attention: ``observe``: the model computes its attention, and the recorder computes it again in two parts.
        ``derive``: on a CPU, A_out follows from the model's own result, A_in and the log-sum-exps. The recorder then
        reads no value of the prefix. The error is that of the model's result, at most doubled: heads in which a row
        gives the prefix less than half of its attention compute A_out directly. ``replace``: for plain
        ``scaled_dot_product_attention`` on a CPU, the recorder computes both parts once and returns the merged result
        to the model, which spares the model's own attention. Its last bits differ, so a near-tie may pick another
        token. ``run`` in the trace has the choice.
    interventions: what is changed in attention while the model decodes, such as ``["drop_head,layers=3,heads=0-2"]``.
        Texts are those of ``blockscope capture --intervene``, which ``blockscope help intervene`` lists. An entry is a
        text, a dict such as ``{"what": "drop_head", "layers": [3]}``, or the name of a ``*.json`` file with a list. It
        needs ``attention="replace"``. All kinds except ``patch_hidden`` need a model that calls
        ``scaled_dot_product_attention`` on a CPU. Only denoising passes change, and with ``commits`` those that commit
        a block. ``patch_external`` and ``patch_head`` take values of a trace with the same prompts, and
        ``patch_hidden`` the layers' inputs. A layer that can't be changed ends the recording. ``run["interventions"]``
        in the trace has the texts.
    maps: the attention weights themselves, as float16 in ``/map/weight``: a text of ``blockscope capture
        --record-maps``, such as ``"layers=3,9;heads=0-3;steps=1,8"``, or a dict such as ``{"layers": [3, 9]}``. What is
        left out is recorded whole; ``{}`` is all weights. ``positions`` is the length of the longest sequence. By
        default it is that of the first one; a loop over blocks needs ``gen_length`` for it. Level ``trajectory`` has
        no maps.
    regions: names for parts of prompts, over which ``/spread/region`` sums and which ``hide_keys,region=`` takes: the
        name of a JSON file, or its list, such as ``[{"region": "question", "between": ["Q:", "A:"]}]``. A rule has one
        of ``positions`` (``"4-99"``, or numbers), ``token`` (an id), ``text`` and ``between`` (two texts). Texts need
        ``tokenizer``. Every prompt must fit every rule. The roles of a chat are not found: the loop passes token ids,
        which don't show the messages.
    router: also the experts that routers choose, and their weights (``/router``). A router is a module of a layer with
        a name that ends with "router" or "gate". It returns the chosen experts and their weights, as in transformers.
    rows, tokens_per_frame, sinks, context_noise, pair_steps: for a continuous model, which is called with a latent and
        a timestep instead of token ids (video). Its block is a chunk of frames of ``block_length`` tokens.
        docs/python.md has a section about it. rows: the rows of a block in the trace's arrays, as a list or as a number
        of evenly spaced ones; None: 64. Statistics are of all rows. tokens_per_frame: if the model is told its position
        in frames. sinks: number of keys from position 0 on that a rolling cache keeps. context_noise: timestep of the
        pass that writes a finished block's keys. pair_steps: earlier steps of a block that each step is compared with.
    ranks: how the processes of a torch.distributed group share the work. Every rank calls ``record`` with the same
        arguments. ``heads`` (tensor parallelism): the layers of each rank hold a part of the heads, in the order of the
        ranks. ``layers`` (pipeline): each rank has a contiguous part of the layers, and its model's list of layers has
        modules without weights in place of the others. In both cases all ranks call the model with the same token ids
        and get all logits, and the first rank writes one trace of the whole model. ``sequences`` (data parallelism):
        each rank decodes sequences of its own. Rank 3 writes ``run.r0003.h5`` for ``run.h5``; ``blockscope repack
        run.r*.h5 --merge -o run.h5`` joins the files. None: this process records alone.
    group: the process group of torch.distributed whose ranks these are; None: that of all processes.
    rank_timeout: seconds that a rank waits for another one, with ``heads`` and ``layers``. Then it ends with
        :class:`blockscope.RankError`.
    force: replace an existing trace.
    """
    torch = torch_for("record")
    from .intervention_texts import read_interventions
    from .model import encoder_and_decoder, model_within
    from .ranks import Ranks, path_of_rank
    from .recorder import Recorder
    from .regions import read_regions
    from .settings import LEVELS, Settings
    from .video import video_of

    if level not in LEVELS:
        raise UsageError(f"level: expected one of {', '.join(LEVELS)}, got {level!r}")
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    model = model_within(model)
    canvas = encoder_and_decoder(model) is not None
    video = video_of(
        model, tokenizer, mask_token_id, block_length, rows, tokens_per_frame, sinks, context_noise, pair_steps,
        refused={"level": level if level in ("sets", "full") else None, "gen_length": gen_length, "maps": maps,
                 "router": router or None,
                 "interventions": interventions, "regions": regions, "logit_shift": logit_shift, "heads": heads,
                 "attention": None if attention == "observe" else attention,
                 "ranks": None if ranks == "sequences" else ranks})
    settings = Settings.of(
        model, tokenizer, level=level, block_length=block_length, mask_token_id=mask_token_id, gen_length=gen_length,
        bidirectional=bidirectional, logit_shift=logit_shift, layers=layers, heads=heads, steps=steps, blocks=blocks,
        batch_rows=batch_rows, set_size=set_size, set_normaliser=set_normaliser, array_type=array_type,
        compiled=compiled, attention=attention, interventions=read_interventions(interventions), maps=maps,
        regions=read_regions(regions, tokenizer), ranks=ranks, canvas=canvas, video=video, router=router)
    if ranks == "sequences":
        path = path_of_rank(path, group)
    return Recorder(model, os.fsencode(path), settings, Ranks(model, ranks, group, rank_timeout),
                    tokenizer=tokenizer, decoder_layers=decoder_layers, force=force)


def record_engine(
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
    set_size: int = 32,
    set_normaliser: str = "prefix",
    array_type: str = "bf16",
    maps: Any = None,
    regions: Any = None,
    force: bool = False,
) -> EngineRecorder:
    """Records what a serving engine's worker does within ``with blockscope.record_engine(...) as run:`` as a trace at
    ``path``. The worker wraps each forward pass in ``run.batch(...)`` and states attention and logits
    (:class:`EngineRecorder`); each request is a sequence of the trace. No token changes.

    model: the engine's ``torch.nn.Module``. Its ``config`` is read, and for the trace's digest of the weights the type,
        device and ends of its parameters.
    The other arguments are those of :func:`record`. mask_token_id: None: from ``model.config`` or the tokenizer.

    Errors are :class:`UsageError`. One within ``run.batch(...)`` leaves the trace as ``.partial``, with all rows so
    far."""
    torch = torch_for("record_engine")
    from .engines import EngineRecorder
    from .regions import read_regions
    from .settings import LEVELS, Settings

    if level not in LEVELS:
        raise UsageError(f"level: expected one of {', '.join(LEVELS)}, got {level!r}")
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    settings = Settings.of(
        model, tokenizer, level=level, block_length=block_length, mask_token_id=mask_token_id, gen_length=gen_length,
        bidirectional=bidirectional, logit_shift=logit_shift, layers=layers, heads=heads, steps=steps, blocks=blocks,
        batch_rows=None, set_size=set_size, set_normaliser=set_normaliser, array_type=array_type, compiled="keep",
        attention="observe", interventions=(), maps=maps, regions=read_regions(regions, tokenizer), ranks=None,
        canvas=False)
    return EngineRecorder(model, os.fsencode(path), settings, tokenizer=tokenizer, force=force)
