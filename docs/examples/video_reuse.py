"""FlashBlock's loop on a small video model: record, calibrate, decode with the masks, compare, report.

    python docs/examples/video_reuse.py video-study
    blockscope study video video-study/video.h5 --compare video-study/compare.json --lse-bound 0.5 \\
        -o video-study

The model is models/moving-shapes, in the shape of LongLive. Needs blockscope, PyTorch and safetensors; the report needs
gnuplot. Takes 15 seconds on two cores.
"""

import argparse
import pathlib
import sys

import torch

import blockscope

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "training"))
import moving_shapes  # noqa: E402

CALIBRATION = ["a red circle at left moving up-right", "a blue square at top-right moving down-left",
               "a green triangle at middle moving right", "a cyan circle at bottom moving up",
               "a yellow square at top moving down-right"]
COMPARED = ["a magenta triangle at left moving right", "a green circle at top-left moving down-right",
            "a red square at bottom-right moving up-left"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="write trace, masks, numbers and the report here")
    parser.add_argument("--model", default=ROOT / "models" / "moving-shapes", help="name a folder (%(default)s)")
    parser.add_argument("--gamma", type=float, default=0.85, help="let heads reuse above this similarity (%(default)s)")
    # FlashBlock's 0.05 lets hardly a head of this model reuse: its prefix has at most 96 keys, so L_out changes more.
    parser.add_argument("--lse-bound", type=float, default=0.5,
                        help="let no head reuse whose mean change of L_out is larger (%(default)s)")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    model = moving_shapes.load(arguments.model)
    frame = model.config.frame_tokens
    video = {"block_length": model.config.chunk_frames * frame, "tokens_per_frame": frame,
             "sinks": model.config.sink_frames * frame, "decoder_layers": model.blocks}
    trace, masks = arguments.folder / "video.h5", arguments.folder / "reuse.json"

    with blockscope.record(model, trace, level="summary", force=True, **video):
        moving_shapes.generate(model, CALIBRATION)
    calibration = blockscope.open(trace).calibrate(gamma=arguments.gamma, lse_bound=arguments.lse_bound,
                                                   reference="kept", provisional=True, by_step=True)
    calibration.save(masks, force=True)

    compared = blockscope.compare(
        model, lambda model, prompt: moving_shapes.generate(model, [prompt])[0], COMPARED, reuse=masks,
        score=moving_shapes.score, frames=pixels, **video)
    print(compared)
    compared.save(arguments.folder / "compare.json", force=True)
    report = blockscope.open(trace).report(compare=arguments.folder / "compare.json")
    report.save(arguments.folder / "video.html", force=True)
    print(arguments.folder / "video.html")


def pixels(frames):
    """A video of the model [F, 3, H, W], -1 to 1, as uint8 [F, H, W, 3]."""
    return ((frames.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1)


if __name__ == "__main__":
    main()
