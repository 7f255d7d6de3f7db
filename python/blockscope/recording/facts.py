"""What is fixed for a whole trace before its first row: the model's shape, and the texts that say what ran."""

from __future__ import annotations

import json
import platform
import sys
from typing import Any

import torch

from .. import _core
from ..errors import UsageError
from . import kernels
from .digest import digest_of
from .heads import HeadChoice
from .layer_maps import refuse_length
from .model import HIDDEN_SIZE, VOCAB_SIZE, vocabulary_pieces
from .passes import RunningPass
from .routers import sizes_of
from .settings import Settings, config_value
from .shapes import LayerShape
from .steps import Pass, Sequence


def meta_of(settings: Settings, layers: list[int], model: Any, tokenizer: Any, running: RunningPass,
            sequence: Sequence, logits: torch.Tensor | None, shape: LayerShape) -> dict[str, Any]:
    """At the first denoising pass; sequence: the batch's first one. layers: the recorded ones."""
    sizes = shape.sizes
    kv_heads = (HeadChoice.of(settings.heads, shape.heads, shape.kv_heads).kv if sizes is None
                else sizes.read_by(settings.heads or range(shape.heads), shape.heads, layers))
    hidden, video = running.hidden_size or config_value(model, *HIDDEN_SIZE), settings.video
    vocab = config_value(model, *VOCAB_SIZE) or (logits.shape[-1] if logits is not None else None)
    if video is not None:
        hidden, vocab = hidden or shape.heads * shape.channels, 0
    if settings.ranks in ("heads", "layers") and vocab and logits is not None and logits.shape[-1] < vocab:
        raise UsageError(f"{type(model).__name__}: returns logits of {logits.shape[-1]} tokens, expected the {vocab} "
                         "of its vocabulary on every rank. HINT: a model that gathers its logits")
    if not hidden or not vocab and video is None:
        raise UsageError(f"{type(model).__name__}: neither its configuration nor its outputs tell hidden_size and "
                         "vocab_size")
    num_layers = running.num_layers
    config = getattr(model, "config", None)
    resolved = {
        "architecture": type(model).__name__, "model_type": getattr(config, "model_type", ""),
        "layers": num_layers, "heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.channels,
        "requested": getattr(config, "_name_or_path", "") or "",
        "digest": digest_of(model, settings.ranks in ("heads", "layers")),
        "compute_dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "device": next(model.parameters()).device.type}  # without a number, so that files of ranks can be merged
    run = {
        "recorded_by": "blockscope.record", "version": _core.version, "torch": torch.__version__,
        "python": platform.python_version(),
        "transformers": getattr(sys.modules.get("transformers"), "__version__", ""),
        "decoding": "autoregressive" if settings.autoregressive else "block_diffusion" if video is None
        else "continuous",
        "block_length": settings.block_length, "gen_length": settings.gen_length, "policy": "exact",
        "recorded_steps": settings.steps or [], "recorded_blocks": settings.blocks or [],
        "batch_rows": settings.batch_rows or [],
        "compiled": settings.compiled, "attention": settings.attention,
        "kernels": "blockscope" if kernels.loaded() else "torch", "sources": settings.sources}
    if video is not None:
        resolved["modality"] = "continuous"
        if video.tokens_per_frame is not None:
            resolved["tokens_per_frame"] = video.tokens_per_frame
            resolved["frames_per_block"] = settings.block_length // video.tokens_per_frame
        run["context_noise"], run["sinks"], run["skipped_attention"] = video.context_noise, video.sinks, list(
            running.skipped)
    if settings.ranks is not None:
        run["ranks"] = settings.ranks
    if settings.maps is not None:
        run["map_steps"] = settings.maps.steps or []
    if settings.interventions:
        # A file's name need not be UTF-8, which JSON must be.
        run["interventions"] = [one.text.encode(errors="replace").decode() for one in settings.interventions]
    return {
        "num_heads": shape.heads, "num_kv_heads": shape.kv_heads, "head_dim": shape.channels,
        "softmax_scale": shape.scale, "num_layers": num_layers, "hidden_size": hidden, "vocab_size": vocab,
        "mask_token_id": -1 if settings.mask_token_id is None else settings.mask_token_id,
        "logit_shift": settings.logit_shift, "bidirectional": bool(sequence.bidirectional),
        "block_length": len(settings.recorded_rows), "level": settings.level, "layers": layers,
        "block_tokens": 0 if video is None else settings.block_length,
        "block_rows": [] if video is None else video.rows,
        "pair_steps": 0 if video is None else video.pair_steps,
        "heads": settings.heads or list(range(shape.heads)),
        "kv_heads": kv_heads or list(range(shape.kv_heads)),
        "layer_kv_heads": [] if sizes is None else list(sizes.kv_heads),
        "layer_head_dim": [] if sizes is None else list(sizes.channels),
        "layer_window": [] if sizes is None else list(sizes.windows),
        "noise_canvas": settings.canvas,
        "set_size": settings.set_size, "set_normaliser": settings.set_normaliser,
        "array_type": settings.array_type,
        "regions": settings.regions.names if settings.at_least("summary") and video is None else [],
        "has_set_norms": settings.set_size > 0, "has_interventions": bool(settings.interventions),
        "distance_bins": _core.distance_bins if settings.at_least("summary") and video is None else 0,
        **(sizes_of(model, running.routed) if settings.router else {"experts_per_token": 0, "num_experts": 0}),
        **_of_maps(settings, running.passes[0], sequence, shape.heads),
        "model_json": json.dumps(resolved).encode(), "run_json": json.dumps(run).encode(),
        "pieces": vocabulary_pieces(tokenizer, vocab)}


def map_heads(settings: Settings, num_heads: int) -> list[int]:
    maps = settings.maps
    return [] if maps is None else maps.among("heads", settings.heads or range(num_heads))


def _of_maps(settings: Settings, one: Pass, sequence: Sequence, num_heads: int) -> dict[str, Any]:
    maps = settings.maps
    if maps is None:
        return {"map_layers": [], "map_heads": [], "map_positions": 0}
    whole = sequence.canvas is not None or sequence.gen_length is not None
    if maps.positions is None and not whole:
        raise UsageError("maps: the length of the sequence isn't known. HINT: record(..., gen_length=...), or "
                         "maps=\"positions=...\" with the length of the longest one")
    heads = map_heads(settings, num_heads)
    length = sequence.prompt_length + sequence.initial_length(one)
    if maps.positions is not None and maps.positions < length:
        refuse_length(length, maps.positions)
    return {"map_layers": maps.layers, "map_heads": heads, "map_positions": maps.positions or length}
