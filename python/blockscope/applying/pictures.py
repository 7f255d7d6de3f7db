"""Frames of two videos as PNG files in a text."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from ..errors import UsageError

MOST = 64  # frames of a video


def png(frame: Any) -> str:
    """A frame [height, width, 3] or [height, width] of uint8, as base64."""
    height, width = frame.shape[:2]
    colour = frame.ndim == 3
    lines = b"".join(b"\0" + frame[y].tobytes() for y in range(height))

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2 if colour else 0, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return base64.b64encode(whole).decode()


def _frames(given: Any) -> Any:
    import numpy as np

    frames = np.ascontiguousarray(np.asarray(given.cpu() if hasattr(given, "cpu") else given))
    if frames.dtype != np.uint8 or frames.ndim not in (3, 4) or frames.ndim == 4 and frames.shape[3] != 3:
        raise UsageError("frames: expected a function that makes uint8 [frames, height, width, 3] or [frames, height, "
                         f"width] of a loop's result, got {frames.dtype} {list(frames.shape)}")
    return frames


def pairs(exact: Any, policy: Any) -> Iterator[dict[str, Any]]:
    """Evenly spaced frames of both videos."""
    first, second = _frames(exact), _frames(policy)
    count = min(len(first), len(second))
    for index in sorted({i * count // min(count, MOST) for i in range(min(count, MOST))}):
        yield {"frame": index, "exact": png(first[index]), "policy": png(second[index])}
