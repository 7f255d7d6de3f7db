"""The JSON texts of a trace, and the JSON that commands write: test_trace_texts.py TRACE_TOOL"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import h5py
import numpy as np

from capture_harness import require_binary, run, run_tests
import test_trace_damage as damage
from test_trace_outside import commands

# Place in the trace, a text that is not allowed in it, and a part of the message.
GARBAGE = [
    ("/run/json", b"", "JSON"), ("/run/json", b"garbage", "JSON"), ("/run/json", b'{"version":"1"', "JSON"),
    ("/run/json", b'{"version":"\xff\xfe"}', "JSON"), ("/run/json", b"[]", "a JSON object"),
    ("/run/json", b"null", "a JSON object"), ("/run/json", b"{}", '"version"'),
    ("/run/json", b'{"policy":"exact"}', '"version"'), ("/run/json", b'{"version":1}', "version: expected a text"),
    ("/run/json", b'{"version":"1","policy":[1]}', "policy: expected a text"),
    ("/run/json", b'{"version":"1","stop_ids":["a"]}', "stop_ids: expected an array of whole numbers"),
    ("/run/json", b'{"version":"1","threshold":"high"}', "threshold: expected a number"),
    ("/run/json", b'{"version":"1","repacked":{"inputs":[1]}}', "inputs: expected an array of objects"),
    ("/run/json", b'{"version":"1","version":"2"}', "twice"),
    ("/run/json", b'{"version":"1","a":' + b"[" * 5000 + b"]" * 5000 + b"}", "in each other"),
    ("/model/json", b"", "JSON"), ("/model/json", b"{,}", "JSON"), ("/model/json", b"7", "a JSON object"),
    ("/model/json", b"{}", '"requested"'), ("/model/json", b'{"requested":null}', "requested: expected a text"),
    ("/model/json", b'{"requested":"m","digest":5}', "digest: expected a text"),
    ("/model/json", b'{"requested":"m","draft":"d"}', "draft: expected an object"),
    ("/model/json", b'{"requested":"m","resolved":{"draft_causal_layers":{"value":[1]}}}', "expected a truth value"),
]


def set_text(path, place, value):
    with h5py.File(path, "r+") as file:
        del file[place]
        file.create_dataset(place, data=np.frombuffer(value, np.uint8))


def test_a_text_that_is_garbage_is_refused_by_every_command(folder):
    good = damage.fixture(folder)
    bad = folder / "bad.h5"
    for number, (place, value, says) in enumerate(GARBAGE):
        shutil.copy(good, bad)
        set_text(bad, place, value)
        chosen = list(commands(bad, folder))
        for command in chosen if number % 5 == 1 else (chosen[0], chosen[3], *chosen[-5:-3]):
            code, out, err = run(*command)
            if "LibTorch" in err or "is not installed" in err:
                continue  # a build without the runtime
            damage.one_error_line(code, err, f"bad.h5:{place}", "expected", says, "HINT")
            assert out == "", (command, out)
        assert not list(folder.glob("never*")), place


def test_json_is_utf8_whatever_files_and_texts_are_called(folder):
    source = damage.fixture(folder)
    with h5py.File(source, "r+") as file:
        start = int(file["/sequences/name_start"][0])
        file["/sequences/bytes"][start:start + 2] = 0xFF  # in the name of a sequence
    names = [os.fsencode(folder) + b"/\xff" + part for part in (b"a.h5", b"b.h5")]
    for name in names:
        shutil.copy(source, name)
    with h5py.File(names[1], "r+") as file:
        file["/steps/pass_time_ns"][:] += 1  # another run
    a, b = map(os.fsdecode, names)
    packed, merged = folder / "packed.h5", folder / "merged.h5"
    for command in (("repack", a, "-o", packed), ("repack", a, b, "--merge", "-o", merged)):
        code, _, err = run(*command)
        assert code == 0, err
    inputs = json.loads(h5py.File(merged)["/run/json"][:].tobytes())["repacked"]["inputs"]
    assert [item["file"] for item in inputs] == ["\ufffda.h5", "\ufffdb.h5"]
    out = os.fsencode(folder) + b"/\xff.json"
    for trace in (a, packed, merged):
        for command in (("info", trace, "--json"), ("analyze", trace, "--json", "-", "--metric", "decoding"),
                        ("export", trace, "--format", "step_map"), ("export", trace, "--format", "json"),
                        ("export", trace, "--format", "frames", "--force", "-o", os.fsdecode(out)),
                        ("analyze", trace, "--metric", "decoding", "--force", "--json", os.fsdecode(out))):
            done = subprocess.run([os.environ["BLOCKSCOPE_BINARY"], *map(str, command)], capture_output=True)
            assert done.returncode == 0, (command, done.stderr)
            text = pathlib.Path(os.fsdecode(out)).read_bytes() if "--force" in command else done.stdout
            json.loads(text.decode("utf-8"))


def test_repack_names_its_output_where_it_can_not_write(folder):
    source = damage.fixture(folder)
    output = folder / "nodir" / "x.h5"
    code, _, err = run("repack", source, "-o", output)
    damage.one_error_line(code, err, f"{output}: ", "folder", "HINT")
    assert ".tmp" not in err, err


if __name__ == "__main__":
    require_binary()
    damage.TOOL = sys.argv[1]
    run_tests(globals())
