"""Makes an animated GIF of the viewer: one picture for each denoising step of a block.

    scripts/demo.sh                                   # writes build/demo/run.h5
    python3 scripts/screencast.py build/demo/run.h5 -o docs/pictures/viewer.gif

In each picture, the query of the Attention panel is the position that the step decides. Needs a
build with the viewer, and Pillow (`pip install Pillow`). Without a display it also needs Xvfb.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def fail(message):
    sys.exit(f"screencast.py: {message}")


def run(command):
    """The standard output of a command. Ends the script with the command's own error."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        fail(f"{command[0]} was not found. HINT: build Blockscope (scripts/setup.sh --viewer), or give --blockscope")
    except subprocess.CalledProcessError as error:
        fail(f"`{' '.join(command)}` ended with {error.returncode}:\n{error.stderr.strip()}")


def steps_of(blockscope, trace, sequence, block):
    """(step, decided position in the block or None) of each denoising step of a block."""
    text = run([blockscope, "export", trace, "--format", "json", "--sequence", str(sequence)])
    document = json.loads(text)
    found = document["sequences"][0]
    steps = []
    for row in found["rows"]:
        if row["kind"] != "denoise" or row["block"] != block:
            continue
        positions = row.get("delta", {}).get("transfer_index", [])
        decided = [len(found["prompt"]) + p - row["block_start"] for p in positions]
        steps.append((row["step"], decided[0] if decided else None))
    if not steps:
        fail(f"{trace}: sequence {sequence} has no denoising steps in block {block}")
    return steps


def take_pictures(options, folder):
    pictures = []
    for step, token in steps_of(options.blockscope, options.trace, options.sequence, options.block):
        place = {"sequence": options.sequence, "block": options.block, "step": step,
                 "layer": options.layer, "head": options.head}
        if token is not None:
            place["token"] = token
        picture = os.path.join(folder, f"{step:04}.png")
        run([options.blockscope, "view", options.trace, "--screenshot", picture,
             "--panel", "trajectory,attention", "--width", str(options.width), "--height", str(options.height),
             "--select", ",".join(f"{name}={value}" for name, value in place.items())])
        pictures.append(picture)
    return pictures


def write_gif(image, pictures, output, seconds, last):
    """The most frequent colours are the palette of all pictures, without dithering. Equal pixels stay equal, so
    the file holds only what changes."""
    frames = [image.open(picture).convert("RGB") for picture in pictures]
    together = image.new("RGB", (frames[0].width, frames[0].height * len(frames)))
    for i, frame in enumerate(frames):
        together.paste(frame, (0, i * frame.height))
    colours = sorted(together.getcolors(maxcolors=1 << 24), reverse=True)[:255]
    palette = image.new("P", (1, 1))
    palette.putpalette([channel for _, colour in colours for channel in colour])
    frames = [frame.quantize(palette=palette, dither=image.Dither.NONE) for frame in frames]
    durations = [round(1000 * seconds)] * (len(frames) - 1) + [round(1000 * last)]
    frames[0].save(output, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)
    return sum(durations) / 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", help="a trace of level full")
    parser.add_argument("-o", "--output", default="viewer.gif", help="the GIF (default: %(default)s)")
    parser.add_argument("--blockscope", default=str(ROOT / "build/release/bin/blockscope"), help="the command")
    parser.add_argument("--sequence", type=int, default=2)
    parser.add_argument("--block", type=int, default=15)
    parser.add_argument("--layer", type=int, default=5)
    parser.add_argument("--head", type=int, default=0)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=580)
    parser.add_argument("--seconds", type=float, default=0.6, help="time of a step (default: %(default)s)")
    parser.add_argument("--last", type=float, default=2.0, help="time of the last step (default: %(default)s)")
    options = parser.parse_args()
    try:
        from PIL import Image
    except ImportError:
        fail("Pillow is missing, which writes the GIF. HINT: pip install Pillow")
    if not os.path.exists(options.trace):
        fail(f"{options.trace}: no such file. HINT: scripts/demo.sh writes build/demo/run.h5")
    with tempfile.TemporaryDirectory() as folder:
        pictures = take_pictures(options, folder)
        seconds = write_gif(Image, pictures, options.output, options.seconds, options.last)
    size = os.path.getsize(options.output) / 1e6
    print(f"{options.output}: {len(pictures)} steps, {seconds:.1f} s, {size:.2f} MB")


if __name__ == "__main__":
    main()
