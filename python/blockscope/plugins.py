"""Your own methods in the runtime: attention policies, strategies and caches that are written in Python.

    import blockscope

    @blockscope.policy("newest", source="ours")
    class Newest:
        \"\"\"The k newest keys.\"\"\"

        def __init__(self, k: int = 64):
            self.k = k

        def choose(self, layer, q, keys, step):
            return range(max(0, keys.shape[2] - self.k), keys.shape[2]), 0

Its options are the arguments of its constructor. ``model.verify("newest,k=32", ...)`` runs it, and so does the command
line: ``--plugin newest.py --policy newest,k=32``. docs/python.md is the guide.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from . import own_metrics
from ._source import check_file, digest, file_of, meaning
from .errors import Error, UsageError

Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])

_KINDS = {bool: "on", int: "whole", float: "real", str: "text"}


@dataclasses.dataclass(frozen=True)
class Plugin:
    """A method under the name by which ``--policy`` knows it."""

    kind: str
    name: str
    meaning: str
    source: str
    file: str
    sha256: str
    options: tuple[dict[str, Any], ...]
    make: Callable[..., Any]

    def facts(self) -> dict[str, Any]:
        """What the table of the runtime takes."""
        given = [f"{option['name']}={_example(option)}" for option in self.options if option["kind"] != "on"]
        return {"name": self.name, "meaning": self.meaning, "source": self.source, "file": self.file,
                "sha256": self.sha256, "options": list(self.options), "example": ",".join([self.name, *given])}


_plugins: dict[tuple[str, str], Plugin] = {}
_passed: set[tuple[str, str]] = set()  # those that the runtime has in this form


def registered() -> list[tuple[tuple[str, str], Plugin]]:
    """By kind and name, those of this process."""
    return list(_plugins.items())


def _example(option: dict[str, Any]) -> Any:
    return option["initial"] if option["initial"] is not None else {"whole": 1, "real": 0.5}.get(option["kind"], "...")


def _option(parameter: inspect.Parameter, annotation: Any, where: str) -> dict[str, Any]:
    default = None if parameter.default is inspect.Parameter.empty else parameter.default
    kind = annotation if annotation in _KINDS else type(default)
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or kind not in _KINDS:
        raise UsageError(f"{where}: {parameter.name}: expected int, float, str or bool, as its annotation or its default, "
                         f"got {parameter}")
    if kind is bool and default is not False:
        raise UsageError(f"{where}: {parameter.name}: expected False as the default of a switch, got {default!r}")
    if kind is float and default is not None:
        default = float(default)
    return {"name": parameter.name, "meaning": "an option of the plugin", "kind": _KINDS[kind], "initial": default}


def _options(make: Callable[..., Any], where: str, skip: int) -> tuple[dict[str, Any], ...]:
    try:
        parameters = inspect.signature(make, eval_str=True).parameters.values()
    except (NameError, TypeError, ValueError):  # annotations that can't be evaluated: the defaults decide
        parameters = inspect.signature(make).parameters.values()
    return tuple(_option(parameter, parameter.annotation, where) for parameter in list(parameters)[skip:])


def _check_name(kind: str, name: Any) -> None:
    """Of a decorator: before the thing that it decorates is known."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise UsageError(f"@blockscope.{kind}: expected a name of letters, digits, _ and -, got {name!r}. HINT: "
                         f"@blockscope.{kind}(\"my_method\")")


def _check_class(kind: str, name: str, given: Any) -> None:
    if not isinstance(given, type):
        raise UsageError(f"{kind} {name}: expected a class, got {given!r}")


def _register(kind: str, name: str, thing: Any, source: str, skip: int = 0) -> None:
    file = file_of(thing)
    before = _plugins.get((kind, name))
    check_file(kind, name, file, None if before is None else before.file)
    _plugins[kind, name] = Plugin(kind, name, meaning(thing), source, file, digest(thing, file),
                                  _options(thing, f"{kind} {name}", skip), thing)
    _passed.discard((kind, name))


# Methods of a policy that the runtime calls, with their number of arguments.
_METHODS = {"choose": 4, "observe": 5, "observes": 2, "attend": 7, "begin_pass": 1, "remove": 1, "selected_size": 1,
            "setup": 1}


def _check_methods(name: str, cls: type) -> None:
    """Refuses a method with a name close to one of a policy, and one that can't take its arguments."""
    for own, method in vars(cls).items():
        if own.startswith("_") or not inspect.isfunction(method):
            continue
        near = difflib.get_close_matches(own, _METHODS, 1, 0.8)
        if own not in _METHODS and near:
            raise UsageError(f"policy {name}: {own}(): expected {near[0]}(), which the runtime calls. HINT: rename it, or "
                             "begin its name with _")
        if own in _METHODS:
            try:
                inspect.signature(method).bind(None, *range(_METHODS[own]))
            except TypeError as error:
                raise UsageError(f"policy {name}: {own}(): expected {_METHODS[own]} arguments after self: {error}") from None


def policy(name: str, *, source: str = "a plugin") -> Callable[[Class], Class]:
    """Makes a class an attention policy of the runtime, under a name.

    The runtime makes one object for each run, with the options of ``--policy NAME,option=value`` as keywords. The object
    has one of two methods. Tensors share the model's memory: don't write to them. Prefill and commit passes always read
    every key.

    ``choose(layer, q, keys, step)`` chooses the keys that one sequence reads at one layer and step:

    - q: queries after RoPE, [1, query heads, positions, head_dim]. keys: those of the prefix, [1, KV heads, N, head_dim].
    - It returns None (every key), or positions: [KV heads, k], [1, KV heads, k], or [k] for all KV heads. -1 pads.
      ``(positions, rows)`` also says how many key rows each KV head read to choose them; without it, all N count.
    - If the class has an ``observe(layer, q, keys, lse, step)``, the runtime calls it after a step that read every key,
      with the log-sum-exp over the prefix, [1, query heads, positions]. On a CPU it runs in parallel with the layer. It
      counts as a read of all N rows. ``observes(layer, step)`` may return False: then it is not called and nothing counts.

    ``attend(layer, q, k_in, v_in, external, step, ops)`` computes the attention itself. It returns an object or a dict
    with ``external``, ``lse_external``, ``internal`` and ``lse_internal``, such as ``ops.split_attention`` returns.
    Optional: ``out``, ``selected`` [KV heads, k], ``keys_read`` (a number, or one for each KV head), ``reused`` [query
    heads], ``rows_scored``, ``residual`` and ``lse_residual``.

    ``step`` has the facts of the sequence's pass: ``sequence``, ``block``, ``block_start``, ``step`` of the block and
    ``run_step`` of the sequence (from 1), ``first``, ``context_length`` (N), ``masked`` and ``changed`` (positions of the
    block), ``masks_left``, ``decided``, ``since_read``, ``planned_steps``, ``scale`` (of the softmax), ``slot``.
    ``step.memory`` is a dict that lives as long as the sequence, for what the policy keeps.

    Optional methods: ``setup(model)`` with num_layers, num_heads, num_kv_heads and head_dim; ``begin_pass(steps)``;
    ``selected_size(longest)``, the most keys that a step selects for a KV head (default: the option k, else every key);
    ``remove(slot)`` when a sequence has ended and the last slot moves to its place.

    Raises:
        UsageError: another file has a policy of this name, or a constructor's argument is not int, float, str or bool.
    """

    _check_name("policy", name)

    def register(cls: Class) -> Class:
        _check_class("policy", name, cls)
        _check_methods(name, cls)
        _register("policy", name, cls, source)
        return cls

    return register


def strategy(name: str, *, source: str = "a plugin") -> Callable[[Function], Function]:
    """Makes a function ``choose(scores, state, **options)`` a decoding strategy, for ``--strategy NAME,option=value``.

    - scores: NumPy float64 [block length], the probability of each position's token.
    - state: ``step`` of the block, from 1; ``masked``, the positions that it may choose; ``quota``, how many are due by
      the schedule; ``denoising_steps``; ``token`` and ``confidence``, NumPy [block length].
    - It returns the positions that become tokens: masked ones, and at least one unless the quota is 0.

    Its options are the parameters after these two.
    """

    _check_name("strategy", name)

    def register(function: Function) -> Function:
        _register("strategy", name, function, source, skip=2)
        return function

    return register


def cache(name: str, *, source: str = "a plugin") -> Callable[[Class], Class]:
    """Makes a class a decoding cache of bidirectional models (LLaDA, Dream), for ``--cache NAME,option=value``.

    The runtime makes one object for each sequence. ``rows(state)`` returns the positions that a pass computes; keys and
    values of all others stay as they were computed last. A sequence's first pass computes all positions. state:
    ``prompt_length``, ``length``, ``block_start``, ``block_end``, ``block_length``, ``step`` of the block and
    ``run_step`` of the sequence, from 1, ``tokens`` [length], ``masked`` (positions), and ``logit_shift`` (1: row p
    predicts position p + 1).

    If it has an ``end_step(state, selected, confidence)``, the runtime calls it after the decision with the positions that
    were chosen and the confidence of every position after the prompt (NaN where the pass predicted nothing).
    """

    _check_name("cache", name)

    def register(cls: Class) -> Class:
        _check_class("cache", name, cls)
        if not callable(getattr(cls, "rows", None)):
            raise UsageError(f"cache {name}: expected a method rows(state), found none")
        _register("cache", name, cls, source)
        return cls

    return register


def pass_on(runtime: Any) -> None:
    """Gives the runtime the plugins that it does not have yet."""
    for key, plugin in list(_plugins.items()):
        if key in _passed:
            continue
        try:
            getattr(runtime, f"add_{plugin.kind}")(plugin.facts(), plugin.make)
        except UsageError:
            del _plugins[key]  # it would be refused again by every later command
            raise
        _passed.add(key)


def load(path: str | os.PathLike[str]) -> None:
    """Runs a Python file that registers plugins, as ``--plugin FILE`` does.

    Raises:
        UsageError: there is no such file, or it registers nothing.
        Error: the file raised an exception, which is the cause of this one.
    """
    file = os.path.abspath(os.fspath(path))
    if not os.path.isfile(file):
        raise UsageError(f"plugin {os.fspath(path)}: expected a Python file, found none")
    name = "blockscope_plugin_" + os.path.basename(file).removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"plugin {os.fspath(path)}: expected a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # inspect finds a class's source through it
    before = dict(_plugins)
    folder = os.path.dirname(file)
    if folder not in sys.path:  # as for a program: it may import the files next to it
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except Error:
        raise
    except Exception as error:
        raise Error(f"plugin {os.fspath(path)}: {type(error).__name__}: {error}") from error
    own = any(metric.file == file for metric in own_metrics.known())
    if _plugins == before and not own and not any(plugin.file == file for plugin in before.values()):
        raise UsageError(f"plugin {os.fspath(path)}: expected a class or function with @blockscope.policy, "
                         "strategy, cache or metric, found none")
