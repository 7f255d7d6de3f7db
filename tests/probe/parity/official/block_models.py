"""Whole answers of Stable-DiffCoder's and dLLM's own decoders, compared with `blockscope capture`.

python block_models.py stable-diffcoder FILE    FILE: the published modeling file of Stable-DiffCoder-8B-Instruct
python block_models.py dllm FOLDER              FOLDER: a work tree of ZHZisZZ/dllm

Random checkpoints of ../checkpoints.py, float32, greedy. Stable-DiffCoder: with thresholds and quotas, prompts that fill
their last block and that do not, with and without an end token. dLLM: prompts that fill their last block, because
its sampler counts blocks from the prompt's end. Needs BLOCKSCOPE_BINARY, torch, transformers, h5py.
"""

import importlib.util
import json
import pathlib
import sys
import types

import torch
import transformers

PARITY = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PARITY), str(PARITY.parents[1] / "support")]

import harness  # noqa: E402
from checkpoints import mask_id, model_config, spec_of, write_checkpoint  # noqa: E402
from trace_file import Trace  # noqa: E402

LENGTHS = [3, 4, 7, 12, 21, 30]


def loaded(path, name, package=""):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    module.__package__ = package
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def our_answer(folder, checkpoint, prompt, gen_length, strategy, steps, stop=None, more=()):
    """-> token of each position that the answer decided."""
    flags = ["--stop-id", stop] if stop is not None else []
    harness.run("capture", checkpoint, "--input-ids", ",".join(map(str, prompt)), "--gen-length", gen_length,
                "--strategy", strategy, "--denoising-steps", steps, "-o", folder / "run.h5", "--force", "--quiet",
                "--dtype", "float32", "--threads", 1, *flags, *more)
    trace = Trace(folder / "run.h5")
    answer = {}
    for row in trace.rows_of(0):
        positions, tokens, _ = trace.delta(int(row))
        answer |= dict(zip(positions, tokens, strict=True))
    return [answer[position] for position in sorted(answer)]


def prompts_of(spec, lengths):
    generator = torch.Generator().manual_seed(900 + spec["seed"])
    return [torch.randint(0, spec["vocab"] - 5, (n,), generator=generator).tolist() for n in lengths]


def compare(name, ours, theirs, stop):
    if stop in theirs:
        theirs = theirs[:theirs.index(stop) + 1]
    harness.require(ours[:len(theirs)] == theirs, f"{name}:\n  ours   {ours}\n  theirs {theirs}")
    return len(theirs)


def crop_to_a_length():
    """The file is for transformers 5.3, whose cache was cropped to a length; newer ones take what to remove."""
    remove = transformers.DynamicCache.crop

    def crop(cache, length):
        if cache.get_seq_length() > length:
            remove(cache, length - cache.get_seq_length())

    transformers.DynamicCache.crop = crop


def stable_diffcoder(folder, file):
    crop_to_a_length()
    kind = loaded(file, "stable_diffcoder").StableDiffcoderForCausalLM
    runs = tokens = stopped = left_out = 0
    for name in ("stable-diffcoder", "stable-diffcoder-mqa-bf16"):
        spec = spec_of(name)
        state = write_checkpoint(folder / name, spec).state_dict()
        model = kind(model_config(spec)).eval()
        model.load_state_dict(state)
        for prompt in prompts_of(spec, LENGTHS):
            for threshold, steps in ((0.05, 4), (0.3, 4), (0.9, 4), (None, 1), (None, 2), (None, 4)):
                strategy = "low_confidence_static" if threshold is None else f"threshold,threshold={threshold}"
                stop = None
                for _ in range(2):  # the second time an answer's token ends it
                    try:
                        theirs, _ = model.generate_block(
                            torch.tensor([prompt]), steps=4 * steps, gen_length=16, block_length=4,
                            threshold=threshold, mask_id=mask_id(spec), eos_id=stop)
                    except RuntimeError:  # a position took [MASK], so the block was never stored
                        left_out += 1
                        break
                    whole = (len(prompt) + 16) // 4 * 4  # theirs cuts the last block at the length, ours never
                    theirs = theirs[0, len(prompt):whole].tolist()
                    ours = our_answer(folder, folder / name, prompt, 16, strategy, steps, stop)
                    tokens += compare(f"{name} {len(prompt)} {strategy} {steps} {stop}", ours, theirs, stop)
                    runs += 1
                    stopped += stop is not None
                    stop = theirs[5] if stop is None else stop
    print(f"stable-diffcoder: {runs} answers, {stopped} of them with an end token, {tokens} tokens equal; "
          f"{left_out} left out")


def dllm(folder, source):
    root = pathlib.Path(source) / "dllm"
    for package in ("dllm", "dllm.core", "dllm.core.samplers", "dllm.core.schedulers"):  # without their __init__
        module = sys.modules[package] = types.ModuleType(package)
        module.__path__ = [str(root.parent / package.replace(".", "/"))]
    alpha = loaded(root / "core/schedulers/alpha.py", "dllm.core.schedulers.alpha", "dllm.core.schedulers")
    for name in ("BaseAlphaScheduler", "LinearAlphaScheduler"):
        setattr(sys.modules["dllm.core.schedulers"], name, getattr(alpha, name))
    loaded(root / "core/samplers/utils.py", "dllm.core.samplers.utils", "dllm.core.samplers")
    loaded(root / "core/samplers/base.py", "dllm.core.samplers.base", "dllm.core.samplers")
    sampler = loaded(root / "core/samplers/bd3lm.py", "dllm.core.samplers.bd3lm", "dllm.core.samplers").BD3LMSampler
    runs = tokens = 0
    for name in ("a2d-qwen3-tied", "a2d-qwen2"):
        spec = spec_of(name)
        model = write_checkpoint(folder / name, spec)
        model.set_attn_implementation("sdpa")  # its masks are boolean
        tokenizer = types.SimpleNamespace(mask_token_id=mask_id(spec), pad_token_id=spec["vocab"] - 1, bos_token_id=0,
                                          eos_token_id=None)
        for prompt in prompts_of(spec, [8, 24, 40]):
            for steps in (1, 2, 4, 8):
                theirs = sampler(model, tokenizer).sample([prompt], steps_per_block=steps, steps=steps, block_size=8,
                                                          max_new_tokens=24)[0, len(prompt):].tolist()
                ours = our_answer(folder, folder / name, prompt, 24, "low_confidence_static", steps,
                                  more=("--block-length", 8))
                tokens += compare(f"{name} {len(prompt)} {steps}", ours, theirs, None)
                runs += 1
    print(f"dllm: {runs} answers, {tokens} tokens equal")


def main():
    harness.start()
    with harness.temporary_folder() as path:
        {"stable-diffcoder": stable_diffcoder, "dllm": dllm}[sys.argv[1]](pathlib.Path(path), sys.argv[2])


if __name__ == "__main__":
    main()
