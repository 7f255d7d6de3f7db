"""The applier: gives a model the attention of a policy while another author's loop decodes with it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import UsageError
from ..recording.calls import AttentionCall
from ..recording.compiled import uncompiled
from ..recording.continuous import batch_for
from ..recording.digest import digest_of
from ..recording.intervention import BlockCall
from ..recording.model import logits_of
from ..recording.observer import Observer
from ..recording.order import BatchOrder
from ..recording.passes import RunningPass
from ..recording.settings import Settings
from ..recording.shapes import LayerShape, configured_shape
from ..recording.statistics import SpareRows, predictions_of
from ..recording.steps import Kind, Pass, Sequence
from .policy import Attention, ModelShape, Parts, Policy, Step
from .reads import Reads


@dataclass
class _Counts:
    """What the steps of a sequence count (SequenceState of probe/decode)."""

    number: int  # of the sequence in the run
    run_step: int = 0
    since_read: int = 0
    unread: list[bool] = field(default_factory=list)
    planned_steps: int | None = None
    masked: list[bool] = field(default_factory=list)  # [B] of the last step
    predictions: list[tuple[int, float]] = field(default_factory=list)  # [B] its best tokens and their probabilities
    memory: dict[Any, Any] = field(default_factory=dict)  # what the policy keeps

    def sure_left(self, changed: list[bool], mask_token_id: int | None) -> float:
        """Of the tokens that the last step could have decided and did not, the n-th largest probability, where it
        decided n (probe/decode/step_decision.cpp)."""
        left = [probability for masked, new, (token, probability) in zip(self.masked, changed, self.predictions)
                if masked and not new and token != mask_token_id and probability == probability]
        left.sort(reverse=True)
        return left[min(max(sum(changed), 1), len(left)) - 1] if left else 0.0


class Applier(Observer):
    """The ``run`` of ``with blockscope.apply(...) as run``. The loop needs none of its methods if the model's inputs
    show everything."""

    _name, _which, _gives = "apply", "given", True

    def __init__(self, model: torch.nn.Module, policy: Policy, settings: Settings, *, denoising_steps: int | None,
                 decoder_layers: Any) -> None:
        Observer.__init__(self, model, settings, decoder_layers=decoder_layers, looks_inside=True,
                          check=lambda shape, where: None)
        self._policy, self._denoising_steps = policy, denoising_steps
        self._ready = False  # the policy knows the model's sizes
        self._counts: weakref.WeakKeyDictionary[Sequence, _Counts] = weakref.WeakKeyDictionary()
        self._steps: list[Step] = []  # of the running pass, by slot; none: a prefill
        self._replaced: dict[int, torch.Tensor | None] = {}  # layers of the running pass: heads that reused [S, H]
        self._reads, self._reads_now, self._spare = Reads(), Reads(), SpareRows()  # now: of the running pass
        self._sequences = self._denoised = self._reused = self._passes = 0

    # --- what users call ----------------------------------------------------------------------------------------------

    @property
    def policy(self) -> str:
        """The policy as a text."""
        return self._policy.text

    @property
    def passes(self) -> int:
        """Forward passes so far."""
        return self._passes

    def summary(self) -> dict[str, Any]:
        """What was decoded and read so far. ``key_rows``: external keys that exact attention reads at the denoising
        steps, over layers and KV heads; ``key_rows_read``: those that the policy read; ``choice_rows``: rows of
        head_dim elements that it read to choose; ``commit_key_rows``: those of the commit passes, which are exact. The
        clean passes of a continuous model count as steps."""
        return {"policy": self.policy, "sequences": self._sequences, "passes": self._passes,
                "denoising_steps": self._denoised, "steps_reused": self._reused, **self._reads.summary()}

    def __repr__(self) -> str:
        found = self.summary()
        return (f"<blockscope.apply {self.policy}: {found['denoising_steps']} denoising steps, {found['steps_reused']} "
                f"reused; {found['key_rows_read']} of {found['key_rows']} key rows read>")

    def __enter__(self) -> Applier:
        if self._hooks:
            raise UsageError("the policy is applied already")
        shape = configured_shape(uncompiled(self._model))
        try:
            if shape is not None and not self._ready:
                self._set_up(shape)
            self._open_hooks()
        except BaseException:
            self._close_hooks()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._close_hooks()
        if os.getpid() == self._pid:
            self._abandon()
            self._forget()

    def end_sequence(self, ids: Any = None, *, reason: str = "length") -> None:
        Observer.end_sequence(self, ids, reason=reason)
        self._forget()

    def _forget(self) -> None:
        """Drops the tensors of the current sequences, the loop's cache included."""
        self._batch, self._order, self._spare = batch_for(self._settings), BatchOrder(), SpareRows()
        self._steps, self._replaced, self._reads_now = [], {}, Reads()
        self._policy.end_sequences()

    # --- passes -------------------------------------------------------------------------------------------------------

    def _set_up(self, shape: LayerShape) -> None:
        # Recordings of continuous models have this digest. Those of tokens have a checkpoint's, of files.
        digest = "" if self._settings.video is None else digest_of(uncompiled(self._model))
        self._policy.setup(ModelShape(self._num_layers, shape.heads, shape.kv_heads, shape.channels, digest))
        self._ready = True

    def _begin(self, running: RunningPass) -> None:
        self._replaced, self._steps, self._reads_now = {}, [], Reads()
        kinds = {one.kind for one in running.passes}
        if Kind.PREFILL in kinds:
            return
        first = self._batch.sequences[0]
        self._policy.check(bool(first.bidirectional), self._settings.autoregressive, self._settings.video is not None)
        for sequence, one in zip(self._batch.sequences, running.passes):
            if sequence not in self._counts:
                self._counts[sequence] = self._new(sequence, one)
        self._steps = [self._step(slot, one, sequence, self._counts[sequence])
                       for slot, (one, sequence) in enumerate(zip(running.passes, self._batch.sequences))]
        self._policy.begin_pass(self._steps)

    def _new(self, sequence: Sequence, one: Pass) -> _Counts:
        counts = _Counts(self._sequences)
        self._sequences += 1
        known = sequence.canvas or sequence.gen_length or self._settings.autoregressive
        if self._denoising_steps is not None and known:
            positions = (sequence.prompt_length or 0) + sequence.initial_length(one) - one.block_start
            counts.planned_steps = positions // self._settings.block_length * self._denoising_steps
        return counts

    def _step(self, slot: int, one: Pass, sequence: Sequence, counts: _Counts) -> Step:
        """Nothing is counted before the pass has ended."""
        same_block = one.kind is not Kind.DENOISE or one.step > 1
        unread = counts.unread if same_block and counts.unread else [False] * len(one.masked)
        return Step(
            "denoise" if one.kind is Kind.DENOISE else "commit", counts.number, slot, one.block, one.block_start,
            one.step, counts.run_step + (one.kind is Kind.DENOISE), counts.planned_steps, one.context_length,
            one.masked, one.changed_rows, (counts.since_read if same_block else 0) + one.changed,
            [old or new for old, new in zip(unread, one.changed_rows)], tuple(sequence.prompt),
            one.is_step and one.kind is Kind.COMMIT,
            counts.sure_left(one.changed_rows, self._settings.mask_token_id) if same_block else 0.0,
            memory=counts.memory)

    def _watches(self, running: RunningPass) -> bool:
        """The keys of a batch show its order."""
        return running.denoises or running.given.batch > 1

    def _take(self, running: RunningPass, call: AttentionCall) -> None:
        """A call that was not replaced."""
        if not running.denoises or running.layer < 0 or running.layer in running.stated:
            return
        raise UsageError(
            f"{self._layers[running.layer][0]}: {call.function}: its result can't be replaced, so the policy "
            f"{self.policy} can't be applied. HINT: load the model with attn_implementation=\"sdpa\"; or let the layer "
            "use what run.attention(layer, q, k, v) returns")

    def _stated(self, running: RunningPass, call: AttentionCall) -> torch.Tensor | None:
        def own() -> torch.Tensor:
            heads = call.q.shape[1] // call.k.shape[1]
            k, v = (x.repeat_interleave(heads, 1) for x in (call.k, call.v))
            return torch.nn.functional.scaled_dot_product_attention(call.q, k, v, call.mask, scale=call.scale)

        running.read = call.k
        return self._replace(running, call, own)

    def _replace(self, running: RunningPass, call: AttentionCall,
                 own: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        if not running.denoises or running.layer < 0 or self._ignores(running, call) or running.skips(call):
            return None
        where = f"{self._layers[running.layer][0]}: {call.function}"
        self._refuse(running, call, where)
        shape = call.q.shape
        with torch.no_grad():
            _, block = running.block_of(call, self._shapes, where)
            running.read = call.k
            self._refuse_block(block, where)
            if not self._ready:
                self._set_up(self._shapes.first)
            parts = self._attend(running, Attention(
                running.layer, block.q, block.ranges.of(block.k, 2), block.ranges.of(block.v, 2),
                block.ranges.inside(block.k, 2), block.ranges.inside(block.v, 2), block.scale,
                block.ranges.offset > 0))
            if block.rows.count == call.q.shape[2] and block.rows.index is None:
                return parts.out.reshape(*shape[:3], parts.out.shape[-1])
            out = own()  # rows around the block are the model's
            if block.rows.index is None:
                out.narrow(2, block.rows.first, block.rows.count).copy_(parts.out)
            else:
                for slot, index in enumerate(block.rows.index):
                    out[slot].index_copy_(1, index, parts.out[slot])
            return out

    def _attend(self, running: RunningPass, given: Attention) -> Parts:
        parts = self._policy.attend(given)
        self._reads_now.add(running.layer, parts, given.k_ext.shape[2], given.k_ext.shape[1])
        self._replaced[running.layer] = parts.reused
        return parts

    def _refuse(self, running: RunningPass, call: AttentionCall, where: str) -> None:
        """What a policy can't honour."""
        if running.layer in self._replaced:
            raise UsageError(f"{where}: called twice in a layer and pass, so the call that attends to the sequence's "
                             "own keys can't be determined")
        if call.dropout > 0:
            raise UsageError(f"{where}: a policy is applied to attention without dropout, got {call.dropout}. HINT: "
                             "model.eval()")
        if torch.is_grad_enabled() and any(x.requires_grad for x in (call.q, call.k, call.v)):
            raise UsageError(f"{where}: an applied policy has no gradients. HINT: decode within torch.no_grad()")
        if call.v.shape[-1] != call.q.shape[-1]:
            raise UsageError(f"{where}: a policy is applied to values of as many channels as the queries, got "
                             f"{call.v.shape[-1]} and {call.q.shape[-1]}")

    def _refuse_block(self, block: BlockCall, where: str) -> None:
        if block.biases.any:
            raise UsageError(f"{where}: its mask hides or biases keys that the block's queries may see, so the policy "
                             f"{self.policy} can't be applied. HINT: a loop whose blocks see every key before them")
        if block.rows.there is not None:
            raise UsageError(f"{where}: a policy is applied to whole blocks, and this pass computes only some rows of "
                             "one. HINT: a loop whose cache computes whole blocks")

    def _end(self, running: RunningPass, output: Any) -> None:
        self._order.follow(running.given, running.read, running.given.computed or running.given.positions, output)
        self._passes += 1
        if not self._steps:
            return
        if running.denoises:
            self._require_layers()
            self._shapes.the_one([name for name, _ in self._layers])
        self._policy.end_pass()
        self._reads.include(self._reads_now)
        for slot, (step, sequence) in enumerate(zip(self._steps, self._batch.sequences)):
            counts = self._counts[sequence]
            counts.run_step, counts.since_read, counts.unread = step.run_step, step.since_read, step.unread
            if self._policy.rows_read(slot, len(step.masked_rows)) > 0:
                counts.since_read, counts.unread = 0, []
            self._count(slot, step)
        if self._policy.needs_predictions and any(step.denoises for step in self._steps):
            self._keep_predictions(running, output)

    def _keep_predictions(self, running: RunningPass, output: Any) -> None:
        logits = running.given.own(logits_of(output))
        for slot, (one, sequence) in enumerate(zip(running.passes, self._batch.sequences)):
            counts, found = self._counts[sequence], None
            if logits is not None:
                found = predictions_of(one, None, running.given, logits[slot], self._settings, self._spare)
            if found is None or len(found) != self._settings.block_length:
                raise UsageError(f"policy {self.policy}: sure needs the logits of every position of the block, and the "
                                 "model's output doesn't have them. HINT: another condition, such as tau")
            counts.masked = one.masked
            counts.predictions = list(zip(*(values.tolist() for values in found.best)))
            self._spare.give_back(found)

    def _count(self, slot: int, step: Step) -> None:
        if step.denoises or step.clean:
            self._denoised += 1
            self._reused += any(heads is not None and bool(heads[slot].any()) for heads in self._replaced.values())
        elif self._shapes.first is not None:
            self._reads.commit_rows += step.context_length * self._shapes.first.kv_heads * self._num_layers

    def _require_layers(self) -> None:
        missing = [name for index, (name, _) in enumerate(self._layers) if index not in self._replaced]
        if not missing:
            return
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise UsageError(
            f"{type(uncompiled(self._model)).__name__}: the attention of {', '.join(missing[:3])}{more} can't be "
            "replaced: no call of scaled_dot_product_attention was seen. HINT: load the model with "
            "attn_implementation=\"sdpa\"; of compiled code (torch.compile) nothing is seen: don't compile it, or "
            "blockscope.apply(..., compiled=\"eager\") runs it as if it weren't")
