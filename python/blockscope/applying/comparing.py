"""Compares a loop with and without a policy (``blockscope.compare`` with a model): ``blockscope verify`` for other
people's models and loops. The numbers have the names of its JSON."""

from __future__ import annotations

import contextlib
import inspect
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .. import _core
from ..errors import UsageError
from ..recording.compiled import uncompiled
from ..recording.model import encoder_and_decoder
from ..recording.settings import Settings
from ..recording.shapes import LayerShape
from . import pictures
from .agreement import Agreement, kept, same
from .applier import Applier
from .policy_texts import read_policy
from .reads import Reads
from .replay import ExactRun, Fidelity, Generators, Replay, Shadow, quantile


class Stated:
    """The ``run`` that a loop gets if it has a parameter of this name: what it states goes to whatever follows the
    run."""

    def __init__(self, *followers: Any) -> None:
        self._followers = followers

    def step(self, **stated: Any) -> None:
        for one in self._followers:
            one.step(**stated)

    def begin_sequence(self, **stated: Any) -> None:
        for one in self._followers:
            one.begin_sequence(**stated)

    def end_sequence(self, ids: Any = None, *, reason: str = "length") -> None:
        """The run of a prompt ends by itself."""

    def attention(self, *given: Any, **more: Any) -> torch.Tensor | None:
        found = [one.attention(*given, **more) for one in self._followers]
        return next((one for one in found if one is not None), None)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for one in self._followers:
                stack.enter_context(one.paused())
            yield


def compare_loops(model: torch.nn.Module, loop: Callable[..., Any], prompts: Iterable[Any], *, policy: Any,
                  settings: Settings, denoising_steps: int | None, decoder_layers: Any, score: Any, frames: Any,
                  repeats: int, seed: int, replay: bool, propagated: bool) -> dict[str, Any]:
    prompts, chosen = _list_of(prompts), read_policy(policy)
    for name, given, what in (("loop", loop, "loop(model, prompt)"), ("score", score, "score(output, prompt)"),
                              ("frames", frames, "frames(output)")):
        if not callable(given) and (given is not None or name == "loop"):
            raise UsageError(f"{name}: expected a function {what}, got {given!r}")
    if replay and encoder_and_decoder(uncompiled(model)) is not None:
        raise UsageError("replay: a model with an encoder and a decoder that share a cache isn't replayed. HINT: "
                         "compare(..., replay=False)")
    runs = _Runs(model, loop, settings, denoising_steps, decoder_layers, seed)
    sides = [_Side(), _Side()]  # exact, policy
    agreement, shown = Agreement(), []
    replayed = runs.for_replay(policy, propagated) if replay else None
    for index, prompt in enumerate(prompts):
        # What the first run of each side made is looked at before the next run, which may reuse its memory.
        outputs: list[Any] = [None, None]
        pictured: list[Any] = [None, None]
        for repetition in range(repeats):
            for side in (0, 1) if repetition % 2 == 0 else (1, 0):  # the sides take turns
                output, seconds = runs.exact(prompt) if side == 0 else runs.applied(prompt, policy, repetition == 0)
                sides[side].add(index, repetition, seconds)
                if repetition > 0:
                    continue
                sides[side].scores.append(_score_of(score, output, prompt))
                pictured[side] = None if frames is None else pictures.frames_of(frames(output))
                outputs[side] = kept(output)
                del output
        agreement.add(*outputs, prompt)
        if frames is not None:
            shown += [{"prompt": index, **pair} for pair in pictures.pairs(*pictured)]
        if replayed is not None:
            _require_same(outputs[0], runs.replay(prompt, *replayed))
    return {
        "format": "blockscope-verify", "format_version": 2, "mode": "compare",
        "model": getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__, "digest": None,
        "dtype": str(next((x.dtype for x in (*model.parameters(), *model.buffers()) if x.is_floating_point()), "")
                     ).removeprefix("torch."),
        "prompts_file": None, "prompts": len(prompts), "decoding": getattr(loop, "__qualname__", repr(loop)),
        "metric": None if score is None else getattr(score, "__name__", repr(score)),
        "block_length": settings.block_length, "head_dim": runs.shape.channels, "threads": torch.get_num_threads(),
        "device": next((x.device.type for x in (*model.parameters(), *model.buffers())), "cpu"),
        "program": _core.program, "batch_size": 1, "repetitions": repeats, "seed": seed,
        "reference": {
            "label": "exact", "policy": {"policy": "exact"},
            "free_running": sides[0].json(None if replayed is None else replayed[0].steps, None if replayed is None else
                                          _exact_reads(replayed[0])), "replay": None},
        "settings": [{
            "label": chosen.text, "policy": runs.policy,
            "free_running": sides[1].json(runs.steps, runs.reads.summary()),
            "accuracy": _accuracy(sides[0].scores, sides[1].scores),
            "agreement": agreement.json(),
            "seconds_ratio": _spread([a / b for a, b in zip(sides[0].totals(), sides[1].totals())]),
            "replay": None if replayed is None else _replay_json(replayed[1]),
            "frames": None if frames is None else shown}]}


def _list_of(prompts: Any) -> list[Any]:
    if isinstance(prompts, (str, bytes)) or not isinstance(prompts, Iterable):
        raise UsageError(f"prompts: expected a list of what the loop takes, one each, got {prompts!r}. HINT: "
                         "prompts=[prompt]")
    found = list(prompts)
    if not found:
        raise UsageError("prompts: expected at least one, got none")
    return found


def _score_of(score: Any, output: Any, prompt: Any) -> float:
    if score is None:
        return math.nan
    found = score(output, prompt)
    try:
        return float(found)
    except (TypeError, ValueError):
        raise UsageError(f"score: expected a function that returns a number, got {found!r}") from None


def _require_same(free: Any, replayed: Any) -> None:
    if same(free, replayed) is False:
        raise UsageError("replay: the exact run gave another output than without a replay, so the second run of a pass "
                         "changes what the loop goes on with, such as a cache in a global variable or a closure; or "
                         "the loop isn't the same from run to run. HINT: hand the cache to the model as an argument, "
                         "or keep it in a module; or compare(..., replay=False)")


class _Side:
    """The free runs of one side."""

    def __init__(self) -> None:
        self.scores: list[float] = []
        self._seconds: list[list[float]] = []  # by repetition, by prompt

    def add(self, prompt: int, repetition: int, seconds: float) -> None:
        if prompt == 0:
            self._seconds.append([])
        self._seconds[repetition].append(seconds)

    def totals(self) -> list[float]:
        return [sum(one) for one in self._seconds]

    def json(self, steps: int | None, reads: dict[str, Any] | None) -> dict[str, Any]:
        return {"scores": [one if math.isfinite(one) else None for one in self.scores], "denoising_steps": steps,
                "total_seconds": self.totals(), "seconds": _spread(self.totals()), "reads": reads}


class _Runs:
    """Runs the loop with one prompt. Every run begins with the same seed."""

    def __init__(self, model: torch.nn.Module, loop: Callable[..., Any], settings: Settings,
                 denoising_steps: int | None, decoder_layers: Any, seed: int) -> None:
        self._model, self._loop, self._settings = model, loop, settings
        self._more = {"denoising_steps": denoising_steps, "decoder_layers": decoder_layers}
        self._seed = seed
        self.policy: dict[str, Any] = {}  # its settings
        self.shape: LayerShape | None = None
        self.steps, self.reads = 0, Reads()  # of the counted runs with the policy
        try:
            self._takes_run = "run" in inspect.signature(loop).parameters
        except (TypeError, ValueError):
            self._takes_run = False

    def _call(self, prompt: Any, *followers: Any) -> tuple[Any, float]:
        more = {"run": Stated(*followers)} if self._takes_run else {}
        with Generators().in_place():
            torch.manual_seed(self._seed)
            _wait(self._model)
            begun = time.perf_counter()
            output = self._loop(self._model, prompt, **more)
            _wait(self._model)
            return output, time.perf_counter() - begun

    def exact(self, prompt: Any) -> tuple[Any, float]:
        return self._call(prompt)

    def applied(self, prompt: Any, policy: Any, counts: bool) -> tuple[Any, float]:
        with Applier(self._model, read_policy(policy), self._settings, **self._more) as applier:
            output, seconds = self._call(prompt, applier)
        if applier.summary()["denoising_steps"] == 0:
            raise UsageError("loop: it ran no denoising step with the model. HINT: the loop must call the model that "
                             "it is given; block_length= and mask_token_id= must be its own")
        self.policy, self.shape = applier._policy.settings, applier._shapes.first
        if counts:
            self.steps += applier.summary()["denoising_steps"]
            self.reads.include(applier._reads)
        return output, seconds

    def for_replay(self, policy: Any, propagated: bool) -> tuple[ExactRun, Shadow]:
        group = object()
        exact = ExactRun(self._model, self._settings, self._more["decoder_layers"], propagated, group)
        return exact, Shadow(exact, self._model, read_policy(policy), self._settings, group=group, **self._more)

    def replay(self, prompt: Any, exact: ExactRun, shadow: Shadow) -> Any:
        with Replay(self._model, exact, shadow):
            return self._call(prompt, exact, shadow)[0]


def _wait(model: torch.nn.Module) -> None:
    if any(parameter.device.type == "cuda" for parameter in model.parameters()):
        torch.cuda.synchronize()


# --- numbers ----------------------------------------------------------------------------------------------------------


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def _exact_reads(exact: ExactRun) -> dict[str, Any]:
    return {"saving": 0.0, "key_rows": exact.key_rows, "key_rows_read": exact.key_rows,
            "commit_key_rows": exact.commit_rows, "choice_rows": 0}


def _accuracy(exact: list[float], policy: list[float]) -> dict[str, Any]:
    """As probe/verify: paired scores, with an exact two-sided sign test."""
    pairs = [(a, b) for a, b in zip(exact, policy) if not (math.isnan(a) or math.isnan(b))]
    count = len(pairs)
    if count == 0:
        return {"count": 0}

    def error(values: list[float]) -> float:
        return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0

    better, worse = sum(b > a for a, b in pairs), sum(b < a for a, b in pairs)
    apart, least = better + worse, min(better, worse)
    p = min(1.0, 2 * sum(math.comb(apart, i) for i in range(least + 1)) / 2 ** apart) if apart else 1.0
    reference, mine = ([pair[side] for pair in pairs] for side in (0, 1))
    return {"count": count, "reference": statistics.fmean(reference), "policy": statistics.fmean(mine),
            "reference_standard_error": error(reference), "policy_standard_error": error(mine),
            "difference_standard_error": error([b - a for a, b in pairs]), "better": better, "worse": worse,
            "sign_test_p": p, "within_noise": p > 0.05}


def _totals(sums: Any) -> dict[str, Any]:
    absolute, squared, reference, elements = (float(x) for x in sums)
    return {"relative_l2": math.sqrt(squared / reference) if reference else 0.0,
            "l1": absolute / elements if elements else 0.0, "sum_absolute": absolute, "sum_squared": squared,
            "sum_reference_squared": reference, "elements": int(elements)}


def _kl(values: list[float], step: int | None = None) -> dict[str, Any]:
    values = sorted(values)
    found = {"positions": len(values), "mean": statistics.fmean(values) if values else 0.0,
             "p95": quantile(values, 0.95) if values else 0.0, "max": values[-1] if values else 0.0}
    return found if step is None else {**found, "step": step}


def _replay_json(shadow: Shadow) -> dict[str, Any]:
    fidelity = shadow.fidelity
    found: dict[str, Any] = {
        "kl": _kl([value for values in fidelity.kl.values() for value in values]),
        "kl_by_step": [_kl(values, step) for step, values in sorted(fidelity.kl.items())],
        "same_top1": fidelity.same_top1}
    for name, sums in (("first_order", fidelity.first_order), ("first_order_approximated", fidelity.approximated),
                       ("propagated", fidelity.propagated)):
        found.update(_errors(name, sums, shadow._num_layers))
    found["output_by_step"] = [{"step": step, "relative_l2": math.sqrt(error / true) if true else 0.0}
                               for step, (error, true) in sorted(fidelity.output.items())]
    found["reads"] = shadow._reads.summary()
    return found


def _errors(name: str, sums: dict[int, dict[int, torch.Tensor]], layers: int) -> dict[str, Any]:
    """None unless all layers have numbers: the exact attention of a stated layer isn't known."""
    if not sums or any(len(of_step) < layers for of_step in sums.values()):
        return {name: None, f"{name}_by_head": None, f"{name}_by_step": None, f"{name}_by_step_and_head": None}
    steps = sorted(sums)
    whole = torch.stack([torch.stack([of_layer for _, of_layer in sorted(sums[step].items())]) for step in steps])
    return {
        name: _totals(whole.sum((0, 1, 2))),
        f"{name}_by_head": [[_totals(head) for head in layer] for layer in whole.sum(0)],
        f"{name}_by_step": [{"step": step, **_totals(one)} for step, one in zip(steps, whole.sum((1, 2)))],
        f"{name}_by_step_and_head": [{"step": step, "relative_l2": [[_totals(head)["relative_l2"] for head in layer]
                                                                   for layer in one]}
                                     for step, one in zip(steps, whole)]}


__all__ = ["Fidelity", "Stated", "compare_loops"]
