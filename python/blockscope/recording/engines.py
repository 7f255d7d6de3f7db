"""Records a serving engine. Its passes go over ragged batches: tokens of several requests, which come and go, with keys
in pages. The engine states what hooks on a module can't see.

The interface takes what these engines have at hand in a pass:
- SGLang: sgl-project/sglang 0929d6df (srt/dllm/algorithm/base.py: DllmAlgorithm.run), 0005834c
  (srt/layers/attention/flashinfer_backend.py: forward_extend(q, k, v, layer, forward_batch, save_kv_cache));
- vLLM: vllm-project/vllm 004a5da0 (vllm/attention/layer.py: unified_attention(query, key, value, layer_name));
- FlashInfer: flashinfer-ai/flashinfer c91093d3 (flashinfer/prefill.py: BatchPrefillWithPagedKVCacheWrapper)."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch

from .._arguments import whole_numbers
from ..errors import UsageError
from .batch import Batch
from .calls import stated_call
from .model import NUM_HEADS, NUM_KV_HEADS, NUM_LAYERS
from .open_trace import OpenTrace
from .ragged import RaggedPass, check_rows, read_pages
from .ranks import Ranks
from .requests import Request, RequestPass
from .rows import RowWriter
from .settings import Settings, config_value
from .shapes import LayerShapes, assumed_shape, configured_shape
from .steps import Statement, kind_named


class EngineRecorder(OpenTrace):
    """The ``run`` of ``with blockscope.record_engine(...) as run``. Outside ``run.batch(...)``, the methods that state
    tensors do nothing, so an engine's layers may always call them."""

    def __init__(self, model: torch.nn.Module, path: bytes, settings: Settings, *, tokenizer: Any,
                 force: bool) -> None:
        self._model = model
        self._num_layers = config_value(model, *NUM_LAYERS) or 0
        if self._num_layers < 1:
            raise UsageError(f"{type(model).__name__}: model.config: expected {NUM_LAYERS[0]}, found none. HINT: pass "
                             "the engine's model, whose config is that of its checkpoint")
        self._num_heads, self._num_kv_heads = (config_value(model, *names) for names in (NUM_HEADS, NUM_KV_HEADS))
        self._settings = settings = settings.within(self._num_layers, self._num_heads)
        self._recorded = settings.recorded_layers(self._num_layers)
        alone = Ranks(model, None, None, 0.0)
        whole = settings, self._recorded
        super().__init__(path, force, RowWriter(path, *whole, whole, alone, model, tokenizer, force))
        self._shapes = LayerShapes(alone.check)
        self._requests: dict[Hashable, Request] = {}
        self._ended: set[Hashable] = set()
        self._running: RaggedPass | None = None
        self._num_passes = 0
        self._open = False

    # --- what engines call --------------------------------------------------------------------------------------------

    def __enter__(self) -> EngineRecorder:
        if self._open:
            raise UsageError("the recording is open already")
        self._refuse_target()
        self._open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._open = False
        if os.getpid() == self._pid:
            self._close(error, self._finish)

    def begin_sequence(self, request: Hashable, *, prompt: Any = None, gen_length: int | None = None) -> None:
        """States what a request's passes don't show, before the first one.

        prompt [P]: token ids. Needed if the first pass begins later, because the engine has the keys of the first
        tokens from another request (SGLang's radix cache, vLLM's prefix caching), or if the prompt holds the mask.
        gen_length: positions after the prompt; None: that of record_engine()."""
        self._refuse_known(request)
        tokens = None if prompt is None else _ids("run.begin_sequence: prompt", prompt)
        self._requests[request] = Request(request, self._settings, tokens, gen_length)

    def step(self, request: Hashable, *, block_start: int | None = None, kind: str | None = None) -> None:
        """States what the request's tokens in the next pass don't show: the position of the block's first token, and
        whether it is a ``prefill``, ``denoise`` or ``commit``."""
        self._known(request).statement = Statement(None, block_start, kind_named(kind))

    @contextlib.contextmanager
    def batch(self, requests: Sequence[Hashable], tokens: Any, positions: Any, lengths: Any,
              pages: Any = None) -> Iterator[None]:
        """A forward pass over a ragged batch. The engine runs its model within the ``with`` block.

        requests [S]: names of the requests. A new name begins a sequence.
        tokens, positions [T]: those of all requests, one request after the other, as the model gets them.
        lengths [S]: how many of the T tokens each request has.
        pages: for keys in a paged cache, the pages of each request in order of position: [P] for each, or [S, P] with
        anything after the last one in use.

        The arguments are lists, NumPy arrays or tensors. Passes outside run.batch() aren't recorded."""
        if os.getpid() != self._pid:
            yield
            return
        if not self._open or self._running is not None:
            raise UsageError("run.batch: expected no running pass, got one within another" if self._open else
                             "run.batch: the recording isn't open. HINT: with blockscope.record_engine(...) as run:")
        self._running = one = RaggedPass()
        try:
            with torch.no_grad():
                self._begin(one, list(requests), *(_ids(f"run.batch: {name}", values) for name, values in (
                    ("tokens", tokens), ("positions", positions), ("lengths", lengths))), pages)
            begun = time.perf_counter_ns()
            yield
            with torch.no_grad():
                self._end(one, begun, time.perf_counter_ns())
        finally:
            self._abandon()

    def attention(self, layer: int, q: torch.Tensor, k: torch.Tensor | None = None, v: torch.Tensor | None = None, *,
                  cache: tuple[torch.Tensor, torch.Tensor] | None = None, scale: float | None = None,
                  out: torch.Tensor | None = None) -> None:
        """States the attention of a layer while it runs. Query head h reads KV head h // (H / K).

        layer: its number among the decoder layers, from 0.
        q [T, H, D]: queries of the pass's tokens, as they are multiplied.
        k, v with cache [T, K, D]: keys and values of the pass's tokens, whether they are in the cache yet or not. None:
        they are in it.
        k, v without cache [N, K, D]: those of all positions that each request reads, one request after the other.
        cache: keys and values, each [pages, page_size, K, D], or [slots, K, D] for pages of one key.
        scale: of the scores; None is D ** -0.5.
        out [T, H, D]: the layer's result. In each request's first denoising step it is compared with what these
        queries, keys and values give. None: nothing is compared."""
        one = self._stating()
        if one is None:
            return
        begun, where = time.perf_counter_ns(), f"run.attention: layer {layer}"
        self._check_layer("run.attention", layer, one.attention)
        wanted = [part for part in one.parts if self._records(part)] if layer in self._recorded else []
        if wanted:
            with torch.no_grad():
                self._check_queries(where, one, q, out)
                for part, rows, key, value in one.keys(where, k, v, cache, self._num_kv_heads, wanted):
                    self._take(layer, part, q[rows], key, value, scale, None if out is None else out[rows])
        one.own_ns += time.perf_counter_ns() - begun

    def hidden(self, layer: int, hidden: torch.Tensor) -> None:
        """States the input of a layer while it runs: the residual stream [T, hidden_size]. Needed at level ``full``.
        Else, ``/summary/hidden_gap`` is NaN without it."""
        one = self._stating()
        if one is None:
            return
        begun = time.perf_counter_ns()
        self._check_layer("run.hidden", layer, one.hidden)
        check_rows(f"run.hidden: layer {layer}", hidden, one.tokens, "hidden_size")
        if layer in self._recorded and self._settings.at_least("summary"):
            for part, rows in zip(one.parts, one.rows):
                if part.running.denoises:
                    part.running.take_hidden(layer, hidden[rows].unsqueeze(0))
        one.own_ns += time.perf_counter_ns() - begun

    def logits(self, logits: torch.Tensor, rows: Any = None) -> None:
        """States the logits, before the pass ends. Every pass that denoises needs them.

        logits [R, V]. rows [R]: the tokens of the pass that they are of, ascending: of each request its last tokens,
        or none. None: all T tokens."""
        one = self._stating()
        if one is None:
            return
        if one.logits is not None:
            raise UsageError(f"run.logits: stated twice in {one}. HINT: state all requests' in one call")
        found = list(range(one.tokens)) if rows is None else _ids("run.logits: rows", rows)
        check_rows("run.logits", logits, len(found), "V")
        taken: list[torch.Tensor] = []
        for part, tokens in zip(one.parts, one.rows):
            first = sum(len(rows) for rows in taken)
            mine = [row for row in found if tokens.start <= row < tokens.stop]
            last = list(range(tokens.stop - len(mine), tokens.stop))
            if mine != last or found[first:first + len(mine)] != mine:
                raise UsageError(f"run.logits: rows: {part.request}: expected its last tokens {last[:8]}, got "
                                 f"{mine[:8]}")
            taken.append(logits[first:first + len(mine)])
        if sum(len(rows) for rows in taken) != len(found):
            raise UsageError(f"run.logits: rows: expected 0 to {one.tokens - 1}, got up to {max(found)}")
        one.logits = taken

    def end_sequence(self, request: Hashable, tokens: Any = None, *, reason: str = "length") -> None:
        """Ends a request. tokens [L]: its tokens from the first position on, including those that the last pass
        decided. None: inputs of passes showed them all. reason: ``length`` or ``stop``."""
        ended = self._known(request)
        ids = None if tokens is None else [_ids("run.end_sequence: tokens", tokens)]
        del self._requests[request]
        self._ended.add(request)
        self._rows.turn_to(request)
        self._rows.end(ended.batch, ids, reason)

    # --- a pass -------------------------------------------------------------------------------------------------------

    def _known(self, request: Hashable) -> Request:
        if request not in self._requests:
            known = ", ".join(repr(name) for name in list(self._requests)[:4]) or "none"
            raise UsageError(f"request {request!r}: expected one that is being recorded ({known}). HINT: its first "
                             "pass or run.begin_sequence() begins it")
        return self._requests[request]

    def _refuse_known(self, request: Hashable) -> None:
        for known, word in ((self._requests, "begun"), (self._ended, "ended")):
            if request in known:
                raise UsageError(f"request {request!r}: expected a new one, and it has {word}. HINT: each request "
                                 "needs a name of its own, such as SGLang's rid or vLLM's request_id")

    def _begin(self, one: RaggedPass, requests: list[Hashable], tokens: list[int], positions: list[int],
               lengths: list[int], pages: Any) -> None:
        if not requests or len(set(requests)) != len(requests) or len(lengths) != len(requests) or min(lengths) < 1:
            raise UsageError("run.batch: expected different requests, and for each a length of at least 1, got "
                             f"requests {requests[:8]} and lengths {lengths[:8]}")
        if not len(tokens) == len(positions) == sum(lengths):
            raise UsageError("run.batch: expected as many tokens and positions as the lengths add up to, "
                             f"{sum(lengths)}, got {len(tokens)} and {len(positions)}. HINT: leave out padding")
        one.pages = read_pages(pages, len(requests))
        for request in requests:
            if request not in self._requests:
                self._refuse_known(request)
                self._requests[request] = Request(request, self._settings)
        self._num_passes += 1
        for request, length in zip(requests, lengths):
            rows = slice(one.tokens, one.tokens + length)
            one.parts.append(self._requests[request].run(tokens[rows], positions[rows], self._num_passes - 1,
                                                         self._num_layers))
            one.rows.append(rows)

    def _stating(self) -> RaggedPass | None:
        return None if torch.compiler.is_compiling() or os.getpid() != self._pid else self._running

    def _records(self, part: RequestPass) -> bool:
        """At level full, the keys of every pass are recorded."""
        return part.recorded and self._settings.at_least("summary") and (
            part.running.denoises or self._settings.at_least("full"))

    def _check_layer(self, what: str, layer: int, stated: set[int]) -> None:
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < self._num_layers:
            raise UsageError(f"{what}: layer: expected 0 to {self._num_layers - 1}, got {layer!r}")
        if layer in stated:
            raise UsageError(f"{what}: layer {layer}: stated twice in {self._running}. HINT: state all requests, heads "
                             "and keys in one call")
        stated.add(layer)

    def _check_queries(self, where: str, one: RaggedPass, q: Any, out: Any) -> None:
        check_rows(f"{where}: q", q, one.tokens, "H, D")
        if self._num_heads not in (None, q.shape[1]):
            raise UsageError(f"{where}: q: expected the {self._num_heads} heads of model.config, got {q.shape[1]}. "
                             "HINT: with tensor parallelism a worker has some of the heads; record with a size of 1")
        if out is not None:
            check_rows(f"{where}: out", out, one.tokens, "H, D")
            if out.shape != q.shape:
                raise UsageError(f"{where}: out: expected the shape of q, {list(q.shape)}, got {list(out.shape)}")

    def _take(self, layer: int, part: RequestPass, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
              scale: float | None, out: torch.Tensor | None) -> None:
        running, name = part.running, f"{part.request}: layer {layer}"
        call = stated_call(q.transpose(0, 1).unsqueeze(0).clone(), k, v, None, scale, 1)
        call.out = None if out is None else out.transpose(0, 1).unsqueeze(0)
        running.layer = layer
        if running.denoises:
            running.take_attention(call, name, self._shapes, layer not in part.request.compared)
            part.request.compared.add(layer)
        else:
            running.take_keys(call, name, self._shapes, part.request.sequence.canvas)

    def _end(self, one: RaggedPass, begun: int, ended: int) -> None:
        self._require_all(one)
        self._shapes.the_one([f"layer {layer}" for layer in range(self._num_layers)])
        shape = self._shapes.first or configured_shape(self._model) or assumed_shape(self._model)
        logits = one.logits or [None] * len(one.parts)
        while one.parts:  # what fails leaves the others for _abandon()
            part, rows = one.parts.pop(0), logits.pop(0)
            request, running = part.request, part.running
            if not part.recorded:
                continue
            rows = None if rows is None else rows.unsqueeze(0)
            running.begin(begun)
            running.own_ns = one.own_ns
            running.end(ended)
            self._rows.turn_to(request.name)
            self._rows.decided([part.change])
            self._rows.open(request.batch, running, rows, shape)
            predictions = self._rows.collect(request.batch, running, rows, request.histories, request.first_predictions)
            request.shift.take(running, predictions)
        self._running = None

    def _require_all(self, one: RaggedPass) -> None:
        hint = ("within run.batch(). A CUDA graph or compiled code runs no such line: switch both off (SGLang: "
                "disable_cuda_graph; vLLM: enforce_eager)")
        denoises = any(part.running.denoises for part in one.parts)
        for method, stated, needed in (
                ("attention", one.attention, any(self._records(part) for part in one.parts)),
                ("hidden", one.hidden, denoises and self._settings.at_least("full"))):
            missing = [str(layer) for layer in self._recorded if needed and layer not in stated]
            if missing:
                more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
                raise UsageError(f"run.batch: {one} ended without run.{method}() of layers {', '.join(missing[:3])}"
                                 f"{more}. HINT: call it in every layer, {hint}")
        for slot, part in enumerate(one.parts):
            if part.running.denoises and part.recorded and (one.logits is None or not len(one.logits[slot])):
                raise UsageError(f"run.batch: {one} ended without the logits of {part.request}, which denoises. HINT: "
                                 f"run.logits() after the last layer, {hint}")

    def _abandon(self) -> None:
        """Handles a pass that won't end. Its input showed what the passes before it decided."""
        one, self._running = self._running, None
        for part in one.parts if one is not None else []:
            part.request.statement = part.statement  # for the pass that runs again
            if part.recorded:
                part.request.sequence.retract(part.running.passes[0])
                self._rows.turn_to(part.request.name)
                self._rows.decided([part.change])

    def _finish(self) -> None:
        for request in list(self._requests):
            self.end_sequence(request)
        if self.rows == 0:
            raise UsageError("nothing was recorded: no request had a denoising pass (one with the mask token "
                             f"{self._settings.mask_token_id} among its tokens) within run.batch(). HINT: "
                             "record_engine(..., mask_token_id=...) is the id that the engine fills its blocks with")
        self._rows.finish(Batch(self._settings))


def _ids(name: str, values: Any) -> list[int]:
    found = whole_numbers(values.tolist() if hasattr(values, "tolist") else values)
    if found is None or any(one < 0 for one in found):
        raise UsageError(f"{name}: expected whole numbers of at least 0, got {values!r}")
    return found
