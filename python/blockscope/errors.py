"""The exceptions of the package. A message says where, what was expected, what was found and what to do."""

from __future__ import annotations


class Error(Exception):
    """Root of every error that Blockscope raises itself."""


class UsageError(Error, ValueError):
    """Arguments that make no sense, or ask for what a trace does not have."""


class TraceError(Error, OSError):
    """A trace that can't be read."""


class TraceNotFound(TraceError, FileNotFoundError):
    """There is no file of this name, and none with ``.partial`` behind it."""


class NotATrace(TraceError):
    """The file is no Blockscope trace."""


class UnsupportedVersion(TraceError):
    """A newer Blockscope wrote the trace."""


class CorruptTrace(TraceError):
    """The file is a trace, and its contents contradict each other or are cut off."""


class TraceLocked(TraceError):
    """Another process holds the file's lock; it may be free in a moment."""


class FrameError(Error, IndexError):
    """A frame, step or position outside its range."""


class CalibrationError(Error, ValueError):
    """A calibration file that can't be read, written or used with this model."""


class OperatorsUnavailable(Error, ImportError):
    """``blockscope.ops`` can't be had here: no torch, another torch than its library was built with, or no library."""
