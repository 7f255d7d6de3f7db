#!/usr/bin/env python3
"""Time of a step of cached block decoding, compared with libllama on the same checkpoint, prompt and threads.

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

import llama_driver
import pairs


def milliseconds(run):
    steps = run["denoising_passes"]
    return {"ms a step": 1e3 * run["blocks_s"] / steps, "of which in forward passes": 1e3 * run["forward_s"] / steps,
            "prefill, ms": 1e3 * run["prefill_s"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    llama_driver.add_options(parser, gen_length=32, dtype="bfloat16")
    parser.add_argument("--cache", default="blockd", help="ours")
    parser.add_argument("--no-logits", action="store_true", help="do not compare the first logits")
    a = parser.parse_args()
    config, prompt = pairs.begin(a)
    decoding = ["--gen-length", a.gen_length, "--block-length", a.block_length, "--denoising-steps", a.block_length,
                "--strategy", "low_confidence_static", "--cache", a.cache, "--dtype", a.dtype, "--threads", a.threads]

    def driver(flash, logits="-"):
        return llama_driver.run(a, prompt, a.gen_length, a.block_length, config["mask_token_id"],
                                "f32" if a.dtype == "float32" else "f16", flash, logits)

    print(f"{a.model.name}, {a.dtype} against {a.gguf.name}, prompt {a.context}, gen {a.gen_length}, B {a.block_length}")
    if not a.no_logits:  # logits of the prompt and of a block of masks
        whole = len(prompt) // a.block_length * a.block_length
        block = prompt[whole:] + [config["mask_token_id"]] * a.block_length
        logits = llama_driver.compare_logits(a, lambda path: driver(0, path), prompt[:whole] + block[:a.block_length],
                                             mask="block_causal", block_length=str(a.block_length))
        print("  logits: " + logits)
    both = [json.loads(driver(flash)) for flash in (0, 1)]
    flash = int(both[1]["blocks_s"] < both[0]["blocks_s"])
    _, tokens = pairs.decode_ours(a.model, prompt, decoding)
    equal = pairs.equal_tokens(a, tokens, both[flash]["tokens"])
    print(f"  {equal} of {a.gen_length} tokens equal; their flash attention {'on' if flash else 'off'}")
    pairs.compare(a, "libllama", lambda: milliseconds(pairs.time_ours(a.model, [*decoding, "--context", a.context])),
                  lambda: milliseconds(json.loads(driver(flash))))
    pairs.finish(a, equal == a.gen_length)


if __name__ == "__main__":
    main()
