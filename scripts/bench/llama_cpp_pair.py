#!/usr/bin/env python3
"""Time of a step over the whole canvas (`--cache none`) beside llama.cpp's diffusion example, same checkpoint, prompt,
type and threads.

    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36 && tar xzf llama_cpp_python-*.tar.gz
    L=$PWD/llama_cpp_python-0.3.36/vendor/llama.cpp
    cmake -S $L -B llama-build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TOOLS=OFF && ninja -C llama-build llama
    g++ -O2 -std=c++17 -Iscripts/bench/llama_cpp -I$L/include -I$L/ggml/include -I$L/examples/diffusion \
        scripts/bench/llama_cpp/driver.cpp $L/examples/diffusion/diffusion.cpp \
        -Lllama-build/bin -lllama -lggml -lggml-base -lggml-cpu -Wl,-rpath,$PWD/llama-build/bin -o llama-driver
    python scripts/bench/make_random_checkpoint.py build/llada-150m --family llada
    python scripts/bench/llama_cpp/convert.py $L build/llada-150m build/llada-150m-f32.gguf --type f32
    python scripts/bench/llama_cpp_pair.py ./llama-driver build/llada-150m build/llada-150m-f32.gguf --dtype float32

Both sides decide one token or more a step in blocks; ours runs one step a block too, so that both time the same passes.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("driver", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="ours; the GGUF has theirs")
    pairs.add_run_options(parser)
    parser.add_argument("--block-length", type=int, default=32)
    a = parser.parse_args()
    print(pairs.machine(a.threads))
    config = json.loads((a.model / "config.json").read_text())
    length = a.context + a.gen_length
    prompt = pairs.bench_prompt(a.context, config["vocab_size"], config["mask_token_id"])

    def driver(logits="-"):
        command = [a.driver, a.gguf, a.threads, length, a.block_length, config["mask_token_id"], logits]
        result = subprocess.run(list(map(str, command)), input=" ".join(map(str, prompt)), capture_output=True, text=True)
        if result.returncode:
            sys.exit(f"{command}: exit code {result.returncode}\n{result.stderr}")
        return result.stdout

    def run_theirs():
        times = re.findall(r"time per step: ([\d.]+)ms, sampling time per step: ([\d.]+)ms", driver())[-1]
        return float(times[0]), float(times[1])

    def run_ours():
        timing = pairs.time_ours(a.model, [
            "--context", a.context, "--gen-length", a.gen_length, "--block-length", a.block_length, "--cache", "none",
            "--denoising-steps", 1, "--dtype", a.dtype, "--threads", a.threads])
        return 1e3 * timing["blocks_s"] / timing["denoising_passes"]

    print(f"{config['model_type']}, {a.dtype} against {a.gguf.name}, canvas {length}, B {a.block_length}")
    compare_logits(a, driver, prompt, config, length)
    ours, theirs = pairs.by_turns(a.rounds, run_ours, run_theirs)
    whole = [step for step, _ in theirs]
    bare = [step - sampling for step, sampling in theirs]
    print(f"  blockscope: ms a step least / median / most {pairs.spread(ours)}")
    print(f"  llama.cpp: ms a step {pairs.spread(whole)}, of which sampling {pairs.spread([s for _, s in theirs])}")
    print(f"  ms a step, ours over theirs: {pairs.ratios(ours, whole)}; without their sampling {pairs.ratios(ours, bare)}")


def compare_logits(a, driver, prompt, config, length) -> None:
    """Says how near the first pass's logits are: `blockscope check` on theirs as the reference."""
    import numpy as np
    import torch
    from safetensors.torch import save_file
    with tempfile.TemporaryDirectory() as folder:
        raw, reference = pathlib.Path(folder) / "logits", pathlib.Path(folder) / "reference.safetensors"
        driver(raw)
        logits = torch.from_numpy(np.fromfile(raw, np.float32).reshape(length, -1))
        ids = torch.tensor([prompt + [config["mask_token_id"]] * a.gen_length])
        save_file({"input_ids": ids, "logits": logits}, reference, metadata={"mask": "full"})
        result = subprocess.run([pairs.BINARY, "check", a.model, "--reference", reference, "--dtype", a.dtype],
                                capture_output=True, text=True)
        print("  first pass's logits: " + " ".join((result.stdout + result.stderr).split()))


if __name__ == "__main__":
    main()
