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
from ..recording.entrances import Entrances
from ..recording.model import encoder_and_decoder
from ..recording.settings import Settings
from . import pictures
from .applier import Applier
from .policy_texts import read_policy
from .replay import ExactRun, Fidelity, Replay, Shadow, quantile


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
    prompts, chosen = list(prompts), read_policy(policy)
    if not prompts:
        raise UsageError("prompts: expected at least one, got none")
    if not callable(loop):
        raise UsageError(f"loop: expected a function loop(model, prompt), got {loop!r}")
    if replay and encoder_and_decoder(Entrances(model, settings)._inner) is not None:
        raise UsageError("replay: a model with an encoder and a decoder that share a cache isn't replayed. HINT: "
                         "compare(..., replay=False)")
    runs = _Runs(model, loop, settings, denoising_steps, decoder_layers, seed)
    sides = [_Side(), _Side()]  # exact, policy
    applied: list[Applier] = []
    for index, prompt in enumerate(prompts):
        for repetition in range(repeats):
            for side in (0, 1) if repetition % 2 == 0 else (1, 0):  # the sides take turns
                if side == 0:
                    output, seconds = runs.exact(prompt)
                else:
                    output, seconds, applier = runs.applied(prompt, policy)
                    applied += [applier] if repetition == 0 else []
                sides[side].add(index, repetition, output, seconds)
    for side in sides:
        side.scores = [math.nan if score is None else float(score(output, prompt))
                       for output, prompt in zip(side.outputs, prompts)]
    replayed = runs.replayed(prompts, policy, propagated) if replay else None
    head_dim = replayed[1]._shapes.first.channels if replayed else applied[0]._shapes.first.channels
    return {
        "format": "blockscope-verify", "format_version": 2, "mode": "compare",
        "model": getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__, "digest": None,
        "dtype": str(next((x.dtype for x in (*model.parameters(), *model.buffers()) if x.is_floating_point()), "")
                     ).removeprefix("torch."),
        "prompts_file": None, "prompts": len(prompts), "decoding": getattr(loop, "__qualname__", repr(loop)),
        "metric": None if score is None else getattr(score, "__name__", repr(score)),
        "block_length": settings.block_length, "head_dim": head_dim, "threads": torch.get_num_threads(),
        "device": next((x.device.type for x in (*model.parameters(), *model.buffers())), "cpu"),
        "program": _core.program, "batch_size": 1, "repetitions": repeats, "seed": seed,
        "reference": {
            "label": "exact", "policy": {"policy": "exact"},
            "free_running": sides[0].json(None if replayed is None else replayed[0].steps, None if replayed is None else
                                          _exact_reads(replayed[0])), "replay": None},
        "settings": [{
            "label": chosen.text, "policy": applied[0]._policy.settings,
            "free_running": sides[1].json(sum(one.summary()["denoising_steps"] for one in applied), _joined(applied)),
            "accuracy": _accuracy(sides[0].scores, sides[1].scores),
            "agreement": _agreement(sides[0].outputs, sides[1].outputs, prompts),
            "seconds_ratio": _spread([a / b for a, b in zip(sides[0].totals(), sides[1].totals())]),
            "replay": None if replayed is None else _replay_json(replayed[1]),
            "frames": None if frames is None else [
                {"prompt": index, **pair} for index, outputs in enumerate(zip(sides[0].outputs, sides[1].outputs))
                for pair in pictures.pairs(*(frames(one) for one in outputs))]}]}


class _Side:
    """The free runs of one side."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.scores: list[float] = []
        self._seconds: list[list[float]] = []  # by repetition, by prompt

    def add(self, prompt: int, repetition: int, output: Any, seconds: float) -> None:
        if repetition == 0:
            self.outputs.append(output)
        if prompt == 0:
            self._seconds.append([])
        self._seconds[repetition].append(seconds)

    def totals(self) -> list[float]:
        return [sum(one) for one in self._seconds]

    def json(self, steps: int | None, reads: dict[str, Any] | None) -> dict[str, Any]:
        return {"scores": [None if math.isnan(one) else one for one in self.scores], "denoising_steps": steps,
                "total_seconds": self.totals(), "seconds": _spread(self.totals()), "reads": reads}


class _Runs:
    """Runs the loop with one prompt. Every run begins with the same seed."""

    def __init__(self, model: torch.nn.Module, loop: Callable[..., Any], settings: Settings,
                 denoising_steps: int | None, decoder_layers: Any, seed: int) -> None:
        self._model, self._loop, self._settings = model, loop, settings
        self._more = {"denoising_steps": denoising_steps, "decoder_layers": decoder_layers}
        self._seed = seed
        try:
            self._takes_run = "run" in inspect.signature(loop).parameters
        except (TypeError, ValueError):
            self._takes_run = False

    def _call(self, prompt: Any, *followers: Any) -> tuple[Any, float]:
        torch.manual_seed(self._seed)
        more = {"run": Stated(*followers)} if self._takes_run else {}
        _wait(self._model)
        begun = time.perf_counter()
        output = self._loop(self._model, prompt, **more)
        _wait(self._model)
        return output, time.perf_counter() - begun

    def exact(self, prompt: Any) -> tuple[Any, float]:
        return self._call(prompt)

    def applied(self, prompt: Any, policy: Any) -> tuple[Any, float, Applier]:
        with Applier(self._model, read_policy(policy), self._settings, **self._more) as applier:
            output, seconds = self._call(prompt, applier)
        if applier.summary()["denoising_steps"] == 0:
            raise UsageError("loop: it ran no denoising step with the model. HINT: the loop must call the model that "
                             "it is given; block_length= and mask_token_id= must be its own")
        return output, seconds, applier

    def replayed(self, prompts: list[Any], policy: Any, propagated: bool) -> tuple[ExactRun, Shadow]:
        group = object()
        exact = ExactRun(self._model, self._settings, self._more["decoder_layers"], propagated, group)
        shadow = Shadow(exact, self._model, read_policy(policy), self._settings, group=group, **self._more)
        for prompt in prompts:
            with Replay(self._model, exact, shadow):
                self._call(prompt, exact, shadow)
            exact.end_sequence()
            shadow.end_sequence()
        return exact, shadow


def _wait(model: torch.nn.Module) -> None:
    if any(parameter.device.type == "cuda" for parameter in model.parameters()):
        torch.cuda.synchronize()


# --- numbers ----------------------------------------------------------------------------------------------------------


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def _exact_reads(exact: ExactRun) -> dict[str, Any]:
    return {"saving": 0.0, "key_rows": exact.key_rows, "key_rows_read": exact.key_rows,
            "commit_key_rows": exact.commit_rows, "choice_rows": 0}


def _joined(applied: list[Applier]) -> dict[str, Any]:
    reads = applied[0]._reads
    for one in applied[1:]:
        reads.include(one._reads)
    return reads.summary()


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


def _tokens(output: Any) -> list[int] | None:
    if isinstance(output, torch.Tensor):
        return None if output.is_floating_point() or output.is_complex() else output.flatten().tolist()
    if isinstance(output, (list, tuple)) and output and all(isinstance(one, int) for one in output):
        return list(output)
    return None


def _without(prompt: Any, tokens: list[int]) -> list[int]:
    """The tokens after the prompt, if they begin with it."""
    given = _tokens(prompt) or []
    return tokens[len(given):] if given and tokens[:len(given)] == given else tokens


def _agreement(exact: list[Any], policy: list[Any], prompts: list[Any]) -> dict[str, Any]:
    """positions: of token ids; difference: relative L2 of outputs that are numbers."""
    positions = equal = identical = 0
    error = true = 0.0
    for a, b, prompt in zip(exact, policy, prompts):
        first, second = _tokens(a), _tokens(b)
        if first is not None and second is not None:
            first, second = _without(prompt, first), _without(prompt, second)
            positions += max(len(first), len(second))
            equal += sum(x == y for x, y in zip(first, second))
            identical += first == second
        elif isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape:
            error += (b.double() - a.double()).square().sum().item()
            true += a.double().square().sum().item()
            identical += torch.equal(a, b)
        else:
            identical += not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor) and bool(a == b)
    return {"positions": positions, "equal": equal, "share": equal / positions if positions else None,
            "sequences": len(exact), "identical": identical, "relative_l2": math.sqrt(error / true) if true else None}


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
        found.update(_errors(name, sums))
    found["output_by_step"] = [{"step": step, "relative_l2": math.sqrt(error / true) if true else 0.0}
                               for step, (error, true) in sorted(fidelity.output.items())]
    found["reads"] = shadow._reads.summary()
    return found


def _errors(name: str, sums: dict[int, dict[int, torch.Tensor]]) -> dict[str, Any]:
    if not sums:
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
