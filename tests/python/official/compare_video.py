"""Numbers of continuous video: FlashBlock's released video code, LongLive and diffusers' Wan, on small random models on
the CPU, against video_calibration.py in float64. docs/parity.md has the commands and the results.

python compare_video.py flashblock FLASH_BLOCK LONGLIVE   the official calibration and reusing run
python compare_video.py kernel LONGLIVE [--true-size]     what the released kernel's border and precision change
python compare_video.py wan                               the loop over diffusers' model

FLASH_BLOCK, LONGLIVE: work trees. Needs diffusers, einops and ftfy."""

import argparse
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import numpy as np  # noqa: E402
import official_flashblock  # noqa: E402
import official_video  # noqa: E402
import official_wan  # noqa: E402
import torch  # noqa: E402
import video_calibration as reference  # noqa: E402

THRESHOLDS = [(0.85, 0.05), (0.99, 0.3), (0.8, 2.0), (0.999, 0.02)]  # gamma, bound; the first are the released ones


ALLOWED = dict(cos=1e-6, lse=1e-6, cos_in=1e-6, output={torch.float64: 1e-12, torch.float32: 5e-6})


def say(**values):
    print(json.dumps({k: float(f"{v:.2g}") if isinstance(v, float) else v for k, v in values.items()}))


def largest(a, b):
    return float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max())


def compare_flashblock(arguments):
    for dtype in (torch.float64, torch.float32):
        official = official_flashblock.FlashBlock(arguments.flash_block, dtype)
        dense = official.dense()
        plain = official_video.longlive_loop(arguments.longlive, dtype, batch=len(official.noise)).run()
        say(compared="video without reuse: LongLive, FlashBlock", type=str(dtype), largest=largest(dense, plain))
        for gamma, bound in THRESHOLDS:
            compare_calibration(official, dense, gamma, bound)


def compare_calibration(official, dense, gamma, bound):
    watcher = reference.Watcher()
    with official.look(watcher):
        decisions = official.calibrate(gamma, bound)
    expected = reference.calibrate(watcher.passes, gamma=gamma, bound=bound)
    cos = lse = 0.0
    assert len(decisions) == sum(len(entry["chunk"]) for entry in expected.values())
    for start, step, layer, *values, mask in decisions:
        entry = expected[layer, step]
        starts = [next(p.start for p in watcher.passes if p.chunk == chunk) for chunk in entry["chunk"]]
        of_chunk = {name: x[starts.index(start)] for name, x in entry["of_chunk"].items()}
        cos, lse = max(cos, largest(values[0], of_chunk["cos"])), max(lse, largest(values[1], of_chunk["lse"]))
        assert np.array_equal(mask, of_chunk["mask"]), f"provisional mask of layer {layer}, step {step}, token {start}"
    final = official.final()
    assert final.keys() == expected.keys()
    for key, entry in expected.items():
        assert np.array_equal(final[key]["mask"], entry["mask"]), f"mask of layer and step {key}"
    means = {name: max(largest(final[key][name], expected[key][name]) for key in final)
             for name in ("cos", "lse", "cos_in")}
    for name, value in [("cos", cos), ("lse", lse), *means.items()]:
        assert value <= ALLOWED[name], (name, value)
    say(compared="calibration", gamma=gamma, bound=bound, provisional=len(decisions) * len(final[0, 1]["mask"]),
        provisional_cos=cos, provisional_lse=lse, masks=sum(len(x["mask"]) for x in final.values()),
        recomputing=int(sum(x["mask"].sum() for x in final.values())),
        nearest_threshold=float(reference.margin(expected, gamma, bound)), **means)
    watcher = reference.Watcher()
    with official.look(watcher):
        video = official.reuse()
    reuse, worst, count = reference.Reuse({key: entry["mask"] for key, entry in expected.items()}), 0.0, 0
    for one in watcher.passes:
        for layer, (q, k, v, out) in one.calls.items():
            if k.shape[2] > q.shape[2]:
                merged = reuse.merged(layer, one.step, *reference.parts(q, k, v))
                worst, count = max(worst, largest(out, merged) / float(np.abs(merged).max())), count + 1
    assert worst <= ALLOWED["output"][video.dtype], worst
    say(compared="reusing run", attentions=count, output=worst, video_from_dense=largest(video, dense))


# --- the kernel's border and precision --------------------------------------------------------------------------------


def rounded(pair):
    return [torch.from_numpy(x).bfloat16().double().numpy() for x in pair]


class Released(reference.Watcher):
    """Calibrates with the exact border and pair, with the border of a kernel whose tiles have `tile` keys, and with
    A_out and L_out in bfloat16, as the released calibration has them. Nothing is kept of a pass. errors: squared
    relative L2 of the output where every head reuses step 0's pair."""

    def __init__(self, tile):
        super().__init__()
        self.tile, self.late, names = tile, {}, ("exact", "tile", "bfloat16")
        self.calibrations = {name: reference.Calibration() for name in names}
        self.reuses, self.errors = {name: reference.Reuse({}) for name in names}, {name: [] for name in names}

    def see(self, layer, q, k, v, _):
        if k.shape[2] == q.shape[2]:
            return
        one, (q, k, v) = self.passes[-1], (x.double().numpy() for x in (q, k, v))
        late = self.late[k.shape[2] - q.shape[2]] = reference.tile_late(k.shape[2], q.shape[2], self.tile)
        exact = reference.parts(q, k, v)
        full = reference.merge(*exact)
        cases = dict(exact=exact, tile=reference.parts(q, k, v, late), bfloat16=(rounded(exact[0]), exact[1]))
        for name, (out, inside) in cases.items():
            self.calibrations[name].add(one, layer, out, inside)
            if one.step == 0:
                self.reuses[name].merged(layer, 0, out, inside)
            else:
                got = reference.merge(self.reuses[name].kept[layer], inside)
                squares = [np.square(x).sum((0, 2, 3)) for x in (got - full, full)]
                self.errors[name].append(squares[0] / squares[1])


def compare_kernel(arguments):
    size, tile = official_video.Size(layers=2, height=26, width=30), 8  # an eighth of a frame and of a tile
    if arguments.true_size:
        size, tile = official_video.Size(1, 2, 128, 60, 104, sharp=(0.1, 1.0)), reference.TILE
    released = Released(tile)
    loop = official_video.longlive_loop(arguments.longlive, size=size)
    with loop.look(released):
        loop.run()
    say(compared="border", chunk=official_video.CHUNK * size.frame, tile=tile, late=released.late)
    exact, *others = ((name, calibration.result()) for name, calibration in released.calibrations.items())
    for key, entry in exact[1].items():
        say(layer=key[0], step=key[1], recompute=entry["mask"].tolist(), **{
            f"{name} {of}": found[key][name].round(6).tolist() for of, found in (exact, *others)
            for name in ("cos", "lse")})
    for of, found in others:
        pairs = [(entry, found[key]) for key, entry in exact[1].items()]
        chunks = [(a["of_chunk"], b["of_chunk"]) for a, b in pairs]
        say(of=of, **{f"{kind} {name}": max(largest(a[name], b[name]) for a, b in both)
                      for kind, both in (("mean", pairs), ("provisional", chunks)) for name in ("cos", "lse")},
            masks=sum(a["mask"].size for a, _ in pairs), masks_differ=sum(int((a["mask"] != b["mask"]).sum())
                                                                          for a, b in pairs),
            provisional=sum(a["mask"].size for a, _ in chunks),
            provisional_differ=sum(int((a["mask"] != b["mask"]).sum()) for a, b in chunks))
    for name, errors in released.errors.items():
        say(error_if_all_reuse=name, heads=np.sqrt(np.mean(errors, 0)).round(6).tolist())


# --- diffusers --------------------------------------------------------------------------------------------------------


def compare_wan(_):
    for dtype in (torch.float64, torch.float32):
        for guidance in (None, "calls", "batch"):
            loop = official_wan.wan_loop(dtype, guidance=guidance)
            watcher, plain = reference.Watcher(), loop.run()
            with loop.look(watcher):
                assert torch.equal(plain, loop.run())
            worst = max(largest(out, reference.attention(q, k, v)[0]) / float(np.abs(out).max())
                        for one in watcher.passes for q, k, v, out in one.calls.values())
            first = official_wan.wan_loop(dtype, guidance=guidance, frames=official_video.CHUNK)
            stock = official_wan.wan_loop(dtype, guidance=guidance, frames=official_video.CHUNK, stock=True)
            say(loop=loop.name, type=str(dtype), guidance=str(guidance), passes=len(watcher.passes), attention=worst,
                first_chunk_with_stock_processor=largest(first.run(), stock.run()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    flashblock = commands.add_parser("flashblock")
    flashblock.add_argument("flash_block", type=pathlib.Path)
    flashblock.add_argument("longlive", type=pathlib.Path)
    flashblock.set_defaults(run=compare_flashblock)
    kernel = commands.add_parser("kernel")
    kernel.add_argument("longlive", type=pathlib.Path)
    kernel.add_argument("--true-size", action="store_true")
    kernel.set_defaults(run=compare_kernel)
    commands.add_parser("wan").set_defaults(run=compare_wan)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
