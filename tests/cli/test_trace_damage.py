"""Damaged traces, one kind after the other: test_trace_damage.py TRACE_TOOL

Values out of range, files that were cut off, a resume of what no kill leaves, two writers at once,
leftovers of a kill. Values follow from the row number (trace_fixture.h), so that what was kept can be
compared with what was written."""

import io
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import h5py
import numpy as np

from capture_harness import require_binary, run, run_tests
from round_files import HEADER

TOOL = ""
# Dataset, element, and values it can't have. The fixture: 2 sequences of 200 positions after 4 and
# 5 tokens, 202 rows, a vocabulary of 100.
WRONG = [
    ("/frames/position", 3, (-1, 200, 2**31 - 1)), ("/frames/token", 3, (-1, 100)),
    ("/frames/confidence", 3, (2.0, np.inf)), ("/frames/step", 3, (-2, -1, 1, 9999, 2**30)),
    ("/frames/delta_end", 5, (-1, 0, 2**40)), ("/frames/insert_end", 5, (-1, 1)),
    ("/frames/delete_end", 5, (-1, 1)), ("/frames/keyframe", 9, (-1, 0, 3, 2**40)),
    ("/frames/keyframe_row", 1, (-1, 0, 500)), ("/frames/keyframe_end", 0, (-1, 199, 2**40)),
    ("/frames/keyframe_end", -1, (-1, -2**31)),
    ("/frames/keyframe_token", 2, (-1, 100)), ("/frames/keyframe_step", 2, (-2, 9999, 2**30)),
    ("/frames/keyframe_confidence", 2, (7.0,)),
    ("/steps/sequence", 7, (-1, 2)), ("/steps/previous", 7, (-2, 0, 7, 300)),
    ("/steps/kind", 7, (3, 255)), ("/steps/block", 7, (-2, 300)),
    ("/steps/block_start", 7, (-1, 300)), ("/steps/step", 7, (-1, 0, 3, 9999, 2**30)), ("/steps/step", -1, (9999,)),
    ("/steps/context_length", 7, (-1, 300)), ("/steps/changed", 7, (-1, 5)),
    ("/steps/masks_left", 7, (-1, 5)), ("/steps/pass", 7, (-1,)), ("/steps/recorded", 7, (2,)),
    ("/steps/committed", 0, (-1, 10**6, 2**62)), ("/row", 7, (8,)),
    ("/sequences/committed", 0, (-1, 1, 10**6, 2**62)), ("/sequences/gen_length", 1, (-1, 2**30)),
    ("/sequences/prompt_start", 1, (-1, 2**62)), ("/sequences/prompt_length", 1, (-1, 2**30)),
    ("/sequences/name_start", 1, (-1, 2**62)), ("/sequences/name_length", 1, (-1, 2**30)),
    ("/sequences/text_start", 1, (-1, 2**62)), ("/sequences/text_length", 1, (-1, 2**30)),
    ("/sequences/aborted", 1, (2,)), ("/sequences/finish_reason", 1, (5,)),
    ("/sequences/prompt_token", 2, (-1, 100)), ("/tokenizer/piece_offset", 50, (-1, 10**6, 0)),
    ("/prefix/end", 0, (-1, 0, 2**40)), ("/prefix/sequence", 2, (-1, 1)),
    ("/prefix/position", 2, (-1, 500)),
    ("/frames/revoke_end", 5, (-1, 9, 2**40)), ("/frames/revoke_position", 0, (-1, 198, 200)),
    ("/frames/revoke_token", 1, (-1, 2, 99, 100)), ("/frames/revoke_confidence", 1, (2.0, np.inf)),
    ("/cache/query_end", (5, 1), (-1, 0, 2**40)), ("/cache/query_start", 7, (-1, 300)),
    ("/cache/query_stop", 7, (-1, 0, 300)), ("/cache/key_end", (9, 2), (-1, 2**40)),
    ("/cache/key_stop", 3, (0, 500)), ("/cache/value_end", (200, 0), (-1, 2)),
    ("/cache/value_start", 2, (-1, 300)),
]


def one_error_line(code, err, *says):
    assert code in (1, 2), (code, err)
    assert err.startswith("blockscope: error: ") and err.count("\n") == 1, err
    for text in says:
        assert text in err, (text, err)


def commands(path, folder):
    yield "info", path, "--datasets"
    yield "export", path
    yield "export", path, "--format", "frames"
    yield "diff", path, path
    yield "analyze", path
    yield "report", path, "-o", folder / "never.html"
    yield "repack", path, "-o", folder / "never.h5"
    yield "repack", path, "--repair", "-o", folder / "never.h5"


def fixture(folder):
    subprocess.run([TOOL, "fixture", folder / "a.h5", "bf16"], check=True)
    return folder / "a.h5"


def killed(folder, rows=150, name="k.h5"):
    """-> the .partial of a writer that was killed after that many rows"""
    writer = subprocess.Popen([TOOL, "endless", folder / name], stdout=subprocess.PIPE, text=True)
    while int(writer.stdout.readline()) < rows:
        pass
    writer.kill()
    writer.wait()
    return folder / f"{name}.partial"


def test_values_out_of_range_are_refused_by_every_command(folder):
    path = fixture(folder)
    bad = folder / "bad.h5"
    for number, (dataset, at, values) in enumerate(WRONG):
        for value in values:
            shutil.copy(path, bad)
            with h5py.File(bad, "r+") as file:
                file[dataset][at] = value
            chosen = list(commands(bad, folder))
            for command in chosen if value == values[0] and number % 4 == 0 else chosen[:1]:
                code, _, err = run(*command)
                # Fewer sequences, and an end that comes too early, show in what they count.
                counted = {"/sequences/committed": "/steps/sequence", "/prefix/end": "/prefix/"}
                either = dataset in err or counted.get(dataset, dataset) in err
                assert either, (command, dataset, value, err)
                one_error_line(code, err, "bad.h5", "expected", "got")
            assert sorted(p.name for p in folder.iterdir()) == ["a.h5", "bad.h5"], dataset


def row_end(dataset, row):
    """The place of the last byte of a row."""
    end = 0
    by_layer = dataset.chunks[0] == 1 and dataset.ndim > 3 and dataset.chunks[1] == 1
    inside = row % dataset.chunks[0] + 1
    for layer in range(dataset.shape[1] if by_layer else 1):
        at = (row - row % dataset.chunks[0], layer)[:dataset.ndim] + (0,) * (dataset.ndim - 2)
        info = dataset.id.get_chunk_info_by_coord(at)
        if info.byte_offset:
            end = max(end, info.byte_offset + info.size // dataset.chunks[0] * inside)
    return end


def index_is_cut(path, name, row):
    """Whether HDF5 itself can't find the chunks of a row: what finds them may lie after the row's bytes.

    As a reader of SWMR it would read a block that is not there a hundred times, and sleep twice as long after each.
    So the bytes are opened as those of a closed file, with zeros after the cut."""
    raw = bytearray(path.read_bytes())
    raw[11] = 0  # the superblock: no writer
    raw[44:48] = lookup3(bytes(raw[:44])).to_bytes(4, "little")
    raw.extend(bytes(max(0, int.from_bytes(raw[28:36], "little") - len(raw))))
    try:
        with h5py.File(io.BytesIO(raw), "r") as file:
            row_end(file[name], row)
    except (OSError, RuntimeError, ValueError, KeyError):
        return True
    return False


def per_row(file):
    names = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset)
                    and item.ndim and item.dims[0].keys() == ["row"] else None)
    return names


def test_repair_keeps_exactly_the_rows_whose_data_is_in_the_file(folder):
    partial = killed(folder, 2000)
    whole = partial.read_bytes()
    with h5py.File(partial, "r", swmr=True) as source:  # data after its last committed row is no loss
        last = int(source["/steps/committed"][0]) - 1
        committed_end = max(row_end(source[name], last) for name in per_row(source))
    kept_some = 0
    for percent in (30, 60, 75, 90):
        cut = folder / f"cut{percent}.h5.partial"
        output = folder / f"out{percent}.h5"
        cut.write_bytes(whole[:committed_end * percent // 100])
        end = cut.stat().st_size
        for command in (("info", cut), ("analyze", cut), ("diff", cut, cut)):
            code, _, err = run(*command)
            one_error_line(code, err, cut.name)
        code, out, err = run("repack", "--repair", cut, "-o", output)
        assert cut.read_bytes() == whole[:end], "the input changed"
        with h5py.File(partial, "r", swmr=True) as source:
            rows = int(source["/steps/committed"][0])
            if code != 0:
                one_error_line(code, err, cut.name, "committed rows")
                continue
            with h5py.File(output) as kept:
                count = kept["row"].size
                assert 0 < count < rows and f"kept {count} of {rows} committed rows" in err, err
                assert err.count("\n") == 1 and out.startswith(f"{output}: {count} row")
                for name in per_row(source):
                    a, b = source[name][:count], kept[name][()]
                    assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), name
                lost = json.loads(bytes(kept["run/json"][()]))["repacked"]["inputs"][0]["lost"]
                assert lost["committed_rows"] == rows
                assert kept["run/complete"][0] == 0
                # No further row could be kept, and a sequence that lost rows is not whole.
                lacking = [name for name in per_row(source)
                           if row_end(source[name], count) > end or index_is_cut(cut, name, count)]
                assert lacking or "/frames/" in err or "/cache/" in err, (percent, count, err)
                owners = set(source["/steps/sequence"][count:rows].tolist())
                for sequence in owners & set(range(kept["sequences/aborted"].size)):
                    assert kept["sequences/aborted"][sequence] == 1, sequence
                kept_some += 1
        for command in (("info", output), ("diff", output, output), ("export", output)):
            assert run(*command)[0] == 0, command
        assert "could be kept" in run("info", output)[1]
    assert kept_some >= 2, kept_some


def test_a_finished_trace_that_was_cut_is_refused_and_repaired(folder):
    path = fixture(folder)
    cut = folder / "cut.h5"
    cut.write_bytes(path.read_bytes()[:path.stat().st_size * 8 // 10])
    for command in commands(cut, folder):
        if "--repair" in command:
            continue
        code, _, err = run(*command)
        one_error_line(code, err, "cut.h5")
    code, _, err = run("repack", "--repair", cut, "-o", folder / "out.h5")
    if code == 0:
        assert "kept" in err and "is after the end of the file" in err, err
        with h5py.File(path) as whole, h5py.File(folder / "out.h5") as kept:
            rows = kept["row"].size
            assert 0 < rows < whole["row"].size and kept["run/complete"][0] == 0
            for name in per_row(whole):
                a, b = whole[name][:rows], kept[name][()]
                assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), name
    else:
        one_error_line(code, err, "cut.h5")
    # Cut where the library can't even open it: still said as what it is.
    size = path.stat().st_size
    cut.write_bytes(path.read_bytes()[:5000])
    for command in (("info", cut), ("repack", "--repair", cut, "-o", folder / "none.h5")):
        one_error_line(*run(*command)[::2], "cut.h5", f"expected {size} bytes", "got 5000", "cut off")
    assert not (folder / "none.h5").exists()


def resume(path):
    begin = time.monotonic()
    process = subprocess.run([TOOL, "resume", path], capture_output=True, text=True, timeout=60)
    return process.returncode, process.stderr, time.monotonic() - begin


def committed_rows(path, count):
    with h5py.File(path, "r", swmr=True) as file:
        assert int(file["/steps/committed"][0]) == count
        return {name: file[name][:count].tobytes() for name in per_row(file)}


def test_resume_leaves_what_no_kill_leaves_as_it_was(folder):
    partial = killed(folder)
    whole = partial.read_bytes()
    with h5py.File(partial, "r", swmr=True) as file:
        committed = int(file["/steps/committed"][0])
        last = max(row_end(file[name], committed - 1) for name in per_row(file))
    rows = committed_rows(partial, committed)
    chance = random.Random(20261122)
    damaged = folder / "d.h5.partial"
    refused = 0
    for attempt in range(40):
        data = bytearray(whole)
        if attempt % 4 == 0:
            del data[chance.randrange(1000, len(data) * 9 // 10):]
        else:
            # Headers and chunk indices are at the start, and between the rows.
            near = len(data) if attempt % 2 else 60000
            for _ in range(chance.randrange(1, 40)):
                data[chance.randrange(near)] ^= 1 << chance.randrange(8)
        damaged.write_bytes(data)
        code, err, seconds = resume(folder / "d.h5")
        assert seconds < 10, (attempt, seconds)
        assert code in (0, 1), (attempt, code, err)
        if code == 1:
            refused += 1
            assert "d.h5.partial" in err and err.count("\n") == 1, err
            assert damaged.read_bytes() == bytes(data), f"{attempt}: the damaged file was changed"
        else:
            if attempt % 4 == 0:  # like a full disk: only rows that were not committed are lost
                assert committed_rows(damaged, committed) == rows, (attempt, len(data))
            code, _, err = run("info", damaged)
            assert code == 0, (attempt, err)
    assert refused >= 15, refused
    # Before the end of the last committed row every cut is refused.
    for attempt in range(10):
        damaged.write_bytes(whole[:chance.randrange(1000, last)])
        assert resume(folder / "d.h5")[0] == 1, (attempt, damaged.stat().st_size, last)
    damaged.write_bytes(whole)
    assert resume(folder / "d.h5")[0] == 0
    assert committed_rows(damaged, committed) == rows


def lookup3(data):
    """Bob Jenkins' hash of HDF5's metadata checksums (H5checksum.c names it)."""
    def rot(x, k):
        return ((x << k) | (x >> (32 - k))) & 0xFFFFFFFF

    a = b = c = (0xDEADBEEF + len(data)) & 0xFFFFFFFF
    words = [int.from_bytes(data[i:i + 4], "little") for i in range(0, len(data), 4)]
    while len(words) > 3:
        a, b, c = ((x + y) & 0xFFFFFFFF for x, y in zip((a, b, c), words[:3]))
        words = words[3:]
        for turn in (4, 6, 8, 16, 19, 4):
            a = ((a - c) & 0xFFFFFFFF) ^ rot(c, turn)
            c = (c + b) & 0xFFFFFFFF
            a, b, c = b, c, a
    if not words:
        return c
    a, b, c = ((x + y) & 0xFFFFFFFF for x, y in zip((a, b, c), words + [0] * (3 - len(words))))
    c = ((c ^ b) - rot(b, 14)) & 0xFFFFFFFF
    a = ((a ^ c) - rot(c, 11)) & 0xFFFFFFFF
    b = ((b ^ a) - rot(a, 25)) & 0xFFFFFFFF
    c = ((c ^ b) - rot(b, 16)) & 0xFFFFFFFF
    a = ((a ^ c) - rot(c, 4)) & 0xFFFFFFFF
    b = ((b ^ a) - rot(a, 14)) & 0xFFFFFFFF
    return ((c ^ b) - rot(b, 24)) & 0xFFFFFFFF


def set_length_alone(path, name, length):
    """Changes a dataset's extent as a kill does between two flushes: its chunks stay in the index."""
    with h5py.File(path, "r") as file:
        at = h5py.h5o.get_info(file[name].id).addr
        old = file[name].shape[0]
    raw = bytearray(path.read_bytes())
    assert raw[at:at + 5] == b"OHDR\x02"
    flags = raw[at + 5]
    head = at + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
    width = 1 << (flags & 3)
    end = head + width + int.from_bytes(raw[head:head + width], "little")
    message = head + width
    while raw[message] != 1:  # the dataspace
        message += 4 + (2 if flags & 4 else 0) + int.from_bytes(raw[message + 1:message + 3], "little")
        assert message < end
    dimension = message + 4 + (2 if flags & 4 else 0) + 4
    assert int.from_bytes(raw[dimension:dimension + 8], "little") == old
    assert int.from_bytes(raw[end:end + 4], "little") == lookup3(bytes(raw[at:end])), "checksum"
    raw[dimension:dimension + 8] = length.to_bytes(8, "little")
    raw[end:end + 4] = lookup3(bytes(raw[at:end])).to_bytes(4, "little")
    path.write_bytes(raw)


def test_repair_drops_a_sequence_whose_prompt_is_cut(folder):
    path = fixture(folder)  # prompts of 4 and 5 tokens
    set_length_alone(path, "/sequences/prompt_token", 7)  # the second one is torn
    code, _, err = run("repack", "--repair", path, "-o", folder / "out.h5")
    assert code == 0 and "kept 1 of 202 committed rows and 1 of 2 sequences" in err, (code, err)


def test_one_token_in_a_lost_row_of_an_unknown_sequence_marks_the_sequence(folder):
    lines = [HEADER, {"sequence": 0, "prompt_ids": [1, 2], "gen_length": 1025, "first_token": 5}]
    lines += [{"sequence": 0, "drafted": [], "next": 6}] * 1024  # with the prefill 1025 rows, one token each
    (folder / "r.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path, partial = folder / "r.h5", folder / "r.h5.partial"
    assert run("import", folder / "r.jsonl", "-o", path)[0] == 0
    # The last chunk of /steps/sequence, of row 1024, moves to the end of the file, which a kill and a cut then lose.
    with h5py.File(path, "r+") as file:
        owners = file["/steps/sequence"][:]
        del file["/steps/sequence"]
    with h5py.File(path, "r+", libver="latest") as file:
        file.create_dataset("/steps/sequence", data=owners, chunks=(1024,), maxshape=(None,))
    with h5py.File(path, "r") as file:
        end = file["/steps/sequence"].id.get_chunk_info(1).byte_offset
    raw = bytearray(path.read_bytes())
    assert end + 4096 == len(raw)
    raw[11] = 5  # the superblock: a writer, of SWMR
    raw[44:48] = lookup3(bytes(raw[:44])).to_bytes(4, "little")
    partial.write_bytes(raw[:end])
    path.unlink()
    code, _, err = run("repack", "--repair", partial, "-o", folder / "out.h5")
    assert code == 0 and "kept 1024 of 1025 committed rows and 1 of 1 sequence" in err, (code, err)
    with h5py.File(folder / "out.h5") as kept:
        assert kept["/sequences/aborted"][:].tolist() == [1]


def test_resume_drops_arrays_that_lie_behind_the_extent(folder):
    path = killed(folder, 60, "behind.h5")
    subprocess.run([TOOL, "resume", folder / "behind.h5"], check=True, stdout=subprocess.DEVNULL)
    names = ("/attention/lse_external", "/attention/external")
    with h5py.File(path, "r+", libver="latest") as file:
        rows = int(file["/steps/committed"][0])
        for name in names:
            assert file[name].shape[0] == rows
            file[name].resize(rows + 5, 0)
            file[name][rows + 2] = 7
    for name in names:
        set_length_alone(path, name, rows)
    again = subprocess.run([TOOL, "resume", folder / "behind.h5"], check=True, capture_output=True,
                           text=True)
    assert int(again.stdout) == rows
    with h5py.File(path, "r+", libver="latest") as file:
        for name in names:
            file[name].resize(rows + 5, 0)
            assert np.isnan(file[name][rows + 2]).all(), f"{name}: a row that nobody committed"


def test_of_two_writers_that_start_at_once_one_gets_the_trace(folder):
    for attempt in range(25):
        path = folder / f"race{attempt}.h5"
        writers = [subprocess.Popen([TOOL, "endless", path], stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True) for _ in range(2)]
        give_up = time.monotonic() + 10  # a busy machine starts them late
        while all(writer.poll() is None for writer in writers) and time.monotonic() < give_up:
            time.sleep(0.01)
        time.sleep(0.15)  # for the other one to end too, which it must not
        alive = [writer for writer in writers if writer.poll() is None]
        ended = [writer for writer in writers if writer.poll() is not None]
        try:
            assert len(alive) == 1, (attempt, [writer.communicate() for writer in ended])
            _, err = ended[0].communicate()
            assert ended[0].returncode == 1 and "another process is writing" in err, err
            assert f"race{attempt}.h5" in err and ".new" not in err, err
        finally:
            for writer in alive:
                writer.kill()
                writer.communicate()
        assert run("info", f"{path}.partial")[0] == 0
        assert [p.name for p in folder.iterdir()] == [f"race{attempt}.h5.partial"]
        os.remove(f"{path}.partial")


def test_a_full_disk_is_told_in_one_line(folder):
    """The writer's thread may have called nothing before the call that fails."""
    for size in range(60_000, 400_000, 7_000):
        process = subprocess.run([TOOL, "fill", folder / f"f{size}.h5", str(size)],
                                 capture_output=True, text=True, timeout=60)
        assert process.returncode == 3 and process.stderr == "", (size, process)
        assert process.stdout.count("\n") == 2 and f"f{size}.h5" in process.stdout, process.stdout


def test_leftovers_of_killed_writers_go_at_the_next_start(folder):
    path = fixture(folder)
    # Large enough that a kill finds repack at work.
    parts = [path] * 1
    for moment in range(12):
        process = subprocess.Popen([os.environ["BLOCKSCOPE_BINARY"], "repack", *map(str, parts), "-o",
                                    str(folder / "out.h5"), "--compress", "deflate", "-q"])
        time.sleep(0.004 * moment)
        process.send_signal(signal.SIGKILL)
        process.wait()
    # What was closed is no leftover of a kill, whatever its name.
    assert run("repack", path, "-o", folder / "out.h5", "--force")[0] == 0
    shutil.copy(folder / "out.h5", folder / "mine.h5.tmp")
    killed(folder, 1, "mine.h5").unlink()
    assert sorted(p.name for p in folder.iterdir()) == ["a.h5", "mine.h5.tmp", "out.h5"]


if __name__ == "__main__":
    require_binary()
    TOOL = sys.argv[1]
    run_tests(globals(), sys.argv[2] if len(sys.argv) > 2 else "")
