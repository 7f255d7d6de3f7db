"""Blockscope in Python: traces of block-diffusion language models as named arrays, and every metric of
``blockscope analyze`` on them.

    import blockscope

    trace = blockscope.open("run.h5")              # finished, or still being written
    trace.text(0)                                  # the text of sequence 0
    trace.tree["attention/external"]               # lazy, [row, layer, head, block_position, channel]
    similarity = trace.analyze("similarity")       # xarray: means, and their numbers of terms
    similarity.similarity_external.sel(layer=3)

Only `blockscope.ops` (the attention operators), `blockscope.record`, `blockscope.record_engine`,
`blockscope.apply` and `blockscope.Model` need torch. docs/python.md is the guide.
"""

from __future__ import annotations

import typing

try:
    from . import _core
except ImportError as error:  # pragma: no cover - depends on the machine
    if ".so" not in str(error) or "cannot open shared object file" not in str(error):
        raise
    raise ImportError(
        f"{error}. HINT: Debian has it in libhdf5-103-1, libhdf5-hl-100, libfmt9 (the command needs libonig5 "
        "and libutf8proc2 too); a wheel runs where the libraries are that it was built with"
    ) from None

from .analysis import Analyses, analyze, attention_map, compare_backbone, metrics, similarity_matrix
from .applying import apply
from .calibration import Calibration, calibrate
from .comparison import Comparison, compare
from .errors import (
    CalibrationError,
    CheckpointError,
    CorruptTrace,
    Error,
    FrameError,
    NotATrace,
    OperatorsUnavailable,
    PromptError,
    RankError,
    RuntimeUnavailable,
    TraceError,
    TraceLocked,
    TraceNotFound,
    UnsupportedVersion,
    UsageError,
)
from .figures import Figure
from .loop_comparison import LoopComparison
from .own_metrics import metric
from .recording import record, record_engine
from .reporting import Report, report
from .sequences import Changes, Delta, Frame, Sequence, Sequences
from .teacher_comparison import TeacherComparison
from .trace import Trace, open

if typing.TYPE_CHECKING:  # pragma: no cover
    from . import ops as ops
    from .blocks import Block, Step
    from .plugins import cache, policy, strategy
    from .runtime import Model
    from .viewing import Picture, View

__version__: str = _core.version

__all__ = [
    "Analyses", "Block", "Calibration", "CalibrationError", "Changes", "CheckpointError", "Comparison", "CorruptTrace",
    "Delta", "Error", "Figure", "Frame", "FrameError", "LoopComparison", "Model", "NotATrace",
    "OperatorsUnavailable", "Picture", "PromptError", "RankError", "Report", "RuntimeUnavailable", "Sequence",
    "Sequences", "Step", "TeacherComparison", "Trace", "TraceError", "TraceLocked", "TraceNotFound", "UnsupportedVersion",
    "UsageError", "View", "analyze", "apply", "attention_map", "cache", "calibrate", "compare", "compare_backbone", "metric",
    "metrics", "open", "policy", "record", "record_engine", "report", "similarity_matrix", "strategy",
]


# Imported when they are used: torch, and modules that take as long to import as a trace to open.
_LATE = {"Block": "blocks", "Model": "runtime", "Picture": "viewing", "Step": "blocks", "View": "viewing",
         "cache": "plugins", "policy": "plugins", "strategy": "plugins"}


def __getattr__(name: str) -> typing.Any:
    import importlib

    if name in ("ops", "plugins", "runtime"):
        return importlib.import_module(f".{name}", __name__)
    if name in _LATE:
        return getattr(importlib.import_module(f".{_LATE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
