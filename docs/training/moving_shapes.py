"""A small causal video diffusion model: it makes 21 frames of a moving shape, three frames at a time.

It works like LongLive (Wan): chunks of frames, four denoising steps a chunk, a clean pass that writes K and V, and a
KV cache with sink frames and a rolling window. moving_shapes_model.py has the model.

    python docs/training/moving_shapes.py train --work build/shapes --out my-shapes
    python docs/training/moving_shapes.py sample "a red circle at left moving up-right" --sheet frames.png
    python docs/training/moving_shapes.py score --prompts 64
"""

import argparse
import dataclasses
import json
import math
import pathlib
import struct
import time
import zlib

import safetensors.torch
import torch
from torch import nn
from torch.nn import functional

from moving_shapes_model import Config, VideoModel

SIZE, RADIUS, SPEEDS, JITTER = 24, 4.0, (0.8, 1.6), 2.0  # pixels, pixels, pixels a frame, pixels
LOW, HIGH = RADIUS, SIZE - 1 - RADIUS  # the centre bounces at these
COLOURS = {"red": (1, .1, .1), "green": (.1, 1, .1), "blue": (.2, .3, 1), "yellow": (1, 1, .1),
           "magenta": (1, .1, 1), "cyan": (.1, 1, 1)}
SHAPES = ("circle", "square", "triangle")
PLACES = {f"{a}-{b}".removeprefix("middle-").removesuffix("-middle"): (y, x)
          for a, y in (("top", 6.5), ("middle", 11.5), ("bottom", 16.5))
          for b, x in (("left", 6.5), ("middle", 11.5), ("right", 16.5))}
WAYS = {f"{a}-{b}".strip("-"): (y / math.hypot(y, x), x / math.hypot(y, x))
        for a, y in (("up", -1), ("", 0), ("down", 1)) for b, x in (("left", -1), ("", 0), ("right", 1)) if y or x}
TABLES = [list(COLOURS.values()), SHAPES, list(PLACES.values()), list(WAYS.values())]
CAPTION = [list(COLOURS), list(SHAPES), [f"at {place}" for place in PLACES], [f"moving {way}" for way in WAYS]]


def vector(values):
    return torch.tensor(values, dtype=torch.float64)


def prompt_of(ids):
    """Four choices -> "a red circle at left moving up-right"."""
    return "a " + " ".join(words[i] for words, i in zip(CAPTION, ids))


def parse(prompt):
    """A prompt -> its four choices."""
    ids = []
    for words in CAPTION:
        found = [i for i, word in enumerate(words) if f" {word} " in f" {prompt} "]
        if len(found) != 1:
            raise ValueError(f"prompt {prompt!r}: expected one of {', '.join(words)}, found {len(found)} of them.\n"
                             f"HINT: A prompt looks like {prompt_of([0, 0, 3, 5])!r}.")
        ids += found
    return ids


def words_of(captions):
    """Choices [S, 4] -> the model's six words [S, 6]: colour, shape, row, column, up or down, left or right."""
    colour, shape, place, way = captions.unbind(-1)
    way = way + (way >= 4)  # no direction is in the middle of the nine
    words = torch.stack([colour, shape, place // 3, place % 3, way // 3, way % 3], -1)
    return words + torch.tensor([0, 6, 9, 12, 15, 18])


def path(start, way, speed, frames):
    """Centres [..., frames, 2] of a shape that bounces; start and way [..., 2], speed [...], in pixels."""
    steps = torch.arange(frames, dtype=torch.float64)
    free = start.unsqueeze(-2) + steps[:, None] * (way * speed.unsqueeze(-1)).unsqueeze(-2) - LOW
    return HIGH - (free.remainder(2 * (HIGH - LOW)) - (HIGH - LOW)).abs()


def coverage(shape, centres):
    """[..., SIZE, SIZE]: the share of a pixel that the shape covers; centres [..., 2]."""
    grid = torch.arange(SIZE, dtype=torch.float64)
    y = grid[:, None] - centres[..., 0, None, None]
    x = grid[None, :] - centres[..., 1, None, None]
    if shape == "circle":
        distance = torch.hypot(y, x) - RADIUS
    elif shape == "square":
        distance = torch.maximum(y.abs(), x.abs()) - 0.86 * RADIUS
    else:  # a triangle that points up, its centre of mass in the centre
        distance = torch.maximum(y, 0.5 * (math.sqrt(3) * x.abs() - y)) - 0.62 * RADIUS
    return (0.5 - distance).clamp(0, 1)


def batch(count, frames, seed):
    """Captions [count, 4] and true videos [count, frames, 3, SIZE, SIZE] from -1 to 1, fixed by the seed."""
    random = torch.Generator().manual_seed(seed)
    captions, videos = [], []
    for _ in range(count):
        captions.append([int(torch.randint(len(words), (), generator=random)) for words in CAPTION])
        colour, shape, place, way = (table[i] for table, i in zip(TABLES, captions[-1]))
        y, x, speed = torch.rand(3, generator=random).double()
        start = vector(place) + JITTER * (2 * torch.stack([y, x]) - 1)
        centres = path(start, vector(way), SPEEDS[0] + (SPEEDS[1] - SPEEDS[0]) * speed, frames)
        videos.append(2 * coverage(shape, centres).unsqueeze(1) * vector(colour)[:, None, None] - 1)
    return torch.tensor(captions), torch.stack(videos).float()


def load(folder):
    """The model of a folder, computed in float32."""
    folder = pathlib.Path(folder)
    model = VideoModel(Config(**json.loads((folder / "config.json").read_text())))
    model.load_state_dict({name: value.float()
                           for name, value in safetensors.torch.load_file(folder / "model.safetensors").items()})
    return model.eval()


def save(model, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dataclasses.asdict(model.config), indent=2) + "\n")
    safetensors.torch.save_file({name: value.half().contiguous() for name, value in model.state_dict().items()},
                                folder / "model.safetensors")


def add_noise(x, noise, timestep):
    share = (timestep / 1000).reshape(*timestep.shape, 1, 1, 1)
    return (1 - share) * x + share * noise


@torch.no_grad()
def generate(model, prompts, frames=None, seed=0, given=None):
    """One video a prompt [S, frames, 3, SIZE, SIZE]; `given` [S, F, ...] are true first chunks."""
    config, random = model.config, torch.Generator().manual_seed(seed)
    context = model.encode(words_of(torch.tensor([parse(prompt) for prompt in prompts])))
    cache, chunks = model.new_cache(len(prompts)), []
    for first in range(0, frames or config.num_frames, config.chunk_frames):
        shape = (len(prompts), config.chunk_frames, 3, SIZE, SIZE)
        options = {"kv_cache": cache, "current_start": first * config.frame_tokens}
        if given is not None and first < given.shape[1]:
            x = given[:, first:first + config.chunk_frames]
        else:
            x = torch.zeros(shape)
            for timestep in (torch.full(shape[:2], step) for step in config.denoising_steps):
                x = model(add_noise(x, torch.randn(shape, generator=random), timestep), timestep, context, **options)
        model(x, torch.zeros(shape[:2]), context, **options)  # the clean pass
        chunks.append(x)
    return torch.cat(chunks, 1)


def score_frames(frames, prompt):
    """Frames [F, 3, SIZE, SIZE] -> booleans [F, 3]: are colour, shape and place right?

    A place is right within 1.5 pixels of a path that the prompt allows: from its place, in its direction, at one of
    the speeds, with bounces. Of all such paths, the one that fits most frames counts.
    """
    colour, shape, place, way = parse(prompt)
    frames = ((torch.as_tensor(frames).double() + 1) / 2).clamp(0, 1)
    cover = frames.amax(1)
    inside = (cover > 0.5).double()
    seen = (inside.sum((1, 2)) > 15) & (inside.sum((1, 2)) < 120)
    means = (frames * inside.unsqueeze(1)).sum((2, 3)) / inside.sum((1, 2)).clamp(min=1).unsqueeze(1)
    distances = torch.cdist(means, vector(TABLES[0]))
    weight, grid = cover * (cover > 0.2), torch.arange(SIZE, dtype=torch.float64)
    total = weight.sum((1, 2)).clamp(min=1e-9)
    centres = torch.stack([(weight.sum(2) * grid).sum(1), (weight.sum(1) * grid).sum(1)], 1) / total.unsqueeze(1)
    fits = torch.stack([torch.minimum(cover, one).sum((1, 2)) / torch.maximum(cover, one).sum((1, 2))
                        for one in (coverage(name, centres) for name in SHAPES)], 1)
    offsets, speeds = (torch.linspace(*ends, dtype=torch.float64) for ends in ((-JITTER, JITTER, 6), (*SPEEDS, 51)))
    starts = vector(TABLES[2][place]) + torch.cartesian_prod(offsets, offsets)
    paths = path(starts[:, None], vector(TABLES[3][way]), speeds, len(frames))
    near = ((paths - centres).norm(dim=-1) < 1.5).flatten(0, 1)
    return torch.stack([seen & (distances.argmin(1) == colour) & (distances.amin(1) < 0.4),
                        seen & (fits.argmax(1) == shape) & (fits.amax(1) > 0.6),
                        seen & near[near.sum(1).argmax()]], 1)


def score(frames, prompt):
    """The share of frames with the right colour, the right shape and the right place."""
    return float(score_frames(frames, prompt).all(1).double().mean())


def write_sheet(videos, name):
    """A PNG, one line of frames a video; videos [S, F, 3, SIZE, SIZE]."""
    pixels = ((videos.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    pixels = functional.pad(pixels, (1, 1, 1, 1), value=90).permute(0, 3, 1, 4, 2).flatten(0, 1).flatten(1, 2)
    pixels = pixels.repeat_interleave(2, 0).repeat_interleave(2, 1)
    data = b"".join(b"\0" + line.numpy().tobytes() for line in pixels)
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2, 0, 0, 0)
    with open(name, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for part in (b"IHDR" + header, b"IDAT" + zlib.compress(data), b"IEND"):
            file.write(struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)))


def measure(model, count, seed):
    """Prints the score of videos from noise, and how well a true first chunk is continued."""
    captions, truth = batch(count, model.config.num_frames, seed)
    prompts = [prompt_of(ids) for ids in captions.tolist()]
    given = model.config.chunk_frames
    started = time.process_time()
    made, follows = generate(model, prompts, seed=seed), generate(model, prompts, seed=seed, given=truth[:, :given])
    print(f"{2 * count} videos in {time.process_time() - started:.1f} s of one core")
    for name, videos in (("from noise", made), ("true first chunk", follows), ("the truth itself", truth)):
        found = torch.stack([score_frames(*pair) for pair in zip(videos, prompts)]).double()
        print(f"{name}: score {found.prod(2).mean():.3f}; " + ", ".join(
            f"{part} {share:.3f}" for part, share in zip(("colour", "shape", "place"), found.mean((0, 1)))))
        print("    score by chunk:", *(f"{share:.2f}" for share in found.prod(2).mean(0).reshape(-1, given).mean(1)))
    for name, videos in (("true first chunk", follows), ("its last frame, repeated", truth[:, given - 1:given])):
        errors = (videos.clamp(-1, 1) - truth).square().mean((0, 2, 3, 4)).reshape(-1, given).mean(1)
        print(f"PSNR to the truth by chunk, {name}:", *(f"{10 * math.log10(4 / e):.1f}" for e in errors[1:]))


def loss_of(model, captions, videos, random):
    """Every chunk has its own noise level; three quarters of them are those of the denoising steps."""
    config = model.config
    shape = (len(videos), videos.shape[1] // config.chunk_frames)
    steps = torch.tensor(config.denoising_steps, dtype=torch.float32)
    timestep = torch.where(torch.rand(shape, generator=random) < 0.75,
                           steps[torch.randint(len(steps), shape, generator=random)],
                           1000 * (1 - torch.rand(shape, generator=random)))
    timestep = timestep.repeat_interleave(config.chunk_frames, 1)
    noisy = add_noise(videos, torch.randn(videos.shape, generator=random), timestep)
    # The model reads its own frames later, so the true frames that it reads have slight errors too.
    errors = 0.1 * torch.rand(len(videos), 1, 1, 1, 1, generator=random)
    known = videos + errors * torch.randn(videos.shape, generator=random)
    context = model.encode(words_of(captions))
    predicted = model(torch.cat([known, noisy], 1), torch.cat([0 * timestep, timestep], 1), context)
    weight = (1000 / timestep.clamp(min=100)).sqrt()
    error = (predicted[:, videos.shape[1]:] - videos).square().mean((2, 3, 4))
    return (weight * error).mean()


def train(arguments):
    torch.manual_seed(arguments.seed)
    checkpoint = pathlib.Path(arguments.work) / "checkpoint.pt"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    model = VideoModel(Config(frame_size=SIZE, num_words=21))
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(arguments.average))
    matrices = [p for name, p in model.blocks.named_parameters() if name.endswith("weight") and p.ndim == 2]
    others = [p for p in model.parameters() if all(p is not q for q in matrices)]
    optimizers = [torch.optim.Muon(matrices, lr=1, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
                  torch.optim.AdamW(others, lr=1, betas=(0.9, 0.98), weight_decay=0.0)]
    parts = {"model": model, "average": average, "optimizer": optimizers[1], "muon": optimizers[0]}
    first = 0
    if arguments.resume and checkpoint.exists():
        state = torch.load(checkpoint)
        first = state.pop("step")
        for name, part in parts.items():
            part.load_state_dict(state[name])
    whole = model.config.num_frames // model.config.chunk_frames  # chunks of a video
    started, total = time.time(), 0.0
    for step in range(first, arguments.steps):
        rate = arguments.learning_rate * min(1, (step + 1) / 50, (arguments.steps - step) / (0.5 * arguments.steps))
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
        seed = arguments.seed * 1_000_000 + step
        # Only a first chunk needs the words for place and direction, so every second update has first chunks alone.
        chunks = (whole, 1)[step % 2]
        captions, videos = batch(arguments.batch * whole // chunks, chunks * model.config.chunk_frames, seed)
        loss = loss_of(model, captions, videos, torch.Generator().manual_seed(seed))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        average.update_parameters(model)
        total += float(loss.detach())
        if (step + 1) % 100 == 0 or step + 1 == arguments.steps:
            print(f"step {step + 1}: loss {total / (step % 100 + 1):.5f}, {time.time() - started:.0f} s", flush=True)
            total = 0.0
            unfinished = checkpoint.with_suffix(".part")
            torch.save({"step": step + 1, **{name: part.state_dict() for name, part in parts.items()}}, unfinished)
            unfinished.replace(checkpoint)
            save(average.module, arguments.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train from random weights, on one thread")
    training.add_argument("--out", required=True, help="write config.json and model.safetensors to this folder")
    training.add_argument("--work", required=True, help="keep the checkpoint in this folder")
    training.add_argument("--resume", action="store_true", help="continue from the checkpoint in --work")
    training.add_argument("--steps", type=int, default=4200, help="set the number of updates (%(default)s)")
    training.add_argument("--batch", type=int, default=2, help="set the videos of an update (%(default)s)")
    training.add_argument("--learning-rate", type=float, default=3e-3, help="set the peak rate (%(default)s)")
    training.add_argument("--average", type=float, default=0.99, help="set the decay of the mean weights (%(default)s)")
    sampling = commands.add_parser("sample", help="make a video a prompt")
    sampling.add_argument("prompts", nargs="+", help=f"say what moves, e.g. {prompt_of([0, 0, 3, 5])!r}")
    sampling.add_argument("--sheet", required=True, help="write the frames to this PNG")
    scoring = commands.add_parser("score", help="measure a model on random prompts")
    scoring.add_argument("--prompts", type=int, default=64, help="set the number of prompts (%(default)s)")
    for command, seed in ((training, 1), (sampling, 0), (scoring, 900)):
        command.add_argument("--seed", type=int, default=seed, help="set the seed (%(default)s)")
        if command is not training:
            command.add_argument("--model", default="models/moving-shapes", help="name a folder (%(default)s)")
    arguments = parser.parse_args()
    if arguments.command == "train":
        train(arguments)
    elif arguments.command == "score":
        measure(load(arguments.model), arguments.prompts, arguments.seed)
    else:
        videos = generate(load(arguments.model), arguments.prompts, seed=arguments.seed)
        write_sheet(videos, arguments.sheet)
        for prompt, frames in zip(arguments.prompts, videos):
            print(f"score {score(frames, prompt):.2f}: {prompt}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
