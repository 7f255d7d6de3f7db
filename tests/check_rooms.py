"""Includes follow the arrows of CONTRIBUTING.md ("Where things go"), and no arrow leads in a circle.

check_rooms.py ROOT [--planted]: with --planted it must find an include that goes against the arrows."""

import collections
import itertools
import os
import pathlib
import re
import sys

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
SOURCES = {".h", ".cpp", ".cu", ".cuh", ".inc"}


def rooms_of(root):
    """-> {room: [(file, what it includes)]}, the tests left out"""
    rooms = collections.defaultdict(list)
    folders = [path for path in root.iterdir() if path.is_dir() and path.name not in ("build", "tests")
               and not path.name.startswith(".")]
    for path in itertools.chain.from_iterable(folder.rglob("*") for folder in folders):
        if path.suffix in SOURCES:
            name = path.relative_to(root)
            rooms[str(name.parent)].append((str(name), INCLUDE.findall(path.read_text())))
    return rooms


def expand(text, rooms):
    """The rooms that one side of an arrow names."""
    names = []
    for prefix, inside, alone in re.findall(r"(\S+?)/\{([^}]*)\}|([^,\s]+)", text):
        names += [f"{prefix}/{name}" for name in inside.split(",")] if prefix else [alone]
    found = []
    for name in names:
        here = [room for room in rooms if room == name.removesuffix("/.")]
        found += here if name.endswith("/.") else here + [r for r in rooms if r.startswith(f"{name}/")]
        if not here and name.endswith("/.") or not found:
            sys.exit(f"CONTRIBUTING.md: expected a folder with sources, got {name}")
    return found


def allowed(root, rooms):
    """-> {room: rooms that it may include}"""
    text = (root / "CONTRIBUTING.md").read_text()
    block = re.search(r"`tests/check_rooms.py` reads this block.*?\n\n((?:    [^\n]*\n)+)", text, re.DOTALL)
    lines = [line.strip() for line in block[1].splitlines()]
    direct = collections.defaultdict(set)
    for line in lines:
        sides = [expand(side, rooms) for side in line.split(" -> ")]
        for left, right in itertools.pairwise(sides):
            for room in right:
                direct[room].update(left)
    closed = {}

    def close(room, path):
        if room in path:
            sys.exit(f"CONTRIBUTING.md: the arrows lead in a circle: {' -> '.join((*path, room))}")
        if room not in closed:
            below = [close(other, (*path, room)) | {other} for other in sorted(direct[room])]
            closed[room] = set().union(*below)
        return closed[room]

    for room in rooms:
        close(room, ())
    return closed, {room for room in rooms if room not in direct and not any(room in d for d in direct.values())}


def wrong_includes(rooms, may):
    return [f"{file} includes {include}, and {room} may not include {os.path.dirname(include)}"
            for room, files in sorted(rooms.items()) for file, includes in files for include in includes
            if os.path.dirname(include) in rooms and os.path.dirname(include) not in may[room] | {room}]


def main():
    root = pathlib.Path(sys.argv[1])
    rooms = rooms_of(root)
    assert len(rooms) > 30, sorted(rooms)
    may, unnamed = allowed(root, rooms)
    unnamed -= {room for room in unnamed if not any(include.split("/")[0] in {r.split("/")[0] for r in rooms}
                                                    for _, includes in rooms[room] for include in includes)}
    if unnamed:
        sys.exit(f"CONTRIBUTING.md: no arrow names {', '.join(sorted(unnamed))}")
    if "--planted" in sys.argv:
        rooms["decode_record/base"].append(("planted.h", ["probe/model/model.h"]))
    wrong = wrong_includes(rooms, may)
    print("\n".join(wrong) or f"{sum(map(len, rooms.values()))} files in {len(rooms)} rooms follow the arrows")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
