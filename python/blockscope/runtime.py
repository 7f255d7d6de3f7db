"""The commands that run a model, in this process: `Model`."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import numbers
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Union

from . import plugins
from ._arguments import whole_numbers
from ._paths import PathLike
from ._progress import Progress, Shown
from .errors import Error, Interrupted, RuntimeUnavailable, UsageError

if TYPE_CHECKING:
    from .sequences import Frame
    from .trace import Trace

Prompt = Union[str, Iterable[int], Mapping[str, Any]]
Prompts = Union[Prompt, Iterable[Prompt], PathLike, None]

# Commands share settings of the process, such as the number of threads, so one runs at a time.
_running = threading.Lock()
_owner: int | None = None


def _runtime() -> Any:
    """The extension module."""
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        # As the command does (cli/modules.cpp): idle threads spin for microseconds instead of milliseconds. OpenMP reads
        # this when torch is imported.
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        from . import ops as ops  # loads torch and the operators, or says what is wrong
        from . import _runtime as module
    except ImportError as error:
        raise RuntimeUnavailable(
            f"blockscope.Model: the runtime can't be loaded: {error}. HINT: pip install . in an environment with torch "
            "builds it for that torch") from error
    return module


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a command: `name` is the keyword of the method."""

    name: str
    meaning: str
    default: str
    flag: str
    takes_value: bool
    repeats: bool
    lists: bool


# What a method sets itself, by command. The other options of the command are its keywords.
_MODEL = ("model", "revision", "adapter", "dtype", "device", "mask_token_id", "block_length")
_OWN = {"csv", "dry_run", "help", "help_all", "input_ids", "json", "output", "plugin", "prompt", "prompts", "quiet", "ranks",
        "study", "version"}
_known: dict[str, dict[str, Option]] = {}
_TEMPORARY = "blockscope-prompts-"


def options(command: str) -> dict[str, Option]:
    """The options of a command by their keywords, as `Model`'s method of that name takes them.

        for option in blockscope.runtime.options("capture").values():
            print(option.name, option.meaning, option.default)
    """
    if command not in _known:
        found = {}
        for one in _runtime().options(command):
            keyword = one["name"].lstrip("-").replace("-", "_")
            found[keyword] = Option(keyword, one["help"], one["initial"], one["name"], one["takes_value"],
                                    one["repeats"], one["lists"])
        _known[command] = found
    return {name: option for name, option in _known[command].items() if name not in _OWN and name not in _MODEL}


def _text(name: str, value: Any) -> str:
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    whole = whole_numbers(value)
    if whole is not None and len(whole) == 1:
        return str(whole[0])
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return repr(float(value))
    raise UsageError(f"{name}: expected a text or a number, got {value!r}")


def _words(command: str, given: Mapping[str, Any]) -> list[str]:
    """The keywords of a method as words of the command line."""
    known = options(command)
    words: list[str] = []
    for name, value in given.items():
        option = known.get(name)
        if option is None:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"{near[0]}, perhaps" if near else f"blockscope.runtime.options({command!r}) lists them"
            raise UsageError(f"{name}: {command} has no such option. HINT: {hint}")
        if value is None or value is False:
            continue
        if not option.takes_value:
            if value is not True:
                raise UsageError(f"{name}: expected True or False, got {value!r}")
            words.append(option.flag)
        elif isinstance(value, Iterable) and not isinstance(value, (str, bytes, os.PathLike)):
            texts = [_text(name, one) for one in value]
            if not texts:
                raise UsageError(f"{name}: expected at least one, got none")
            # --layers and the like take a list too, as one text
            words += [f"{option.flag}={one}" for one in texts] if option.repeats else [f"{option.flag}={','.join(texts)}"]
        else:
            words.append(f"{option.flag}={_text(name, value)}")
    return words


def _as_keywords(command: str, message: str) -> str:
    """Names options as Python does: "--gen-length" is gen_length, and "--resume" is resume=True."""

    def keyword(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        option = _known.get(command, {}).get(name)
        if option is None:
            return name if name in _MODEL else match[0]
        return option.name + ("" if option.takes_value else "=True")

    return re.sub(r"--([a-z][a-z0-9-]*)", keyword, message)


def _prompt_names(message: str, words: list[str]) -> str:
    """Names a prompt by its place in the list, and not by the line of a temporary file."""
    for word in words:
        path = word.removeprefix("--prompts=")
        if path != word and os.path.basename(os.path.dirname(path)).startswith(_TEMPORARY):
            message = re.sub(re.escape(path) + r":(\d+)", lambda line: f"prompts[{int(line[1]) - 1}]", message)
    return message


def _note(text: str) -> None:
    sys.stderr.write(text)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Waits until no other thread runs a command, then gives the runtime the new plugins: no command reads its tables."""
    global _owner
    # The runtime calls observe() on a thread that Python did not start.
    inside = _owner is not None and threading.current_thread().name.startswith("Dummy-")
    if _owner == threading.get_ident() or inside:
        raise Error("blockscope: a plugin of the running command started another one. HINT: run it before or after")
    with _running:
        _owner = threading.get_ident()
        try:
            plugins.pass_on(_runtime())
            yield
        finally:
            _owner = None


def _run(command: str, words: list[str], description: str, progress: Progress, notes: bool) -> str:
    """Runs a command. Returns what it printed as its result."""
    runtime = _runtime()
    options(command)  # for messages
    shown = Shown(progress)
    with _alone(), shown:
        runtime.plugin_cause()  # forgets that of a command before
        try:
            said: bytes = runtime.run_command([os.fsencode(word) for word in ["blockscope", command, *words]], description,
                                              _note if notes else (lambda text: None), shown.share)
        except Interrupted as stopped:
            raise KeyboardInterrupt(_as_keywords(command, str(stopped))) from runtime.plugin_cause()
        except Error as error:
            raise type(error)(_prompt_names(_as_keywords(command, str(error)), words)) from runtime.plugin_cause()
    return said.decode("utf-8", errors="replace")


def _prompt_line(prompt: Prompt, index: int) -> dict[str, Any]:
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if isinstance(prompt, Mapping):
        line = dict(prompt)
        if "input_ids" in line:
            line["input_ids"] = whole_numbers(line["input_ids"])
        return line
    ids = whole_numbers(prompt)
    if ids is None:
        raise UsageError(f"prompts[{index}]: expected a text, token ids, or a dict with prompt, messages or input_ids, got "
                         f"{prompt!r}")
    return {"input_ids": ids}


def _plain(value: Any) -> Any:
    """A value of NumPy or torch, for JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"expected texts, numbers and lists, got {value!r}")


@contextlib.contextmanager
def _prompt_file(prompts: Prompts) -> Iterator[list[str]]:
    """The words that name the prompts."""
    if prompts is None:
        yield []
        return
    if isinstance(prompts, (os.PathLike, bytes)) or (isinstance(prompts, str) and prompts.endswith(".jsonl")):
        yield [f"--prompts={os.fsdecode(prompts)}"]
        return
    if not isinstance(prompts, (str, Mapping)):
        if not isinstance(prompts, Iterable):
            raise UsageError(f"prompts: expected a text, token ids, a dict, a list of these or a .jsonl file, got {prompts!r}")
        given = list(prompts)
        prompts = given  # type: ignore[assignment]
        one = bool(whole_numbers(given))
    else:
        one = True
    several: Any = [prompts] if one else prompts
    lines = [_prompt_line(prompt, index) for index, prompt in enumerate(several)]
    if not lines:
        raise UsageError("prompts: expected at least one, got none")
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY) as folder:
        path = os.path.join(folder, "prompts.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            for index, line in enumerate(lines):
                try:
                    file.write(json.dumps(line, default=_plain) + "\n")
                except TypeError as error:
                    raise UsageError(f"prompts[{index}]: {error}") from None
        yield [f"--prompts={path}"]


@dataclasses.dataclass(frozen=True)
class Decoded:
    """The answer to one prompt."""

    name: str
    text: str
    frames: list[Frame]  # after each denoising step; the first one is the start
    finish_reason: str
    score: float | None

    @property
    def tokens(self) -> Any:
        """[gen_length] token ids, as NumPy."""
        return self.frames[-1].tokens


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a command measured: `data` is its JSON, `text` what it prints."""

    command: str
    data: Any
    text: str

    def __getitem__(self, key: Any) -> Any:
        return self.data[key]

    def __repr__(self) -> str:
        return self.text

    def save(self, path: PathLike, *, force: bool = False) -> None:
        """Writes the JSON. Replaces an existing file only with `force`."""
        from ._paths import save

        save(path, json.dumps(self.data, indent=1), force)


class Model:
    """A checkpoint in memory. Its methods are the commands of the shell, with the same options as keywords.

        model = blockscope.Model("models/needle")
        trace = model.capture("Remember: the city of Oslo ...", output="run.h5", record="full", policy="mage,k=16")
        print(model.verify("mage,k=16", prompts="models/needle/demo.jsonl"))

    Options keep their names, with ``_`` for ``-``: ``gen_length=64``. A switch is ``shadow=True``. A list is a list:
    ``layers=range(4)``. ``blockscope.runtime.options("capture")`` lists the options of a command.

    Prompts are a text, token ids, a dict with the keys of a line of ``--prompts`` (prompt, messages or input_ids; id,
    task, answer, metric, gen_length), a list of these, or the name of a ``.jsonl`` file.

    Every method has ``progress``: None shows a bar in notebooks and on terminals, False nothing. A function gets the
    share done and a text. Ctrl-C stops a command after the current step. One command of a process runs at a time.
    """

    def __init__(
        self,
        model: PathLike,
        *,
        device: str = "cpu",
        dtype: str = "auto",
        adapter: PathLike | None = None,
        revision: str | None = None,
        mask_token_id: int | None = None,
        block_length: int | None = None,
    ) -> None:
        """Reads the weights.

        Args:
            model: a folder in the Hugging Face layout, or a model id of the local hub cache.
            device: "cpu", "cuda" or "cuda:1".
            dtype: "auto" (the checkpoint's), "float32", "bfloat16" or "float16".
            adapter: folder of a LoRA adapter in PEFT's format.
            revision: of a model id; None: main.
            mask_token_id, block_length: replace those of the checkpoint.

        Raises:
            CheckpointError: the checkpoint can't be used, with the reason.
            RuntimeUnavailable: there is no torch, or the package was built without it.
        """
        # A folder stays the same one if the program changes its own.
        self._arguments = [os.path.abspath(os.fsdecode(model)) if os.path.isdir(model) else os.fsdecode(model)]
        adapter = None if adapter is None else os.path.abspath(os.fsdecode(adapter))
        given = {"device": device, "dtype": dtype, "adapter": adapter, "revision": revision,
                 "mask-token-id": mask_token_id, "block-length": block_length}
        defaults = {"device": "cpu", "dtype": "auto"}
        self._arguments += [f"--{name}={_text(name, value)}" for name, value in given.items()
                            if value is not None and value != defaults.get(name)]
        self._process = os.getpid()
        words = [os.fsencode(word) for word in ["Model", *self._arguments]]
        runtime = _runtime()
        with _alone():
            try:
                self._loaded = runtime.open_model(words, _note)
            except Error as error:
                raise type(error)(_as_keywords("Model", str(error))) from None
        self.facts: dict[str, Any] = json.loads(self._loaded.json)

    def __repr__(self) -> str:
        return f"<blockscope.Model {self._loaded.text}: {self.facts['model_type']}, {self.facts['compute_dtype']}>"

    def _call(self, command: str, words: list[str], given: Mapping[str, Any], progress: Progress,
              before: Iterable[str] = ()) -> str:
        if os.getpid() != self._process:
            raise Error("blockscope.Model: the process was forked after the model was loaded, and torch's threads do not "
                        "survive a fork. HINT: load the model in this process, or start processes with \"spawn\"")
        shown = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
        description = f"blockscope.Model({self.facts['requested']!r}).{command}({shown})"
        return _run(command, [*before, *self._arguments, *_words(command, given), *words], description, progress,
                    notes=progress is not False)

    def capture(self, prompts: Prompts = None, *, output: PathLike, progress: Progress = None, **options: Any) -> Trace:
        """Decodes prompts and records a trace (``blockscope capture``).

        Args:
            prompts: see `Model`; None with ``replay=``.
            output: the file of the trace.
            options: those of the command, such as ``policy="mage,k=16"``, ``record="full"``, ``gen_length=64``,
                ``batch_size=8``, ``strategy="klass"``, ``shadow=True``, ``resume=True`` or ``force=True``.

        Returns:
            The trace. If the run was stopped, ``blockscope.open(output)`` opens what was recorded, and ``resume=True``
            goes on.
        """
        from .trace import open as open_trace

        with _prompt_file(prompts) as words:
            self._call("capture", [*words, f"--output={os.fsdecode(output)}", "--quiet"], options, progress)
        return open_trace(output)

    def decode(self, prompts: Prompts, *, progress: Progress = None, **options: Any) -> list[Decoded]:
        """Decodes prompts without keeping a trace.

        Returns:
            For each prompt its text, and the frames (tokens, confidence, steps) after each denoising step.
        """
        from .trace import open as open_trace

        with tempfile.TemporaryDirectory(prefix="blockscope-") as folder, _prompt_file(prompts) as words:
            path = os.path.join(folder, "run.h5")
            for name in ("resume", "force", "record"):
                if options.get(name):
                    raise UsageError(f"{name}: does nothing for decode, which keeps no trace. HINT: capture keeps one")
            try:
                self._call("capture", [*words, f"--output={path}", "--quiet"], {"record": "trajectory", **options}, progress)
            except (Error, KeyboardInterrupt) as error:  # the rows that the message speaks of are gone with the folder
                raise type(error)(re.sub(r";? ?\d+ rows are safe in .*", "", str(error))) from error.__cause__
            with open_trace(path) as trace:
                return [Decoded(sequence.name, trace.text(index),
                                [trace.frame(index, step) for step in range(trace.num_steps(index) + 1)],
                                sequence.finish_reason, sequence.score)
                        for index, sequence in enumerate(trace.sequences)]

    def verify(self, policy: str | None = None, *, prompts: Prompts, progress: Progress = None, **options: Any) -> Outcome:
        """Measures what a policy (or ``intervene=``, or ``draft=``) saves and costs (``blockscope verify``).

        Args:
            policy: such as "mage,k=16", or the name of your own.
            options: those of the command, such as ``against="quest,k=16"``, ``gen_length=32`` or ``repeats=1``.
        """
        with tempfile.TemporaryDirectory(prefix="blockscope-") as folder, _prompt_file(prompts) as words:
            return self._measured("verify", words, {"policy": policy, **options}, progress, "--output",
                                  os.path.join(folder, "verify.json"))

    def eval(self, *, progress: Progress = None, **options: Any) -> Outcome:
        """Scores the model on generated tasks (``blockscope eval``), such as ``tasks=["needle"], per_cell=10``."""
        with tempfile.TemporaryDirectory(prefix="blockscope-") as folder:
            return self._measured("eval", [], options, progress, "--json", os.path.join(folder, "eval.json"))

    def study(self, name: str, *, output: PathLike, prompts: Prompts = None, progress: Progress = None,
              **options: Any) -> Study:
        """Makes a table or figure of the papers (``blockscope study NAME``) in the folder `output`.

        A stopped study goes on with ``resume=True``.
        """
        with _prompt_file(prompts) as words:
            text = self._call("study", [*words, f"--output={os.fsdecode(output)}"], options, progress, [name])
        return Study(name, os.fsdecode(output), text)

    def bench(self, prompts: Prompts = None, *, progress: Progress = None, **options: Any) -> Outcome:
        """Times decoding and recording on this machine (``blockscope bench``)."""
        with _prompt_file(prompts) as words:
            text = self._call("bench", [*words, "--json"], options, progress)
        return Outcome("bench", json.loads(text), text)

    def _measured(self, command: str, words: list[str], given: Mapping[str, Any], progress: Progress, flag: str,
                  path: str) -> Outcome:
        text = self._call(command, [*words, f"{flag}={path}"], given, progress)
        with open(path, encoding="utf-8") as file:
            return Outcome(command, json.load(file), text)


@dataclasses.dataclass(frozen=True)
class Study:
    """The results of a study: its text, its rows, its figures."""

    name: str
    folder: str
    text: str

    @property
    def rows(self) -> list[dict[str, str]]:
        """The lines of its CSV."""
        import csv

        with open(os.path.join(self.folder, f"{self.name}.csv"), encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    @property
    def figures(self) -> list[str]:
        """The files of its figures, as SVG."""
        return sorted(os.path.join(self.folder, name) for name in os.listdir(self.folder) if name.endswith(".svg"))

    def __repr__(self) -> str:
        return self.text
