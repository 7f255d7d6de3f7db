"""blockscope.record() and `blockscope calibrate` over LongLive's loop and over diffusers' Wan on small random models,
against video_calibration.py in float64, which compare_video.py compares with FlashBlock's released calibration.

python record_video.py longlive LONGLIVE    or    python record_video.py wan

LONGLIVE: a work tree. Set BLOCKSCOPE_BINARY if `blockscope` isn't in PATH. docs/parity.md has the results."""

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import compare_video  # noqa: E402
import h5py  # noqa: E402
import numpy as np  # noqa: E402
import official_video  # noqa: E402
import official_wan  # noqa: E402
import torch  # noqa: E402
import video_calibration as reference  # noqa: E402

import blockscope  # noqa: E402

ALLOWED = 1e-5  # of an array's largest value, at least 1
ARRAYS = ("external", "lse_external", "internal", "lse_internal")


def record(loop, path, step=None, rows=None, **options):
    """The loop's passes by our own observer, and a trace of the same run. step: the arguments of run.step() before each
    pass, for a loop whose calls don't tell them."""
    watcher, block = reference.Watcher(), official_video.CHUNK * loop.size.frame
    with blockscope.record(loop.model, path, level="outputs", array_type="f32", block_length=block, rows=rows or block,
                           sinks=official_video.SINKS * loop.size.frame, force=True, **options) as recording:
        if step:
            before, watcher.tell = watcher.tell, lambda **place: (before(**place), recording.step(
                **{name: place[name] for name in step}))
        with loop.look(watcher):
            video = loop.run()
    assert torch.equal(video, loop.run())  # the recording changes nothing
    return watcher


def compare_arrays(path, watcher, sequences):
    """The largest difference of each array, relative to its largest value, at least 1."""
    worst, rows = dict.fromkeys((*ARRAYS, "query"), 0.0), 0
    with h5py.File(path) as file:
        count = int(file["steps/committed"][0])
        names = {name: file["query/query" if name == "query" else f"attention/{name}"] for name in worst}
        of = {name: file[f"steps/{name}"][:count] for name in ("block", "step", "kind", "sequence", "timestep",
                                                                "block_start", "context_length")}
        for row in range(count):
            branch, slot = sequences[of["sequence"][row]]
            one = next(p for p in watcher.of(branch) if (p.chunk, p.step) == (of["block"][row], of["step"][row] - 1))
            assert of["kind"][row] == (2 if one.timestep == 0 else 1) and of["block_start"][row] == one.start
            assert of["timestep"][row] == np.float32(one.timestep)
            rows += 1
            for layer, (q, k, v, _) in one.calls.items():
                assert of["context_length"][row] == k.shape[2] - q.shape[2]
                (out, lse), (inside, lse_in) = reference.parts(*(x[slot:slot + 1] for x in (q, k, v)))
                for name, value in zip((*ARRAYS, "query"), (out, lse, inside, lse_in, q[slot:slot + 1])):
                    got = names[name][row, layer].astype(np.float64)
                    if name in ARRAYS[:2] and k.shape[2] == q.shape[2]:
                        assert not np.nan_to_num(got, neginf=0.0).any()  # the first chunk has no history
                        continue
                    worst[name] = max(worst[name], np.abs(got - value[0]).max() / max(1.0, np.abs(value).max()))
    assert rows == sum(len(watcher.of(branch)) for branch, _ in sequences)
    for name, value in worst.items():
        assert value <= ALLOWED, (name, value)
    return dict(rows=rows, **worst)


def expected_of(watcher, sequences, gamma, bound):
    """(layer, step) -> cos, lse, mask, as the released code: one kept pair for all videos of a pass. Branches have
    passes of their own; the means are over their chunks together. And the smallest distance from a threshold."""
    each = []
    for branch in sorted({branch for branch, _ in sequences}):
        slots = [slot for of, slot in sequences if of == branch]
        each.append(reference.calibrate([dataclasses.replace(p, calls={
            layer: tuple(x[slots] for x in tensors) for layer, tensors in p.calls.items()})
            for p in watcher.of(branch)], gamma=gamma, bound=bound))
    near, means = min(reference.margin(one, gamma, bound) for one in each), {}
    for key in each[0]:
        cos, lse = (np.mean([one[key][name] for one in each], 0) for name in ("cos", "lse"))
        means[key] = dict(cos=cos, lse=lse, mask=reference.recompute(cos, lse, gamma, bound))
    return means, float(near)


def calibrate(path, gamma, bound):
    """(layer, step) -> cos, lse, mask, from the file that the command writes."""
    written = path.with_suffix(".json")
    subprocess.run([os.environ.get("BLOCKSCOPE_BINARY", "blockscope"), "calibrate", path, "--reference", "kept",
                    "--provisional", "--by-step", "--gamma", str(gamma), "--lse-bound", str(bound), "-o", written,
                    "--force", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    found = json.loads(written.read_text())
    assert [r[0] for r in found["step_ranges"]] == [1, 3, 4, 5]  # step 1 never reuses and joins the next range
    arrays = {name: np.array(found[key]) for name, key in (("cos", "similarity"), ("lse", "lse_drift"),
                                                           ("reuse", "reuse"))}
    return {(layer, step): dict(cos=arrays["cos"][step - 1, layer], lse=arrays["lse"][step - 1, layer],
                                mask=~arrays["reuse"][step - 1, layer])
            for step in range(1, 5) for layer in range(arrays["cos"].shape[1])}


def compare(name, loop, folder, sequences, **options):
    """sequences: branch and row of the batch of each recorded video."""
    path, few = folder / "run.h5", folder / "few.h5"
    watcher = record(loop, path, **options)
    record(loop, few, rows=7, **options)  # statistics are of all rows all the same
    compare_video.say(loop=name, compared="trace", **compare_arrays(path, watcher, sequences))
    for gamma, bound in compare_video.THRESHOLDS:
        expected, near = expected_of(watcher, sequences, gamma, bound)
        got = calibrate(path, gamma, bound)
        assert all(np.array_equal(entry[of], got[key][of]) for key, entry in calibrate(few, gamma, bound).items()
                   for of in entry)
        assert got.keys() == expected.keys()
        differences = {of: max(compare_video.largest(got[key][of], expected[key][of]) for key in got)
                       for of in ("cos", "lse")}
        masks = sum(int((got[key]["mask"] != expected[key]["mask"]).sum()) for key in got)
        compare_video.say(
            loop=name, compared="calibrate", gamma=gamma, bound=bound, **differences,
            masks=sum(x["mask"].size for x in got.values()), masks_differ=masks, nearest_threshold=near,
            recomputing=int(sum(x["mask"].sum() for x in expected.values())))
        assert masks == 0 and max(differences.values()) <= ALLOWED, (masks, differences)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loop", choices=["longlive", "wan"])
    parser.add_argument("clone", type=pathlib.Path, nargs="?")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for batch in (1, 2):
            videos = [(0, slot) for slot in range(batch)]
            if arguments.loop == "longlive":
                loop = official_video.longlive_loop(arguments.clone, batch=batch)
                compare(f"LongLive, {batch} videos", loop, folder, videos)
                if batch == 1:
                    loop = official_video.longlive_loop(arguments.clone, infinite=True)
                    compare("LongLive, infinite attention", loop, folder, videos)
                continue
            both = [*videos, *((1, slot) for _, slot in videos)]
            for guidance, recorded, options in (
                    (None, videos, {}), ("batch", videos, dict(batch_rows=list(range(batch)))),
                    ("calls", both, dict(step=("start", "timestep", "branch")))):
                loop = official_wan.wan_loop(batch=batch, guidance=guidance)
                compare(f"diffusers' Wan, {batch} videos, guidance {guidance}", loop, folder, recorded,
                        **dict(step=("start", "timestep"), decoder_layers=loop.model.blocks) | options)


if __name__ == "__main__":
    main()
