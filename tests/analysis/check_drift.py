"""The metric `drift` of captures against its definition, from h5py and numpy: full and outputs level, several tokens a
step, gaps."""

import json
import pathlib
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cli"))

import sets_reference as reference  # noqa: E402
from capture_harness import MODELS, require_binary, run  # noqa: E402
from check_settling import decisions  # noqa: E402

STATES = {"drift_query": "/query/query", "drift_key": "/kv/key", "drift_value": "/kv/value", "drift_hidden": "/hidden/hidden"}
FARTHEST = 8


def cosine(a, b):
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def expected(trace, path):
    means = reference.Means()
    for (sequence, _), rows in trace.blocks().items():
        origin = int(trace.step["block_start"][rows[0]]) - int(trace.prompt_length[sequence])
        when = {position - origin: int(trace.step["step"][row]) for row in rows for position, _ in decisions(trace, row)}
        for before, now in zip(rows, rows[1:]):
            if not (trace.step["recorded"][before] and trace.step["recorded"][now]):
                continue
            for place, decided in when.items():
                offset = int(trace.step["step"][now]) - decided
                if not 0 <= place < trace.block_length or abs(offset) > FARTHEST:
                    continue
                for layer in range(len(trace.layers)):
                    a, b = (np.atleast_3d(trace.at(path, row, layer)) for row in (before, now))
                    if path == "/hidden/hidden":  # [B, C] -> one head
                        a, b = (trace.at(path, row, layer)[None] for row in (before, now))
                    for head in range(len(a)):
                        means.add((layer, offset + FARTHEST), cosine(a[head, place], b[head, place]))
    return means


def expected_by_kind(trace, path):
    """Means by (layer, kind): most attended, other decided, masks."""
    means, scale = reference.Means(), float(trace.file.attrs["softmax_scale"])
    for (sequence, _), rows in trace.blocks().items():
        origin = int(trace.step["block_start"][rows[0]]) - int(trace.prompt_length[sequence])
        when = np.full(trace.block_length, 10 ** 6)  # undecided in this block: a mask in every step
        when[:max(0, -origin)] = 0  # the prompt's end
        for row in rows:
            for position, _ in decisions(trace, row):
                if 0 <= position - origin < trace.block_length:
                    when[position - origin] = trace.step["step"][row]
        for before, now in zip(rows, rows[1:]):
            last = int(trace.step["step"][before])
            old, masks = when < last, when >= last
            for layer in range(len(trace.layers)):
                q, k = (trace.at(name, before, layer).astype(np.float64) for name in ("/query/query", "/kv/key"))
                there = ~np.isnan(q[0]).any(-1)
                lse = np.logaddexp(*(trace.at(f"/attention/lse_{side}", before, layer).astype(np.float64)
                                     for side in ("external", "internal")))
                weights = np.exp(q @ np.repeat(k, len(q) // len(k), 0).swapaxes(-1, -2) * scale - lse[..., None])
                weight = weights[:, masks & there].sum((0, 1))
                if not (old & there).any() or not (masks & there).any():
                    continue
                most = int(np.argmax(np.where(old & there, weight, -1)))
                a, b = (trace.at(path, row, layer) for row in (before, now))
                if path == "/hidden/hidden":
                    a, b = a[None], b[None]
                for place in range(trace.block_length):
                    if when[place] == last:  # its own input changes between the two
                        continue
                    kind = 2 if when[place] > last else 0 if place == most else 1
                    for head in range(len(a)):
                        means.add((layer, kind), cosine(a[head, place], b[head, place]))
    return means


def check(path, names):
    code, out, err = run("analyze", path, "--metric", "drift", "--json", "-", "--quiet")
    assert code == 0, err
    arrays = {array["name"]: array for array in json.loads(out)["metrics"][0]["arrays"]}
    kinds = [name.replace("drift_", "drift_kind_") for name in names if len(names) > 1 and name != "drift_query"]
    assert set(arrays) == set(names) | set(kinds), list(arrays)
    trace = reference.Trace(str(path))
    for name in kinds:
        want, array = expected_by_kind(trace, STATES[name.replace("_kind", "")]), arrays[name]
        assert array["axes"][1]["labels"] == ["most attended", "other decided", "masks"], array["axes"]
        for i, (value, terms) in enumerate(zip(array["values"], array["terms"])):
            cell = divmod(i, 3)
            assert terms == want.terms[cell] > 0, (name, cell, terms, want.terms[cell])
            assert abs(value - want.mean(cell)) < 1e-6, (name, cell, value, want.mean(cell))
    for name in names:
        want = expected(trace, STATES[name])
        array = arrays[name]
        got, wanted = sum(array["terms"]), sum(want.terms.values())
        assert got == wanted > 0, (name, got, wanted)
        for i, (value, terms) in enumerate(zip(array["values"], array["terms"])):
            cell = divmod(i, 2 * FARTHEST + 1)
            assert terms == want.terms[cell], (name, cell)
            assert terms == 0 or abs(value - want.mean(cell)) < 1e-6, (name, cell, value, want.mean(cell))
    return arrays


def main():
    require_binary()
    with tempfile.TemporaryDirectory(prefix="blockscope-") as name:
        path = pathlib.Path(name) / "run.h5"

        def captured(*flags):
            code, _, err = run("capture", MODELS / "needle", "--prompts", MODELS / "needle" / "demo.jsonl", "--limit", 2,
                               "--gen-length", 32, "--layers", "0,4", "-q", "--force", "-o", path, *flags)
            assert code == 0, err
            return path

        arrays = check(captured("--record", "full"), list(STATES))
        # The input of layer 0 is the token's embedding, which changes once: after the decision.
        hidden = dict(zip(range(-FARTHEST, FARTHEST + 1), arrays["drift_hidden"]["values"]))
        assert hidden[1] < 0.9 and hidden[0] > 0.999 and hidden[2] > 0.999, hidden
        check(captured("--record", "outputs", "--denoising-steps", 8, "--steps", "1,2,3,5,6,7"),
              ["drift_query"])
    print("ok")


if __name__ == "__main__":
    main()
