#!/usr/bin/env python3
"""Time of a step over the whole canvas (`--cache none`), compared with llama.cpp's diffusion example on the same
checkpoint, prompt, type and threads.

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

Both sides decide one token or more a step in blocks. Ours also runs one step a block, so both time the same passes.
"""

import argparse
import re

import llama_driver
import pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    llama_driver.add_options(parser, gen_length=256, dtype="float32")
    a = parser.parse_args()
    config, prompt = pairs.begin(a)
    length = a.context + a.gen_length

    def driver(logits="-"):
        return llama_driver.run(a, prompt, length, a.block_length, config["mask_token_id"], logits)

    def run_theirs():
        step, sampling = map(float, re.findall(r"time per step: ([\d.]+)ms, sampling time per step: ([\d.]+)ms", driver())[-1])
        return {"ms a step": step, "ms a step without their sampling": step - sampling}

    def run_ours():
        timing = pairs.time_ours(a.model, [
            "--context", a.context, "--gen-length", a.gen_length, "--block-length", a.block_length, "--cache", "none",
            "--denoising-steps", 1, "--dtype", a.dtype, "--threads", a.threads])
        step = 1e3 * timing["blocks_s"] / timing["denoising_passes"]
        return {"ms a step": step, "ms a step without their sampling": step}

    print(f"{config['model_type']}, {a.dtype} against {a.gguf.name}, canvas {length}, B {a.block_length}")
    ids = prompt + [config["mask_token_id"]] * a.gen_length
    print("  first pass's logits: " + llama_driver.compare_logits(a, driver, ids, mask="full"))
    pairs.compare(a, "llama.cpp", run_ours, run_theirs)


if __name__ == "__main__":
    main()
