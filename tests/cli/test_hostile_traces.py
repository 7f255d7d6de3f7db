"""Traces that were damaged at random, through every command that reads them.

test_hostile_traces.py TRACE_TOOL [SEED [ROUNDS]]

Whatever is in the file: no command dies of a signal, takes more than 30 s or 2 GB, or ends with
another code than 0, 1 and 2; an error is one line that names the file; the file stays as it was."""

import json
import pathlib
import random
import sys

from capture_harness import require_binary, run, temporary_folder
from hostile_trace import SURE, check, spoil
from round_files import HEADER, play, written
import test_trace_damage as damage


def commands(path, other, folder):
    yield "info", path, "--datasets"
    yield "info", path, "--json"
    yield "export", path
    yield "export", path, "--format", "frames", "-o", folder / "out.json", "--force"
    yield "export", path, "--format", "rounds", "-o", folder / "out.jsonl", "--force"
    yield "diff", path, other
    yield "diff", other, path, "--ignore-aborted"
    yield "diff", path, other, "--teacher"
    yield "diff", other, path, "--teacher", "--json", "-"
    yield "analyze", path, "--threads", "1"
    yield "report", path, "-o", folder / "out.html", "--force", "--threads", "1"
    yield "repack", path, "-o", folder / "out.h5", "--force", "-q"
    yield "repack", path, "--repair", "-o", folder / "out.h5", "--force", "-q"


def drafted(folder):
    """A trace of rounds, which have an export and a comparison of their own."""
    lines = [HEADER]
    for i in range(3):
        _, rounds = play(i, [1, 2], 40)
        lines += [{"sequence": f"s{i}", "prompt_ids": [1, 2]}, *written(rounds, rounds[0], f"s{i}")]
    source, path = folder / "rounds.jsonl", folder / "rounds.h5"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, _, err = run("import", source, "-o", path)
    assert code == 0, err
    return path


def test_round(folder, sources, chance, number):
    original = chance.choice(sources)
    path = folder / f"hostile{''.join(original.suffixes)}"
    path.write_bytes(original.read_bytes())
    told = f"round {number}, {original.name}: {spoil(path, chance)}"
    before = path.read_bytes()
    results = []
    for command in commands(path, original, folder):
        results.append(check(command, path, told))
        assert results[-1][0] != 0 or SURE not in told, (command, told, "was taken")
        assert path.read_bytes() == before, (command, told, "the file was changed")
    path.unlink()
    return results


def main(tool, seed, rounds):
    damage.TOOL = tool
    print(f"seed {seed}, {rounds} rounds", flush=True)
    chance = random.Random(seed)
    runs = refused = 0
    slowest = 0.0
    with temporary_folder() as name:
        folder = pathlib.Path(name)
        sources = [damage.fixture(folder), damage.killed(folder, 60), drafted(folder)]
        for number in range(rounds):
            results = test_round(folder, sources, chance, number)
            runs += len(results)
            refused += sum(code != 0 for code, _ in results)
            slowest = max(slowest, *(seconds for _, seconds in results))
    print(f"{runs} runs, {refused} refused, slowest {slowest:.1f} s")
    assert refused > runs // 4


if __name__ == "__main__":
    require_binary()
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(10**6),
         int(sys.argv[3]) if len(sys.argv) > 3 else 25)
