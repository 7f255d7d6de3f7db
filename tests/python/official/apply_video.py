"""blockscope.apply() over LongLive's loop against FlashBlock's released video code, on small random models: the same
weights, noise and calibration file, so the same video.

python apply_video.py FLASH_BLOCK LONGLIVE

FLASH_BLOCK, LONGLIVE: work trees. Set BLOCKSCOPE_BINARY if `blockscope` isn't in PATH. docs/parity.md has the
results."""

import argparse
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import compare_video  # noqa: E402
import numpy as np  # noqa: E402
import official_flashblock  # noqa: E402
import official_video  # noqa: E402
import record_video  # noqa: E402
import torch  # noqa: E402

import blockscope  # noqa: E402

ALLOWED = {torch.float64: 1e-6, torch.float32: 1e-5}  # of values up to 4.4; ours keeps the pair in float32


def compare(arguments, folder, dtype, batch):
    loop = official_video.longlive_loop(arguments.longlive, dtype, batch)
    official = official_flashblock.FlashBlock(arguments.flash_block, dtype, batch)
    trace, dense = folder / "run.h5", loop.run()
    record_video.record(loop, trace)
    for gamma, bound in compare_video.THRESHOLDS:
        masks = record_video.calibrate(trace, gamma, bound)
        official.calibrate(gamma, bound)
        for key, entry in official.final().items():
            assert np.array_equal(entry["mask"], masks[key]["mask"]), f"mask of layer and step {key}"
        expected = official.reuse()
        with blockscope.apply(loop.model, f"flashblock,reuse={trace.with_suffix('.json')}",
                              block_length=official_video.CHUNK * loop.size.frame,
                              sinks=official_video.SINKS * loop.size.frame):
            got = loop.run()
        worst = compare_video.largest(got, expected)
        compare_video.say(type=str(dtype), batch=batch, gamma=gamma, bound=bound, video=worst,
                          from_dense=compare_video.largest(expected, dense), largest_value=float(dense.abs().max()))
        assert worst <= ALLOWED[dtype], worst
    assert torch.equal(dense, loop.run())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flash_block", type=pathlib.Path)
    parser.add_argument("longlive", type=pathlib.Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for dtype in (torch.float32, torch.float64):
            for batch in (1, 2):
                compare(arguments, pathlib.Path(folder), dtype, batch)


if __name__ == "__main__":
    main()
