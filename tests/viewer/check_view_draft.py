"""The Draft panel, from captures of random pairs, batches and another engine's rounds: every number in its CSV files
against h5py, and its colours in pictures."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import h5py
import numpy as np
from view_harness import BINARY, read_png, read_table, skip_without_viewer, view

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "probe" / "parity"))
from dflash_checkpoints import Shape, write_pair  # noqa: E402

TRACE = "tests/data/trace_schema_1.h5"
COLOURS = {"accepted": (0, 158, 115), "rejected": (213, 94, 0)}
COLUMNS = (("drafted token", "draft/token"), ("target token", "draft/target_token"),
           ("rank of target's under draft", "draft/target_rank_under_draft"), ("rank of drafted under target", "draft/drafted_rank_under_target"),
           ("drafted probability under draft", "draft/confidence"),
           ("target's probability under draft", "draft/target_probability_under_draft"),
           ("drafted probability under target", "draft/drafted_probability_under_target"),
           ("draft entropy [nats]", "draft/draft_entropy"), ("target entropy [nats]", "draft/target_entropy"))


def run(*arguments):
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def capture(folder, pair, name, *flags):
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"id": f"p{i}", "input_ids": [0, 1, 2, i], "gen_length": 50 + i}) + "\n"
                               for i in range(3)))
    out = folder / f"{name}.h5"
    run("capture", pair / "target", "--draft", pair / "draft", "--prompts", prompts, "-o", out, "--no-stop", "-q",
        "--temperature", 1, "--dtype", "float32", "--record", "trajectory", *flags)
    return out


class Sequence:
    """What a drafted trace holds of one sequence, by the schema."""

    def __init__(self, file, sequence):
        rows = int(file["steps/committed"][0])
        mine = file["steps/sequence"][:rows] == sequence
        self.kind = file["steps/kind"][:rows]
        self.rows = np.flatnonzero(mine)
        rounds = sorted({int(block) for block in file["steps/block"][self.rows] if block >= 0})
        self.number = {row: rounds.index(file["steps/block"][row]) if self.kind[row] else -1 for row in self.rows}
        self.prompt = int(file["sequences/prompt_length"][sequence])
        ends, pieces = file["tokenizer/piece_offset"][:], file["tokenizer/piece_bytes"][:].tobytes()
        self.piece = lambda token: pieces[ends[token]:ends[token + 1]].decode() if len(ends) > 1 else f"#{token}"
        self.file = file

    def delta(self, row):
        ends = self.file["frames/delta_end"]
        span = slice(int(ends[row - 1]) if row else 0, int(ends[row]))
        return self.file["frames/position"][span], self.file["frames/token"][span]

    def rounds(self):
        """(round, p, position, outcome, row) of every drafted position."""
        accepted, valid = self.file["draft/accepted"], self.file["steps/valid"]
        starts = self.file["steps/block_start"]
        for row in self.rows:
            number = self.number[row]
            for p in range(1, int(valid[row].sum()) if self.kind[row] == 1 else 1):
                outcome = ("accepted" if p <= accepted[row] else "rejected" if p == accepted[row] + 1 else "behind")
                yield number, p, int(starts[row]) - self.prompt + p, outcome, row

    def answer(self):
        """{position: (token, round, drafted at)}: what each row decided."""
        told = {}
        for row in self.rows:
            number = self.number[row]
            start = int(self.file["steps/block_start"][row]) - self.prompt
            for position, token in zip(*self.delta(row)):
                told[int(position)] = (int(token), "" if self.kind[row] == 0 else str(number),
                                       str(int(position) - start) if self.kind[row] == 1 else "")
        return told


def table_of(path, folder, sequence, show):
    out = folder / "numbers.csv"
    result = view(path, "--csv", out, "--force", "--panel", "draft", "--show", f"draft={show}", "--select",
                  f"sequence={sequence}")
    assert result.returncode == 0, result.stderr
    return read_table(out)


def check_rounds(path, folder, counts, sequences=range(3)):
    with h5py.File(path) as file:
        assert int(file["sequences/committed"][0]) == 3
        for sequence in sequences:
            truth = Sequence(file, sequence)
            header, table = table_of(path, folder, sequence, "target_rank_under_draft")
            want = list(truth.rounds())
            assert len(table) == len(want) > 0, (path, len(table), len(want))
            for cells, (number, p, position, outcome, row) in zip(table, want):
                assert cells[:4] == [str(number), str(p), str(position), outcome], (cells, number, p)
                counts[outcome] = counts.get(outcome, 0) + 1
                got = dict(zip(header, cells))
                for column, dataset in COLUMNS:
                    value = file[dataset][row, p]
                    missing = np.isnan(value) if value.dtype.kind == "f" else value < 0
                    counts["missing"] = counts.get("missing", 0) + int(missing)
                    assert (got[column] == "") if missing else abs(float(got[column]) - value) < 1e-6, (column, cells)
                if "draft/candidate_chosen" in file:
                    for column, dataset in (("candidate taken", "chosen"), ("target's candidate", "target")):
                        value = int(file[f"draft/candidate_{dataset}"][row, p])
                        assert got[column] == (str(value) if value >= 0 else ""), (column, value, cells)
                        counts[column, value > 0] = counts.get((column, value > 0), 0) + 1
                for token, text in (("drafted token", "drafted text"), ("target token", "target text")):
                    assert got[text] == (truth.piece(int(got[token])) if got[token] else ""), cells


def check_answer(path, folder, sequences=range(3)):
    with h5py.File(path) as file:
        for sequence in sequences:
            truth = Sequence(file, sequence)
            header, table = table_of(path, folder, sequence, "answer")
            assert header == ["position", "token", "text", "round", "drafted at"], header
            want = {str(at): [str(told[0]), truth.piece(told[0]), *told[1:]] for at, told in truth.answer().items()}
            assert {row[0]: row[1:] for row in table} == want, (path, sequence)
            assert len(want) == int(file["sequences/gen_length"][sequence]), len(want)


def check_pictures(path, folder):
    """Each outcome that the first rounds have shows in its colour, and in a picture of ranks only as an outline."""
    with h5py.File(path) as file:
        truth = Sequence(file, 1)
        seen = {outcome for number, p, position, outcome, row in truth.rounds() if number < 8}
    assert seen >= {"accepted", "rejected"}, seen
    out = folder / "rounds.png"
    pixels = {}
    for show in ("outcome", "drafted_rank_under_target", "answer"):
        result = view(path, "--screenshot", out, "--force", "--panel", "draft", "--show", f"draft={show}", "--select",
                      "sequence=1", "--width", 900, "--height", 700)
        assert result.returncode == 0, result.stderr
        pixels[show] = read_png(out)[178:, :, :3]  # below legend and plot
        again = folder / "again.png"
        view(path, "--screenshot", again, "--force", "--panel", "draft", "--show", f"draft={show}", "--select",
             "sequence=1", "--width", 900, "--height", 700)
        assert again.read_bytes() == out.read_bytes(), f"{show}: two pictures of one thing differ"
    count = {(show, name): np.count_nonzero((image == colour).all(axis=2))
             for show, image in pixels.items() for name, colour in COLOURS.items()}
    assert count["outcome", "accepted"] > 500 and count["outcome", "rejected"] > 500, count
    assert count["drafted_rank_under_target", "accepted"] == 0, count
    assert 0 < count["drafted_rank_under_target", "rejected"] < count["outcome", "rejected"] / 2, count
    assert count["answer", "rejected"] == 0, count
    blue = np.count_nonzero((pixels["answer"] == (86, 180, 233)).all(axis=2))
    assert blue > 500, blue  # the target's own


def check_another_engine(path, folder):
    """Rounds of an engine that keeps tokens alone, some without drafts: what it lacks is empty, and said."""
    lines = [json.loads(line) for line in run("export", path, "--format", "rounds", "-o", "-").splitlines()]
    keep = ("sequence", "round", "token", "drafted", "accepted", "target", "next", "prompt_ids", "gen_length",
            "first_token", "finish_reason", "format", "format_version", "engine", "vocab_size", "block_size")
    lines = [{key: value for key, value in line.items() if key in keep} for line in lines]
    for number, line in enumerate(lines):
        if "drafted" in line and number % 5 == 0:  # fewer were drafted
            count = min(1, line["accepted"]) if line["accepted"] < len(line["drafted"]) else len(line["drafted"])
            if count == line["accepted"]:
                line["drafted"], line["target"] = line["drafted"][:count], line["target"][:count]
    rounds = folder / "rounds.jsonl"
    rounds.write_text("".join(json.dumps(line) + "\n" for line in lines))
    engine = folder / "engine.h5"
    run("import", rounds, "-o", engine)
    counts = {}
    check_rounds(engine, folder, counts)
    check_answer_tokens(path, engine, folder)
    assert counts["missing"] >= 7 * sum(counts[name] for name in ("accepted", "rejected", "behind")), counts
    with h5py.File(engine) as file:
        rows = int(file["steps/committed"][0])
        drafts = file["steps/kind"][:rows] == 1
        assert (file["steps/valid"][:rows][drafts].sum(axis=1) < file["steps/valid"].shape[1]).any(), "nothing shorter"
    out = folder / "engine.png"
    result = view(engine, "--screenshot", out, "--panel", "draft", "--show", "draft=draft_entropy")
    assert result.returncode == 0, result.stderr
    grey = np.count_nonzero((read_png(out)[178:, :, :3] == (138, 138, 138)).all(axis=2))
    assert grey > 500, grey


def check_answer_tokens(path, engine, folder):
    for sequence in (0, 2):
        ours, theirs = (table_of(trace, folder, sequence, "answer")[1] for trace in (path, engine))
        assert [row[:2] for row in ours] == [row[:2] for row in theirs], sequence


def check_refusals(path, folder):
    out = folder / "none.csv"
    result = view(TRACE, "--csv", out, "--panel", "draft")
    assert result.returncode == 1 and "no numbers" in result.stderr and not out.exists(), result
    result = view(path, "--csv", out, "--panel", "draft", "--show", "draft=pancake")
    assert result.returncode == 2 and "outcome|target_rank_under_draft" in result.stderr, result
    bad = folder / "bad.h5"
    shutil.copyfile(path, bad)
    with h5py.File(bad, "r+") as file:
        row = int(np.flatnonzero(file["steps/kind"][:] == 1)[2])
        file["draft/accepted"][row] = 99
    result = view(bad, "--csv", out, "--panel", "draft")
    assert result.returncode == 1 and not out.exists(), result
    assert "bad.h5:/draft/accepted" in result.stderr and f"row {row}" in result.stderr, result.stderr


skip_without_viewer()
with tempfile.TemporaryDirectory() as name:
    place = pathlib.Path(name)
    write_pair(place / "zlab", Shape(vocab=5, block_size=8, target_layers=(2, 1, 4), seed=100))
    write_pair(place / "own", Shape(vocab=9, draft_vocab=5, target_layers=(0, 2, 4), seed=44))
    counts = {}
    traces = [capture(place, place / "zlab", "zlab"), capture(place, place / "own", "own"),
              capture(place, place / "zlab", "batch", "--batch-size", 3)]
    for trace, sequences in zip(traces, (range(3), (1,), (0, 2))):
        check_rounds(trace, place, counts, sequences)
        check_answer(trace, place, sequences)
    print(counts)
    assert min(counts.get(name, 0) for name in ("accepted", "rejected", "behind", "missing")) > 20, counts
    write_pair(place / "second", Shape(vocab=12, block_size=8, second=(2, 16, 6, 4), seed=1))
    second = {}
    check_rounds(capture(place, place / "second", "second"), place, second)
    assert all(second[column, above] > 5 for column in ("candidate taken", "target's candidate")
               for above in (False, True)), second
    check_pictures(traces[0], place)
    check_another_engine(traces[0], place)
    check_refusals(traces[0], place)
print("rounds, answers, colours and gaps of drafted traces checked")
