"""The metric `settling` of captures against its definitions, from h5py and numpy, with strategies that decide in
another order, several tokens a step, and tokens that they take back."""

import json
import pathlib
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cli"))

import sets_reference as reference  # noqa: E402
from capture_harness import MODELS, require_binary, run  # noqa: E402

MOST = 4


def decisions(trace, row):
    """(position in the answer, token) that a row decided; a mask token takes one back."""
    ends, frames = trace.file["/frames/delta_end"], trace.file["/frames"]
    begin, end = (int(ends[row - 1]) if row else 0), int(ends[row])
    return zip(frames["position"][begin:end].tolist(), frames["token"][begin:end].tolist())


def expected(trace):
    mask = int(trace.file["/model"].attrs.get("mask_token_id", trace.file.attrs.get("mask_token_id", -1)))
    result = {name: reference.Means() for name in ("means", "settled_by", "agreement", "ar_local", "ar_global")}
    for (sequence, _), rows in trace.blocks().items():
        prompt = int(trace.prompt_length[sequence])
        origin = int(trace.step["block_start"][rows[0]]) - prompt
        final, when, masks = {}, {}, []
        decided_now = set()
        for t, row in enumerate(rows):
            masks.append(set(range(trace.block_length)) - decided_now)
            for position, token in decisions(trace, row):
                place = position - origin
                if not 0 <= place < trace.block_length:
                    continue
                final[place] = token
                when[place] = t
                decided_now.add(place)
                if token == mask:
                    del when[place]
                    decided_now.discard(place)
        predictions = np.array([trace.file["/prediction/token"][row] for row in rows])
        for place, decided in when.items():
            known = [(t, int(predictions[t, place])) for t in range(decided + 1) if predictions[t, place] >= 0
                     and place in masks[t]]
            settled = decided
            for t, token in reversed(known):
                if token != final[place]:
                    break
                settled = t
            flips = sum(a != b for (_, a), (_, b) in zip(known, known[1:]))
            for i, value in enumerate((settled + 1, decided + 1, flips, settled == 0)):
                result["means"].add((i,), value)
            for tenth in range(1, 11):
                result["settled_by"].add((tenth - 1,), 10 * (settled + 1) <= tenth * len(rows))
            for t, token in known:
                result["agreement"].add((t,), token == final[place])
        order = sorted(when, key=lambda place: (when[place], place))
        for i, place in enumerate(order):
            masks = [p for p in sorted(when) if when[p] >= when[place]]
            for k in range(1, MOST + 1):
                if i >= k:
                    result["ar_local"].add((k - 1,), all(order[i - j] == place - j for j in range(1, k + 1)))
                result["ar_global"].add((k - 1,), masks.index(place) < k)
    return result


def check(path):
    code, out, err = run("analyze", path, "--metric", "settling", "--json", "-", "--quiet")
    assert code == 0, err
    arrays = {array["name"]: array for array in json.loads(out)["metrics"][0]["arrays"]}
    compared = 0
    for name, want in expected(reference.Trace(str(path))).items():
        array = arrays[name]
        assert sum(array["terms"]) == sum(want.terms.values()), name
        for i, (value, terms) in enumerate(zip(array["values"], array["terms"])):
            assert terms == want.terms[(i,)], (name, i)
            assert terms == 0 or abs(value - want.mean((i,))) < 1e-12, (name, i, value, want.mean((i,)))
            compared += terms > 0
    assert compared > 20, compared
    return arrays


def main():
    require_binary()
    with tempfile.TemporaryDirectory(prefix="blockscope-") as name:
        folder = pathlib.Path(name)

        def captured(model, *flags):
            path = folder / "run.h5"
            code, _, err = run("capture", MODELS / model, "--prompts", MODELS / "needle" / "demo.jsonl", "--limit", 4,
                               "--gen-length", 32, "--batch-size", 2, "-q", "--force", "-o", path, *flags)
            assert code == 0, err
            return path

        check(captured("needle"))
        ordered = check(captured("needle", "--strategy", "sequential"))
        assert ordered["ar_global"]["values"][0] == 1.0 and ordered["ar_local"]["values"][0] == 1.0
        check(captured("needle", "--strategy", "threshold,threshold=0.6"))
        check(captured("needle", "--temperature", 1.5, "--predictions", "masked"))
        check(captured("needle-bidirectional", "--block-length", 8, "--strategy", "wino,threshold=0.3"))
    print("ok")


if __name__ == "__main__":
    main()
