"""Facts about a model that the recorder needs: its layers, its inputs by name, its vocabulary."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import UsageError
from .caches import cache_length, selects_by_layer, tells_rows
from .compiled import uncompiled
from .settings import config_value
from .steps import PassInput, Statement
from .video import takes_timestep

NUM_LAYERS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
NUM_HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")
NUM_KV_HEADS = ("effective_n_kv_heads", "num_key_value_heads", "n_kv_heads", "num_kv_heads")
HIDDEN_SIZE = ("hidden_size", "d_model", "n_embd")
VOCAB_SIZE = ("vocab_size",)
IDS = ("input_ids", "tokens", "idx", "x")
PAST = ("past_key_values", "past_key_value", "kv_cache", "cache")
KEPT_LOGITS = ("logits_to_keep", "num_logits_to_keep")
REPLACED = ("replace_position",)  # [S, L] bool: the positions of a cache whose entries the pass replaces (Fast-dLLM)


def model_within(model: torch.nn.Module) -> torch.nn.Module:
    """The module whose calls are forward passes. For a wrapper that passes all arguments on (``forward(*args,
    **kwargs)``: DataParallel, DistributedDataParallel, a user's own), this is the module inside."""
    for module in model.modules():
        if isinstance(module, torch.nn.DataParallel) and len(module.device_ids) > 1:
            raise UsageError(f"DataParallel splits each batch over {len(module.device_ids)} devices, and a recording "
                             "sees one. HINT: record(model.module, ...) and call that, or "
                             "DataParallel(model, device_ids=[0])")
    level = [model]
    while level and _hands_on(model):
        level = [child for module in level for child in module.children()]
        fitting = [module for module in level if _is_called(module) and any(
            isinstance(part, torch.nn.ModuleList) and len(part) > 0 for part in module.modules())]
        if len(fitting) > 1:
            raise UsageError(f"{type(model).__name__}: hands on what it is given, and holds {len(fitting)} models ("
                             f"{', '.join(type(module).__name__ for module in fitting)}). HINT: record(...) the one "
                             "that the loop decodes with")
        # A module with its own weights may be the head of a model that returns no logits.
        if fitting and _weights_of(model) <= _weights_of(fitting[0]):
            return fitting[0]
    return model


def _parameters(module: torch.nn.Module) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(uncompiled(module).forward).parameters
    except (TypeError, ValueError):  # not Python's
        return {}


def _is_called(module: torch.nn.Module) -> bool:
    """With the arguments of a model, of tokens or continuous."""
    return not set(IDS).isdisjoint(_parameters(module)) or takes_timestep(module)


def _hands_on(module: torch.nn.Module) -> bool:
    kinds = {parameter.kind for parameter in _parameters(module).values()}
    return inspect.Parameter.VAR_POSITIONAL in kinds and not _is_called(module)


def _weights_of(module: torch.nn.Module) -> set[int]:
    """Modules with weights, by identity: tied weights are one tensor in two modules."""
    return {id(part) for part in module.modules() if part._parameters}


def find_layers(model: torch.nn.Module, given: Any) -> list[tuple[str, torch.nn.Module]]:
    """The model's decoder layers with their names, in order."""
    names = {module: name for name, module in model.named_modules()}
    if given is not None:
        layers = list(given)
        if not layers or any(layer not in names for layer in layers):
            raise UsageError("decoder_layers: expected modules of the model, such as model.model.layers")
        return [(names[layer], layer) for layer in layers]
    count = config_value(model, *NUM_LAYERS)
    two = encoder_and_decoder(model)
    inside = set(names if two is None else two[1].modules())
    lists = [module for module in names if isinstance(module, torch.nn.ModuleList) and len(module) > 0]
    fitting = [module for module in lists if len(module) == count and module in inside]
    # A list inside a layer isn't that of the layers.
    fitting = [module for module in fitting
               if not any(names[module].startswith(f"{names[other]}.") for other in fitting)]
    if len(fitting) != 1:
        there = ", ".join(f"{names[module]} ({len(module)})" for module in lists) or "none"
        raise UsageError(
            f"{type(model).__name__}: its layers can't be determined: expected one ModuleList of {count} "
            f"(model.config.{NUM_LAYERS[0]}), found {len(fitting)} among {there}. HINT: "
            "record(..., decoder_layers=model.model.layers)")
    return [(names[layer], layer) for layer in fitting[0]]


def encoder_and_decoder(model: torch.nn.Module) -> tuple[torch.nn.Module, torch.nn.Module] | None:
    """The two parts of a model in which an encoder fills a cache with the text before the canvas, and a decoder
    denoises the canvas (transformers' DiffusionGemma). None: a model of one part."""
    names = inspect.signature(model.forward).parameters
    inner = getattr(model, "model", model)
    parts = getattr(inner, "encoder", None), getattr(inner, "decoder", None)
    if "decoder_input_ids" not in names or not all(isinstance(part, torch.nn.Module) for part in parts):
        return None
    reads = inspect.signature(parts[1].forward).parameters
    return parts if "past_key_values" in reads and "encoder_hidden_states" not in reads else None


def encoder_layers(model: torch.nn.Module, count: int) -> list[tuple[str, torch.nn.Module]]:
    """The layers of the encoder of such a model, which store the keys that the decoder's layers of the same numbers
    read; none where they can't be determined."""
    parts = encoder_and_decoder(model)
    names = {module: name for name, module in model.named_modules()}
    lists = [] if parts is None else [module for module in parts[0].modules()
                                      if isinstance(module, torch.nn.ModuleList) and len(module) == count]
    return [(names[layer], layer) for layer in lists[0]] if len(lists) == 1 else []


class Inputs:
    """A forward pass's arguments by name."""

    def __init__(self, model: torch.nn.Module, batch_rows: list[int] | None, role: str = "") -> None:
        self._signature = inspect.signature(model.forward)
        self._rows, self._role = batch_rows, role
        prefix = "decoder_" if role == "decoder" else ""
        self._ids = tuple(prefix + name for name in IDS)
        self._positions = prefix + "position_ids"

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name."""
        try:
            bound = self._signature.bind_partial(*args, **kwargs).arguments
        except TypeError:  # the model itself will tell
            bound = dict(kwargs)
        for value in list(bound.values()):
            if isinstance(value, Mapping) and not isinstance(value, torch.Tensor):
                bound = {**value, **bound}  # **kwargs of the forward
        return bound

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any], statement: Statement) -> PassInput:
        bound = self._bound(args, kwargs)
        ids = next((bound[name] for name in self._ids if isinstance(bound.get(name), torch.Tensor)), None)
        if ids is None:
            raise UsageError(
                f"the model was called without token ids (looked for {', '.join(self._ids)}). HINT: call it with "
                "input_ids, not with embeddings; record(...) the module inside a wrapper that takes them; or leave the "
                "pass out with run.paused()")
        if ids.dim() == 1:
            ids = ids.unsqueeze(0)
        past = next((bound[name] for name in PAST if bound.get(name) is not None), None)
        kept = cache_length(past)
        batch = len(ids)
        if self._rows is not None:
            self._check_rows(batch, past)
            bound = {name: value[self._rows] if isinstance(value, torch.Tensor) and value.dim() > 0
                     and len(value) == batch else value for name, value in bound.items()}
            ids = ids[self._rows]
        tokens = ids.tolist()
        _refuse_padding(bound.get("attention_mask"))
        _refuse_rolled(past)
        positions = computed = None
        start = statement.start
        placed = start is not None
        if statement.positions is not None:
            rows = _rows_for_all(statement.positions, len(tokens))
            if len(rows[0]) == len(tokens[0]):
                positions = rows
            else:  # the loop passes all tokens, but the model computes some
                computed, start, placed = rows, 0, True
        elif tells_rows(past):
            start, placed = 0, True
        elif start is None:
            positions = _replaced(next((bound[name] for name in REPLACED if bound.get(name) is not None), None), tokens)
        if positions is not None:
            placed, start = True, positions[0][0]
            if all(row == list(range(start, start + len(row))) for row in positions):
                positions = None  # in a row
        if start is None:
            start = _start_of(bound.get(self._positions), len(tokens[0]))
        if start is None:
            start = kept
        if computed is not None:
            _check_computed(computed, start, len(tokens[0]))
        logits = next((bound[name] for name in KEPT_LOGITS if isinstance(bound.get(name), int)), None)
        return PassInput(tokens, start, kept, past is not None, statement, positions, computed, placed, self._role,
                         past, batch, self._rows, logits)

    def _check_rows(self, batch: int, past: Any) -> None:
        if self._rows[-1] >= batch:
            raise UsageError(f"batch_rows: expected 0 to {batch - 1} for a batch of {batch} sequences, got "
                             f"{self._rows[-1]}")
        if tells_rows(past) or selects_by_layer(past):
            raise UsageError(f"batch_rows: with a cache that chooses the rows of a pass ({type(past).__name__}) a part "
                             "of the batch isn't recorded. HINT: record all of it")


def _rows_for_all(rows: list[list[int]], sequences: int) -> list[list[int]]:
    if len(rows) not in (1, sequences):
        raise UsageError(f"run.step: positions of {len(rows)} sequences for a batch of {sequences}")
    return rows * sequences if len(rows) == 1 else rows


def _check_computed(rows: list[list[int]], start: int, length: int) -> None:
    for row in rows:
        if len(row) > length or row[0] < start or row[-1] >= start + length:
            raise UsageError(
                f"run.step: positions {row[0]} to {row[-1]} ({len(row)} of them) for a pass over {length} tokens from "
                f"position {start}. HINT: as many positions as tokens, or some of those that the pass goes over")


def _replaced(flags: Any, tokens: list[list[int]]) -> list[list[int]] | None:
    if not isinstance(flags, torch.Tensor):
        return None
    rows = [row.nonzero()[:, 0].tolist() for row in torch.atleast_2d(flags)]
    if any(len(row) != len(tokens[0]) for row in rows):
        raise UsageError(f"{REPLACED[0]}: marks {len(rows[0])} positions for {len(tokens[0])} tokens. HINT: state "
                         "where they stand with run.step(positions=...)")
    return _rows_for_all(rows, len(tokens))


def _refuse_rolled(past: Any) -> None:
    """A static cache with a sliding window overwrites its oldest keys, so they aren't in order of position."""
    windows = getattr(past, "is_sliding", None)
    if getattr(past, "is_compileable", False) is True and isinstance(windows, (list, tuple)) and any(windows):
        raise UsageError("a static cache with a sliding window isn't in order of position, so it isn't recorded. HINT: "
                         "a dynamic cache (generate's default)")


def _refuse_padding(mask: Any) -> None:
    if isinstance(mask, torch.Tensor) and mask.dim() == 2 and not bool((mask != 0).all()):
        raise UsageError(
            "attention_mask: sequences padded to one length aren't recorded, as positions would not be those of the "
            "cache. HINT: decode sequences of one length together, or one at a time")


def _start_of(positions: Any, length: int) -> int | None:
    if not isinstance(positions, torch.Tensor):
        return None
    rows = positions.reshape(-1, positions.shape[-1]).tolist()
    first = rows[0]
    if any(row != first for row in rows) or len(first) != length or first != list(range(first[0], first[0] + length)):
        raise UsageError(
            "position_ids: expected consecutive positions, the same for the whole batch. HINT: state where the pass "
            "begins with run.step(start=...)")
    return first[0]


def logits_of(output: Any) -> torch.Tensor | None:
    """The logits [S, R, V] in the result of a forward pass."""
    logits = getattr(output, "logits", None)
    if logits is None and isinstance(output, Mapping):
        logits = output.get("logits")
    if logits is None and isinstance(output, (tuple, list)) and output:
        logits = output[0]
    if logits is None and isinstance(output, torch.Tensor):
        logits = output
    if not isinstance(logits, torch.Tensor) or not logits.is_floating_point():
        return None
    return logits.unsqueeze(0) if logits.dim() == 2 else logits if logits.dim() == 3 else None


# --- vocabulary -------------------------------------------------------------------------------------------------------


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level BPE writes bytes with."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def vocabulary_pieces(tokenizer: Any, size: int | None = None) -> list[bytes]:
    """The bytes of every token id below size, by default of all; [] without a tokenizer of transformers."""
    if not hasattr(tokenizer, "convert_ids_to_tokens") or not hasattr(tokenizer, "__len__"):
        return []
    known = len(tokenizer)
    size = known if size is None else size
    texts = tokenizer.convert_ids_to_tokens(list(range(min(size, known))))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    byte_level = "ByteLevel" in str(getattr(backend, "decoder", ""))
    added = set(getattr(tokenizer, "added_tokens_decoder", {}))
    alphabet = _byte_alphabet()
    pieces = []
    for index, text in enumerate(texts):
        if text is None:
            pieces.append(b"")
        elif byte_level and index not in added and all(letter in alphabet for letter in text):
            pieces.append(bytes(alphabet[letter] for letter in text))
        else:
            pieces.append((text if index in added else text.replace("\u2581", " ")).encode(errors="replace"))
    return pieces + [b""] * (size - len(pieces))
