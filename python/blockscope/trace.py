"""An open trace."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from . import _core
from ._arguments import whole
from ._paths import PathLike, telling_missing, text
from .analysis import Analyses, analyze, attention_map, compare_backbone, similarity_matrix
from .calibration import Calibration, calibrate
from .comparison import Comparison, compare
from .errors import TraceError
from .reporting import Report, report
from .sequences import Changes, Delta, Frame, Sequences, changes_of, floats, ints
from .teacher_comparison import TeacherComparison

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr
    from typing_extensions import Unpack

    from .analysis import Choices
    from .blocks import Block
    from .results import Analysis
    from .text_html import TextHtml
    from .viewing import Picture, View

_DENOISE = 1  # values of /steps/kind


class Trace:
    """A trace, open for reading. `blockscope.open` makes one. It can be sent to other processes (pickle) and used in a
    ``with`` block.

    A row is one forward pass as one sequence saw it. A trace that is still being written has the rows that were
    committed when it was opened, or at the last `refresh`.
    """

    def __init__(self, path: PathLike) -> None:
        self._given = os.fsencode(path)
        self._absolute = os.path.abspath(self._given)  # the receiving process may have another working directory
        with telling_missing([self._given]):
            self._core = _core.Trace(self._given)
        self._take_info()

    def _take_info(self) -> None:
        self._info = self._core.info()
        self._tree: xr.DataTree | None = None

    def __fspath__(self) -> str:
        """The name of the trace, so that a trace can be used as a path."""
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
        """Closes the file. Later reads raise UsageError."""
        self._core.close()

    # --- what it is -----------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The file that is open: ``<path>.partial`` while it is written."""
        return os.fsdecode(self._info["path"])

    @property
    def complete(self) -> bool:
        """Whether the run ended normally."""
        return bool(self._info["complete"])

    @property
    def partial(self) -> bool:
        """Whether the trace is still being written, or was left by a killed run."""
        return bool(self._info["partial"])

    @property
    def level(self) -> str:
        """Recorder level: "trajectory", "summary", "sets", "outputs" or "full"."""
        return str(self._info["level"])

    @property
    def num_rows(self) -> int:
        """Number of committed rows."""
        return int(self._info["num_rows"])

    @property
    def num_sequences(self) -> int:
        """Number of committed sequences."""
        return int(self._info["num_sequences"])

    @property
    def file_bytes(self) -> int:
        """Size of the file in bytes."""
        return int(self._info["file_bytes"])

    @property
    def block_length(self) -> int:
        """Number of positions of a block, B."""
        return int(self._info["block_length"])

    @property
    def mask_token_id(self) -> int:
        """The id of the mask token; -1 if the model has none."""
        return int(self._info["mask_token_id"])

    @property
    def noise_canvas(self) -> bool:
        """Whether undecided positions of a block hold random tokens in place of a mask."""
        return bool(self._info["noise_canvas"])

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
        """The resolved configuration with the source of each value, the checkpoint's digest, and the model's shape:
        `num_layers`, `num_heads`, `num_kv_heads`, `head_dim`, `hidden_size`, `vocab_size`. Where layers differ, also
        `layer_kv_heads`, `layer_head_dim` and `layer_window`, one number for each layer, and `num_kv_heads` and
        `head_dim` are the largest."""
        shape = {key: self._info[key] for key in (
            "num_layers", "num_heads", "num_kv_heads", "head_dim", "hidden_size", "vocab_size",
            "mask_token_id", "logit_shift", "bidirectional", "softmax_scale")}
        if self._info["layer_kv_heads"]:
            shape |= {key: list(self._info[key]) for key in ("layer_kv_heads", "layer_head_dim", "layer_window")}
        return {**self._json("model_json"), **shape}

    def _sizes_of(self, layers: Iterable[int]) -> tuple[int, int] | None:
        """How many of `kv_heads` these layers have, and their channels; None: no one size, or all layers are alike."""
        kv_heads, channels = self._info["layer_kv_heads"], self._info["layer_head_dim"]
        sizes = {(kv_heads[layer], channels[layer]) for layer in layers} if kv_heads else set()
        if len(sizes) != 1:
            return None
        (own, width), = sizes
        return sum(head < own for head in self.kv_heads), width

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
        """The vocabulary pieces of token ids, as bytes, because a piece may end in the middle of a character. Empty for
        ids outside the vocabulary, and for all ids if the trace has no vocabulary."""
        return self._core.pieces([int(token) for token in tokens])

    def text(self, sequence: int, t: int | None = None, *, mask: str = "_") -> str:
        """The text of a sequence.

        Args:
            sequence: index, from 0.
            t: None for the final text: the generated text as the run wrote it, or the text so far of an unfinished
                sequence. A number: the text of frame `t`.
            mask: text for each position without a token.
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
        masked = frame.undecided
        pieces = self.pieces(frame.tokens)
        return text(b"".join(stand_in if no_token else piece for piece, no_token in zip(pieces, masked)))

    def text_html(self, sequence: int, t: int | None = None, *, values: Any = None, mask: str = "_") -> TextHtml:
        """The text of a sequence with shaded tokens. A notebook shows it. Tokens that replaced another one are
        underlined, and their tooltip says which one and at which step.

        Args:
            sequence, t: as in `frame`; None: the last frame.
            values: one for each position after the prompt, such as an entropy or the mean over a step's array. None: the
                confidences. Colours go from the smallest finite value to the largest.
            mask: text for each position without a token.
        """
        from .text_html import TextHtml

        t = self.num_steps(sequence) if t is None else t
        frame = self.frame(sequence, t)
        edits = [""] * frame.tokens.size
        for step, changes in enumerate(self.changes(sequence)[:t], 1):
            edited = changes.of("edited")
            was = self.pieces(changes.before[edited])
            for position, kind in zip(changes.position, changes.kind):
                edits[position] = "" if kind != "edited" else edits[position]
            for index, piece, token in zip(edited, was, changes.before[edited]):
                shown = piece.decode("utf-8", errors="replace") or f"[{token}]"
                edits[changes.position[index]] = f"replaced {shown!r} at step {step}"
        pieces = [mask.encode() if no_token else piece
                  for no_token, piece in zip(frame.undecided, self.pieces(frame.tokens))]
        return TextHtml(pieces, frame.tokens, frame.confidence if values is None else values, edits)

    def num_steps(self, sequence: int) -> int:
        """Number of denoising rows of a sequence. It has one frame more."""
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
        """Frame `t`: the state before the sequence's t-th denoising row, from 0. With `t` = number of rows, the state
        after all rows. Reads at most 63 rows for any `t`.

        Raises:
            UsageError: no such sequence. FrameError: no such frame.
        """
        prompt, tokens, confidence, steps = self._core.frame(
            whole("sequence", sequence, -(2**62), 2**62), whole("t", t, -(2**62), 2**62))
        return Frame(ints(prompt), ints(tokens), floats(confidence), ints(steps), self.mask_token_id)

    def deltas(self, sequence: int) -> list[Delta]:
        """The decisions of each denoising step of a sequence. Delta t leads from frame t to frame t + 1."""
        found = self._core.deltas(whole("sequence", sequence, -(2**62), 2**62))
        return [
            Delta(*(floats(raw) if i in (2, 6) else ints(raw) for i, raw in enumerate(parts)))
            for parts in found
        ]

    def changes(self, sequence: int) -> list[Changes]:
        """What each denoising step of a sequence did to its tokens: decided, edited and taken back ones, insertions and
        deletions."""
        return changes_of(self._core, whole("sequence", sequence, -(2**62), 2**62))

    # --- arrays ---------------------------------------------------------------------------------

    @property
    def tree(self) -> xr.DataTree:
        """All datasets, with named axes and coordinates, by group: ``trace.tree["steps/masks_left"]``,
        ``trace.tree["attention/external"].sel(layer=3)``. Data is read only when it is used (``.values``,
        arithmetic, a plot), and then only the used rows and their bounding box. bfloat16 becomes float32.
        docs/trace_format.md describes every dataset."""
        if self._tree is None:
            from .lazy import tree_of

            attrs = {key: self._info[key] for key in (
                "format_version", "level", "block_length", "mask_token_id", "softmax_scale", "set_size")}
            self._tree = tree_of(self._core, attrs)
        return self._tree

    def refresh(self) -> bool:
        """Reads what a run has written since, and follows the renaming at its end. Returns True if there is news. An
        older `tree` keeps its lengths."""
        with telling_missing([self._given]):
            news = self._core.refresh()
        if news:
            self._take_info()
        return news

    # --- what it means --------------------------------------------------------------------------

    @overload  # a name is also an iterable of names, so the first fitting overload counts
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

    def attention_map(self, sequence: int | None = None, step: int | None = None, layer: int | None = None,
                      head: int | None = None, **choices: Any) -> Analysis:
        """`blockscope.attention_map` of this trace: ``trace.attention_map(sequence=0, step=2, layer=3, head=0)``."""
        self.refresh()
        return attention_map(self, sequence=sequence, step=step, layer=layer, head=head, **choices)

    def blocks(self, **choices: Any) -> Iterator[Block]:
        """The blocks of the trace, each with its recorded denoising steps and their arrays; see `blockscope.Block`.

        Args: layers, steps, blocks and sequences select, as in `analyze`.
        """
        from .blocks import blocks

        self.refresh()
        return blocks(self, **choices)

    def compare_backbone(self, backbone: PathLike, **choices: Any) -> Analysis:
        """`blockscope.compare_backbone` of this trace and the backbone's, captured with --replay of this one."""
        self.refresh()
        return compare_backbone(self, backbone, **choices)

    def calibrate(self, **choices: Any) -> Calibration:
        """`blockscope.calibrate` of this trace: ``trace.calibrate(max_error=0.2, tau=2)``."""
        self.refresh()
        return calibrate(self, **choices)

    def compare(self, other: PathLike | Trace, **choices: Any) -> Comparison | TeacherComparison:
        """`blockscope.compare` of this trace and another. With ``teacher=True``: where they first differ."""
        self.refresh()
        return compare(self, other, **choices)

    def report(self, **choices: Any) -> Report:
        """`blockscope.report` of this trace: the page in a notebook, and its figures."""
        self.refresh()
        return report(self, **choices)

    def view(self, *, static: bool = False, select: str = "", panel: str = "", width: int = 1280, height: int = 720,
             **options: Any) -> View | Picture:
        """The viewer, as a notebook shows it in a cell: live in a frame, or as a picture that nbconvert keeps.

        Live, it is `blockscope view --serve` on the kernel's machine. A notebook on another machine reaches it through
        jupyter-server-proxy where the Jupyter server has it, else through a forwarded port (`ssh -L`).

        Args:
            static: a picture instead of a live viewer.
            select: where to start, as for ``--select``: "layer=3,head=2,step=4".
            panel: the panels to show, as for ``--panel``: "attention,heads"; empty: all.
            width: of the picture, in pixels.
            height: of the frame or picture, in pixels.
            options: further options of ``blockscope view``, such as `show="heads=external_mass"` or `light=True`.

        Raises:
            Error: the command is missing or refuses an option.
        """
        from .viewing import view  # takes as long to import as a trace to open

        self.refresh()
        return view(self.path, static=static, select=select, panel=panel, width=width, height=height, options=options)

    # --- shown ----------------------------------------------------------------------------------

    def _state(self) -> str:
        if self.complete:
            return "complete"
        return "unfinished: still being written, or cut off" if self.partial else "cut off: it has every committed row"

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
    """Opens a trace that is finished (``run.h5``) or still being written (``run.h5.partial``). Both names work.

    Checks everything in the file that refers to something else. Reads no arrays.

    Raises:
        TraceNotFound: there is no such file.
        NotATrace, UnsupportedVersion, CorruptTrace: the file can't be used; the message says why.
    """
    return Trace(path)
