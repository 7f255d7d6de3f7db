"""An open trace."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from . import _core
from ._arguments import whole
from ._paths import PathLike, telling_missing, text
from .analysis import Analyses, analyze, compare_backbone, similarity_matrix
from .calibration import Calibration, calibrate
from .comparison import Comparison, compare
from .errors import TraceError
from .reporting import Report, report
from .sequences import Delta, Frame, Sequences, floats, ints

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr
    from typing_extensions import Unpack

    from .analysis import Choices
    from .results import Analysis

_DENOISE = 1  # of /steps/kind


class Trace:
    """A trace, open for reading. `blockscope.open` makes one; it may be sent to other processes (pickle), and
    used in a ``with`` block.

    Rows are forward passes as one sequence saw them; a trace that is still being written shows what was
    committed when it was opened, or at the last `refresh`.
    """

    def __init__(self, path: PathLike) -> None:
        self._given = os.fsencode(path)
        self._absolute = os.path.abspath(self._given)  # a process that it is sent to may be elsewhere
        with telling_missing([self._given]):
            self._core = _core.Trace(self._given)
        self._take_info()

    def _take_info(self) -> None:
        self._info = self._core.info()
        self._tree: xr.DataTree | None = None

    def __fspath__(self) -> str:
        """The name it was opened by, so that a trace may stand for its path."""
        return os.fsdecode(self._given)

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (os.fsdecode(self._absolute),)

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file. What reads it afterwards raises UsageError."""
        self._core.close()

    # --- what it is -----------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The file really opened: ``<path>.partial`` while it is written."""
        return os.fsdecode(self._info["path"])

    @property
    def complete(self) -> bool:
        """Whether the run ended by itself."""
        return bool(self._info["complete"])

    @property
    def partial(self) -> bool:
        """Whether it is still being written, or was left by a killed run."""
        return bool(self._info["partial"])

    @property
    def level(self) -> str:
        """Recorder level: "trajectory", "summary", "sets", "outputs" or "full"."""
        return str(self._info["level"])

    @property
    def num_rows(self) -> int:
        """Committed rows."""
        return int(self._info["num_rows"])

    @property
    def num_sequences(self) -> int:
        """Committed sequences."""
        return int(self._info["num_sequences"])

    @property
    def file_bytes(self) -> int:
        """Size of the file, bytes."""
        return int(self._info["file_bytes"])

    @property
    def block_length(self) -> int:
        """Positions of a block, B."""
        return int(self._info["block_length"])

    @property
    def mask_token_id(self) -> int:
        """-1: the model has none."""
        return int(self._info["mask_token_id"])

    @property
    def layers(self) -> list[int]:
        """The model's layers that were recorded."""
        return list(self._info["layers"])

    @property
    def heads(self) -> list[int]:
        """The model's query heads that were recorded."""
        return list(self._info["heads"])

    @property
    def kv_heads(self) -> list[int]:
        """The model's KV heads that were recorded."""
        return list(self._info["kv_heads"])

    @property
    def model(self) -> dict[str, Any]:
        """The resolved configuration, where each value came from, and the checkpoint's digest; with the
        model's shape: `num_layers`, `num_heads`, `num_kv_heads`, `head_dim`, `hidden_size`, `vocab_size`."""
        shape = {key: self._info[key] for key in (
            "num_layers", "num_heads", "num_kv_heads", "head_dim", "hidden_size", "vocab_size",
            "mask_token_id", "logit_shift", "bidirectional", "softmax_scale")}
        return {**self._json("model_json"), **shape}

    @property
    def run(self) -> dict[str, Any]:
        """What ran: policy, decoding parameters, seed, versions, command line."""
        return self._json("run_json")

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads(text(self._info[name]))
        except ValueError as error:
            raise TraceError(f"{self.path}:/{name.replace('_', '/')}: expected JSON: {error}") from None
        return found if isinstance(found, dict) else {}

    # --- what it says ---------------------------------------------------------------------------

    @property
    def sequences(self) -> Sequences:
        """The sequences, like a list of `Sequence`."""
        return Sequences(self._core, lambda: self._info)

    def pieces(self, tokens: Iterable[int]) -> list[bytes]:
        """The vocabulary pieces of token ids, as bytes: one may end in the middle of a character. Empty for
        ids outside the vocabulary, and for all if the trace has none."""
        return self._core.pieces([int(token) for token in tokens])

    def text(self, sequence: int, t: int | None = None, *, mask: str = "_") -> str:
        """What a sequence says.

        Args:
            sequence: index, from 0.
            t: None for the end: the generated text as the run wrote it, or of an unfinished sequence what it
                says so far. Otherwise that of frame `t`.
            mask: stands for each position without a token.
        """
        sequence = whole("sequence", sequence, -(2**62), 2**62)
        if t is None:
            found = self._core.sequence(sequence)
            if found["finish_reason"] != "unfinished":
                return text(found["text"])
            t = self.num_steps(sequence)
        frame = self.frame(sequence, t)
        if self._core.num_pieces() == 0:
            raise TraceError(f"{self.path}: /tokenizer: expected the vocabulary's pieces, got none. HINT: "
                             "frame() has the token ids")
        stand_in = mask.encode("utf-8")
        masked = frame.tokens == frame.mask_token_id
        pieces = self.pieces(frame.tokens)
        return text(b"".join(stand_in if no_token else piece for piece, no_token in zip(pieces, masked)))

    def num_steps(self, sequence: int) -> int:
        """Denoising rows of a sequence; it has one frame more."""
        import numpy as np

        rows = self.rows(sequence)
        if rows.size == 0:
            return 0
        kinds = np.empty(int(rows[-1]) + 1, np.uint8)
        self._core.read("/steps/kind", [0], [kinds.size], kinds)
        return int((kinds[rows] == _DENOISE).sum())

    def rows(self, sequence: int) -> np.ndarray:
        """Rows of a sequence, ascending: int64 [rows]."""
        return ints(self._core.rows_of(whole("sequence", sequence, -(2**62), 2**62)))

    def frame(self, sequence: int, t: int) -> Frame:
        """Frame `t`: the state before the sequence's t-th denoising row, from 0; `t` = their number gives the
        state after all rows. Costs at most 63 rows, wherever it is.

        Raises:
            UsageError: no such sequence. FrameError: no such frame.
        """
        prompt, tokens, confidence, steps = self._core.frame(
            whole("sequence", sequence, -(2**62), 2**62), whole("t", t, -(2**62), 2**62))
        return Frame(ints(prompt), ints(tokens), floats(confidence), ints(steps), self.mask_token_id)

    def deltas(self, sequence: int) -> list[Delta]:
        """What each denoising step of a sequence decided; delta t leads from frame t to frame t + 1."""
        found = self._core.deltas(whole("sequence", sequence, -(2**62), 2**62))
        return [
            Delta(*(floats(raw) if i in (2, 6) else ints(raw) for i, raw in enumerate(parts)))
            for parts in found
        ]

    # --- arrays ---------------------------------------------------------------------------------

    @property
    def tree(self) -> xr.DataTree:
        """All datasets, with named axes and coordinates, by group: ``trace.tree["steps/masks_left"]``,
        ``trace.tree["attention/external"].sel(layer=3)``. Nothing is read before it is asked for
        (``.values``, arithmetic, a plot); then only the rows and the box that are. bfloat16 arrives as
        float32. docs/trace_format.md describes every dataset."""
        if self._tree is None:
            from .lazy import tree_of

            attrs = {key: self._info[key] for key in (
                "format_version", "level", "block_length", "mask_token_id", "softmax_scale", "set_size")}
            self._tree = tree_of(self._core, attrs)
        return self._tree

    def refresh(self) -> bool:
        """Takes up what a run has written since, and follows the renaming at its end. True when there is news.
        A `tree` from before keeps its lengths."""
        with telling_missing([self._given]):
            news = self._core.refresh()
        if news:
            self._take_info()
        return news

    # --- what it means --------------------------------------------------------------------------

    @overload  # a name is an iterable of names too, and the first that fits counts
    def analyze(self, metric: str, **choices: Unpack[Choices]) -> Analysis: ...  # type: ignore[overload-overlap]
    @overload
    def analyze(self, metric: Iterable[str] | None = None, **choices: Unpack[Choices]) -> Analyses: ...
    def analyze(self, metric: Any = None, **choices: Any) -> Any:
        """`blockscope.analyze` of this trace: ``trace.analyze("similarity", layers=range(4), by=["layer"])``."""
        self.refresh()
        return analyze(self, metric, **choices)

    def similarity_matrix(self, kind: str, **choices: Any) -> Analysis:
        """`blockscope.similarity_matrix` of this trace: ``trace.similarity_matrix("token", layer=3, steps=[1, 2])``."""
        self.refresh()
        return similarity_matrix(self, kind, **choices)

    def compare_backbone(self, backbone: PathLike, **choices: Any) -> Analysis:
        """`blockscope.compare_backbone` of this trace with one of the backbone, captured with --replay of it."""
        self.refresh()
        return compare_backbone(self, backbone, **choices)

    def calibrate(self, **choices: Any) -> Calibration:
        """`blockscope.calibrate` of this trace: ``trace.calibrate(max_error=0.2, tau=2)``."""
        self.refresh()
        return calibrate(self, **choices)

    def compare(self, other: PathLike | Trace, **choices: Any) -> Comparison:
        """`blockscope.compare` of this trace with another."""
        self.refresh()
        return compare(self, other, **choices)

    def report(self, **choices: Any) -> Report:
        """`blockscope.report` of this trace: the page in a notebook, and its figures."""
        self.refresh()
        return report(self, **choices)

    # --- shown ----------------------------------------------------------------------------------

    def _state(self) -> str:
        if self.complete:
            return "complete"
        return "unfinished: still written, or cut off" if self.partial else "cut off: every committed row is here"

    def __repr__(self) -> str:
        return (f"<blockscope.Trace {self.path!r}: level {self.level}, {self.num_rows} rows, "
                f"{self.num_sequences} sequences, {self._state()}>")

    def _repr_html_(self) -> str:
        info = self._info
        facts = {
            "trace": f"{self.path} ({self.file_bytes / 2**20:.2f} MiB)",
            "state": self._state(),
            "model": f"{info['num_layers']} layers, {info['num_heads']} query heads, {info['num_kv_heads']} KV "
                     f"heads, head_dim {info['head_dim']}, vocabulary {info['vocab_size']}",
            "recorded": f"level {self.level}, {len(self.layers)} layers, {len(self.heads)} heads, blocks of "
                        f"{self.block_length}",
            "rows": f"{self.num_rows}, of {self.num_sequences} sequences",
        }
        rows = "".join(f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
                       f"<td style='text-align:left'>{html.escape(fact)}</td></tr>"
                       for name, fact in facts.items())
        return f"<table>{rows}</table>"


def open(path: PathLike) -> Trace:
    """Opens a trace, finished (``run.h5``) or still being written (``run.h5.partial``; both names do).

    Everything in the file that refers to something else is checked. Arrays are not read.

    Raises:
        TraceNotFound: there is no such file.
        NotATrace, UnsupportedVersion, CorruptTrace: it can't be used, and why.
    """
    return Trace(path)
