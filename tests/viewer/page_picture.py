"""The frames of `blockscope view --serve` as page.html reads them, without drawing."""

import hashlib
import struct
import zlib

import numpy as np

FIELDS = 5  # x, y, u, v, colour


class Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        assert self.at + count <= len(self.data), "a frame ends too early"
        self.at += count
        return self.data[self.at - count : self.at]

    def one(self, kind):
        return struct.unpack("<" + kind, self.take(struct.calcsize("<" + kind)))[0]

    def planes(self, count, width):
        bytes_ = np.frombuffer(self.take(count * width), np.uint8).reshape(width, count).astype(np.uint32)
        return sum(bytes_[plane] << np.uint32(8 * plane) for plane in range(width)) if count else np.zeros(0, np.uint32)


def joined(before, size, prefix, suffix, middle):
    return np.concatenate([before[:prefix], middle, before[len(before) - suffix :] if suffix else before[:0]])


class Picture:
    """What the page has drawn: sizes of textures, and for each window its commands, indices and vertices."""

    def __init__(self):
        self.display, self.textures, self.drawings = None, {}, []

    def apply(self, packed):
        inflate = zlib.decompressobj(-15)
        cursor = Cursor(inflate.decompress(packed))
        assert inflate.eof and not inflate.unused_data, "a frame is one deflate stream"
        self.display = struct.unpack("<fff", cursor.take(12))
        for _ in range(cursor.one("I")):
            self._texture(cursor)
        now = []
        for _ in range(cursor.one("I")):
            part, place = cursor.one("B"), cursor.one("H")
            if part:
                empty = (b"", np.zeros(0, np.uint32), [np.zeros(0, np.uint32)] * FIELDS)
                now.append(self._drawing(cursor, empty if place == 0xFFFF else self.drawings[place]))
            else:
                now.append(self.drawings[place])
        assert cursor.at == len(cursor.data), "a frame has bytes that nothing describes"
        self.drawings = now

    def _texture(self, cursor):
        change, name = cursor.one("B"), cursor.one("I")
        if change == 3:
            del self.textures[name]
            return
        if change == 1:
            self.textures[name] = (cursor.one("B"), cursor.one("B"))
        _, _, width, height = struct.unpack("<HHHH", cursor.take(8))
        cursor.take(width * height * self.textures[name][0])

    def _drawing(self, cursor, before):
        commands = cursor.take(cursor.one("I"))
        assert len(commands) % 32 == 0
        size, prefix, suffix = struct.unpack("<III", cursor.take(12))
        steps = joined(before[1], size, prefix, suffix, cursor.planes(size - prefix - suffix, 2))
        size, prefix, suffix = struct.unpack("<III", cursor.take(12))
        against, fields = cursor.one("B"), []
        for field in range(FIELDS):
            told = cursor.planes(size - prefix - suffix, 4)
            old = before[2][field]
            change = told if field == FIELDS - 1 else (told >> np.uint32(1)) ^ (np.uint32(0) - (told & np.uint32(1)))
            first = old[prefix - 1 : prefix] if prefix else np.zeros(1, np.uint32)
            if against:
                base = old[prefix : prefix + len(told)]
                middle = base ^ change if field == FIELDS - 1 else base + change
            else:
                run = np.concatenate([first, change])
                middle = (np.bitwise_xor.accumulate(run) if field == FIELDS - 1
                          else np.add.accumulate(run, dtype=np.uint32))[1:]
            fields.append(joined(old, size, prefix, suffix, middle))
        for command in range(0, len(commands), 32):
            texture, vertex, index, count = struct.unpack("<IIII", commands[command + 16 : command + 32])
            assert texture in self.textures and index + count <= len(steps), "a command names what isn't there"
            assert count == 0 or vertex < size, "a command names a vertex that isn't there"
        return commands, steps, fields

    def digest(self):
        """Equal for equal pictures."""
        whole = hashlib.sha256(repr(self.display).encode())
        for commands, steps, fields in self.drawings:
            # Identifiers of textures may differ; where and how much is drawn may not.
            kept = np.frombuffer(commands, np.uint32).reshape(-1, 8)[:, [0, 1, 2, 3, 5, 6, 7]]
            whole.update(kept.tobytes() + steps.tobytes() + b"".join(field.tobytes() for field in fields))
        return whole.hexdigest()
