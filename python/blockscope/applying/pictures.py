"""Frames of two videos as PNG files in a text."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from ..errors import UsageError

# A result with many prompts stays far below the size that readers take (256 MiB).
MOST = 24  # frames of a video
WIDEST = 256  # pixels of a frame


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


def frames_of(given: Any) -> Any:
    """A copy, [frames, height, width, 3] or [frames, height, width]."""
    import numpy as np

    frames = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given).copy()
    if frames.dtype != np.uint8 or frames.ndim not in (3, 4) or frames.ndim == 4 and frames.shape[3] != 3:
        raise UsageError("frames: expected a function that makes uint8 [frames, height, width, 3] or [frames, height, "
                         f"width] of a loop's result, got {frames.dtype} {list(frames.shape)}")
    return frames


def _scaled(frame: Any) -> Any:
    """Of a wide frame, each n-th pixel of each n-th line."""
    factor = -(-frame.shape[1] // WIDEST)
    return frame[::factor, ::factor]


def pairs(first: Any, second: Any) -> Iterator[dict[str, Any]]:
    """Evenly spaced frames of both videos."""
    count = min(len(first), len(second))
    for index in sorted({i * count // min(count, MOST) for i in range(min(count, MOST))}):
        yield {"frame": index, "exact": png(_scaled(first[index])), "policy": png(_scaled(second[index]))}
