"""What recording adds to a decoding step on a GPU, and what CUDA graphs save: `blockscope bench` of random weights,
level by level.

    python scripts/bench/gpu_decode.py BLOCKSCOPE [--shape 8b] [--contexts 2048 16384] [--device cuda]

Writes the checkpoint (16 GB for 8b: Qwen3-8B's shape) to --folder unless it exists, and keeps it. Times are
those of `bench`: medians of whole runs. Prints Markdown. If this Python has torch, it also prints the time that a launch
takes the host, and the total for the launches of a step (docs/cuda.md, "Launches").
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

SHAPES = {
    "8b": ["--layers", "36", "--hidden", "4096", "--intermediate", "12288", "--heads", "32", "--kv-heads", "8",
           "--positions", "262144"],
    "0.6b": ["--positions", "262144"],
    "moe": ["--family", "sdar_moe", "--positions", "262144"],  # 1B; a token uses 8 of 64 experts
    "tiny": ["--layers", "2", "--hidden", "64", "--intermediate", "128", "--heads", "4", "--kv-heads", "2", "--head-dim",
             "16", "--vocab", "512"],
}


def launch_cost(device):
    """Microseconds that the host takes to launch an operator on one element, and until the device has done it."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    x = torch.zeros(1, device=device)
    launches = 1000  # fewer than a stream's queue holds: the host never waits for a place in it
    queued, done = [], []
    for _ in range(7):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(launches):
            x.add_(1)
        queued.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
        done.append(time.perf_counter() - begin)
    return 1e6 * min(queued) / launches, 1e6 * min(done) / launches


def report_graphs(options, model, steps_ms, without_graphs):
    """What CUDA graphs gain, and what launching costs without them."""
    if steps_ms and len(steps_ms) == len(without_graphs):
        ratios = [graph / plain for graph, plain in zip(steps_ms, without_graphs)]
        print(f"Unrecorded steps as CUDA graphs take {min(ratios):.2f} to {max(ratios):.2f} times as long as launched one by one.")
        print(f"result: graphs_{options.shape} = {max(ratios):.2f}")
    cost = launch_cost(options.device)
    if cost and without_graphs and options.shape != "moe":
        layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
        launches = 29 + 10 * layers
        print(f"A launch takes the host {cost[0]:.1f} us, with the device's work {cost[1]:.1f} us (`add_` on one element, from "
              f"Python). Without graphs an unrecorded step of {layers} layers has 29 + 10 * {layers} = {launches} of them: "
              f"{1e-3 * launches * cost[0]:.2f} ms of the {min(without_graphs):.2f} ms that the fastest such step above took.")
        print(f"result: launch_us = {cost[0]:.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("blockscope")
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--contexts", type=int, nargs="+", default=[2048, 16384])
    parser.add_argument("--levels", default="off,summary,outputs")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/bench/models"))
    options = parser.parse_args()
    model = options.folder / f"gpu-{options.shape}-random"
    if not (model / "config.json").exists():
        maker = pathlib.Path(__file__).with_name("make_random_checkpoint.py")
        subprocess.run([sys.executable, maker, model, *SHAPES[options.shape], "--block-length", "32"], check=True)
    print("| context | level | prefill, s | ms a step | overhead | least to most | trace, MB |")
    print("|---|---|---|---|---|---|---|")
    worst = {}
    steps_ms = []
    without_graphs = []

    def bench(context, levels, *more):
        return subprocess.run(
            [options.blockscope, "bench", model, "--device", options.device, "--dtype", "bfloat16", "--context",
             str(context), "--gen-length", "64", "--levels", levels, "--runs", str(options.runs), "--json", *more],
            capture_output=True, text=True)

    for context in options.contexts:
        done = bench(context, options.levels)
        plain = bench(context, "off,summary", "--no-graphs")
        if done.returncode != 0 or plain.returncode != 0:
            print(f"| {context} | failed: {(done.stderr + plain.stderr).strip().splitlines()[-1]} | | | | | |")
            continue
        for run in json.loads(plain.stdout):
            step_ms = 1e3 * run["blocks_s"] / max(1, run["denoising_passes"])
            if run["level"] == "off":
                without_graphs.append(step_ms)
            print(f"| {context} | {run['level']}, without graphs | {run['prefill_s']:.3f} | {step_ms:.2f} | | | |", flush=True)
        for run in json.loads(done.stdout):
            percent = 100 * run["overhead"]
            worst[run["level"]] = max(percent, worst.get(run["level"], percent))
            if run["level"] == "off":
                steps_ms.append(1e3 * run["blocks_s"] / max(1, run["denoising_passes"]))
            print(f"| {context} | {run['level']} | {run['prefill_s']:.3f} | "
                  f"{1e3 * run['blocks_s'] / max(1, run['denoising_passes']):.2f} | {percent:+.1f} % | "
                  f"{100 * run['overhead_least']:+.0f} to {100 * run['overhead_most']:+.0f} % | "
                  f"{run['file_bytes'] / 1e6:.1f} |", flush=True)
    print()
    report_graphs(options, model, steps_ms, without_graphs)
    for level in ("summary", "outputs"):
        if level in worst:
            print(f"result: decode_{level}_{options.shape} = {worst[level]:.1f} %")
    return 0 if worst else 1


if __name__ == "__main__":
    sys.exit(main())
