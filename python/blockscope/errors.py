"""The exceptions of the package. A message says where, what was expected, what was found and what to do."""

from __future__ import annotations


class Error(Exception):
    """Root of every error that Blockscope raises itself."""


class UsageError(Error, ValueError):
    """Arguments that make no sense, or that name something the trace does not have."""


class TraceError(Error, OSError):
    """A trace that can't be read."""


class TraceNotFound(TraceError, FileNotFoundError):
    """There is no file with this name, and none with this name and ``.partial`` at its end."""


class NotATrace(TraceError):
    """The file is not a Blockscope trace."""


class UnsupportedVersion(TraceError):
    """A newer Blockscope wrote the trace."""


class CorruptTrace(TraceError):
    """The file is a trace, but its contents contradict each other or are cut off."""


class TraceLocked(TraceError):
    """Another process holds the file's lock; it may be free in a moment."""


class FrameError(Error, IndexError):
    """A frame, step or position outside its range."""


class CalibrationError(Error, ValueError):
    """A calibration file that can't be read, written or used with this model."""


class CheckpointError(Error, ValueError):
    """A checkpoint, adapter or tokenizer that can't be used."""


class PromptError(Error, ValueError):
    """A prompt that can't be used."""


class RankError(Error, RuntimeError):
    """Another process of the group that records a trace failed, ended early, or wasn't heard of in time."""

    def __init__(self, reason: str, consequence: str) -> None:
        super().__init__(reason, consequence)
        self.reason = reason

    def __str__(self) -> str:
        return ". ".join(self.args)


class Interrupted(Error):
    """Something stopped a command. The package raises KeyboardInterrupt instead, with the message."""


class RuntimeUnavailable(Error, ImportError):
    """`Model` and plugins are not available: torch is missing, or the build has no runtime for it."""


class OperatorsUnavailable(Error, ImportError):
    """``blockscope.ops`` is not available: torch or the library is missing, or torch has a different version."""
