#!/usr/bin/env python3
"""Time of a step of cached block decoding beside libllama doing the same, same checkpoint, prompt and threads.

    L and llama-build: as llama_cpp_pair.py says
    g++ -O3 -march=native -ffast-math -std=c++17 -I$L/include -I$L/ggml/include scripts/bench/llama_cpp/block_driver.cpp \
        -Lllama-build/bin -lllama -lggml -lggml-base -lggml-cpu -Wl,-rpath,$PWD/llama-build/bin -o llama-block-driver
    python scripts/bench/make_random_checkpoint.py build/sdar-0.6b --block-length 32
    python scripts/bench/llama_cpp/convert.py $L build/sdar-0.6b build/sdar-0.6b-bf16.gguf --type bf16
    python scripts/bench/llama_block_pair.py ./llama-block-driver build/sdar-0.6b build/sdar-0.6b-bf16.gguf

One token a step, greedy, on both sides. libllama computes the logits of masked positions only; its keys and values are
float16 (in float32: float32), its flash attention is on or off, whichever is faster. In float32 all tokens must be
equal, or the exit code is 1.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("driver", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="ours; the GGUF has theirs")
    parser.add_argument("--cache", default="blockd", help="ours")
    parser.add_argument("--no-logits", action="store_true", help="do not compare the first logits")
    pairs.add_run_options(parser, gen_length=32)
    parser.add_argument("--block-length", type=int, default=32)
    a = parser.parse_args()
    print(pairs.machine(a.threads))
    config = json.loads((a.model / "config.json").read_text())
    prompt = pairs.bench_prompt(a.context, config["vocab_size"], config["mask_token_id"])
    decoding = ["--gen-length", a.gen_length, "--block-length", a.block_length, "--denoising-steps", a.block_length,
                "--strategy", "low_confidence_static", "--cache", a.cache, "--dtype", a.dtype, "--threads", a.threads]

    def driver(flash, logits="-"):
        command = [a.driver, a.gguf, a.threads, a.gen_length, a.block_length, config["mask_token_id"],
                   "f32" if a.dtype == "float32" else "f16", flash, logits]
        result = subprocess.run(list(map(str, command)), input=" ".join(map(str, prompt)), capture_output=True, text=True)
        if result.returncode:
            sys.exit(f"{command}: exit code {result.returncode}\n{result.stderr}")
        return result.stdout

    def run_theirs(flash):
        return json.loads(driver(flash))

    def run_ours():
        return pairs.time_ours(a.model, [*decoding, "--context", a.context])

    print(f"{a.model.name}, {a.dtype} against {a.gguf.name}, prompt {a.context}, gen {a.gen_length}, B {a.block_length}")
    if not a.no_logits:
        compare_logits(a, driver, prompt, config)
    both = [run_theirs(flash) for flash in (0, 1)]
    flash = int(both[1]["blocks_s"] < both[0]["blocks_s"])
    _, tokens = pairs.decode_ours(a.model, prompt, decoding)
    equal = sum(tokens.get(i) == both[flash]["tokens"][i] for i in range(a.context, a.context + a.gen_length))
    print(f"  {equal} of {a.gen_length} tokens equal; their flash attention {'on' if flash else 'off'}")
    ours, theirs = pairs.by_turns(a.rounds, run_ours, lambda: run_theirs(flash))
    ms = lambda runs, name="blocks_s": [1e3 * run[name] / run["denoising_passes"] for run in runs]
    mine, his = ms(ours), ms(theirs)
    print(f"  blockscope: ms a step least / median / most {pairs.spread(mine)}")
    print(f"  libllama: ms a step {pairs.spread(his)}, of which llama_decode {pairs.spread(ms(theirs, 'forward_s'))}")
    print(f"  ms a step, ours over theirs: {pairs.ratios(mine, his)}")
    prefill = lambda runs: [run["prefill_s"] for run in runs]
    print(f"  prefill, s: blockscope {pairs.spread(prefill(ours))}, libllama block by block {pairs.spread(prefill(theirs))}")
    if a.dtype == "float32" and equal < a.gen_length:
        sys.exit("tokens differ")


def compare_logits(a, driver, prompt, config) -> None:
    """Says how near the logits of the prompt and of a block of masks are: `blockscope check` on theirs as reference."""
    import numpy as np
    import torch
    from safetensors.torch import save_file
    length = len(prompt) // a.block_length * a.block_length
    ids = torch.tensor([prompt[:length] + (prompt[length:] + [config["mask_token_id"]] * a.block_length)[:a.block_length]])
    with tempfile.TemporaryDirectory() as folder:
        raw, reference = pathlib.Path(folder) / "logits", pathlib.Path(folder) / "reference.safetensors"
        driver(0, raw)
        logits = torch.from_numpy(np.fromfile(raw, np.float32).reshape(ids.shape[1], -1))
        save_file({"input_ids": ids, "logits": logits}, reference,
                  metadata={"mask": "block_causal", "block_length": str(a.block_length)})
        result = subprocess.run([pairs.BINARY, "check", a.model, "--reference", reference, "--dtype", a.dtype],
                                capture_output=True, text=True)
        print("  logits: " + " ".join((result.stdout + result.stderr).split()))


if __name__ == "__main__":
    main()
