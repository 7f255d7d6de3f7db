"""Oracle A: logits of transformers' models (eager, float32), or of llada2_model.py (float64), with a causal
and with a 4-D block-causal mask against `blockscope check`, for every spec of checkpoints.py."""

import json
import pathlib
import textwrap

import harness
import torch
from checkpoints import SPECS, block_causal_mask, spec_of, write_checkpoint
from safetensors.torch import save_file

LENGTH = 43  # not a multiple of any block length used
TOLERANCE = 1e-4
HALF_TOLERANCE = 3e-2


def reference_logits(model, ids, block_length):
    with torch.no_grad():
        return model(ids, attention_mask=block_causal_mask(ids.shape[1], block_length),
                     position_ids=torch.arange(ids.shape[1])[None]).logits[0]


def save_reference(path, ids, logits, block_length):
    metadata = {"mask": "causal"} if block_length == 1 else {
        "mask": "block_causal", "block_length": str(block_length)}
    save_file({"input_ids": ids, "logits": logits.contiguous()}, path, metadata=metadata)


def check_spec(folder, name):
    spec = spec_of(name)
    model = write_checkpoint(folder / name, spec)
    generator = torch.Generator().manual_seed(100 + spec["seed"])
    ids = torch.randint(0, spec["vocab"], (1, LENGTH), generator=generator)
    worst = 0.0
    for block_length in (1, spec["block_length"], 7):
        logits = reference_logits(model, ids, block_length)
        if block_length == 1 and spec["model_type"] != "llada2_moe":
            # transformers' own causal mask says the same
            own = model(ids).logits[0]
            harness.require(torch.equal(own, logits) or (own - logits).abs().max() < 1e-4,
                            f"{name}: the oracle's causal mask is wrong")
        reference = folder / f"{name}-{block_length}.safetensors"
        save_reference(reference, ids, logits, block_length)
        report = json.loads(harness.run("check", folder / name, "--reference", reference,
                                        "--dtype", "float32", "--tol", TOLERANCE, "--json",
                                        "--threads", 1))
        harness.require(report["argmax_agreement"] == LENGTH, f"{name}: argmax differs: {report}")
        harness.require(report["block_length"] == block_length, f"{name}: wrong mask: {report}")
        worst = max(worst, report["relative_error"])
    # Computed in the stored type: as near as that type allows, which is what the same model of transformers
    # does in it. In bfloat16 a router of random weights
    # is often near a tie, and another expert is another row: nothing bounds the difference.
    if spec["dtype"] != "float32" and not spec["experts"]:
        own = reference_logits(model.to(getattr(torch, spec["dtype"])), ids, block_length).float()
        error = float((own - logits).abs().max() / (logits.max() - logits.min()))
        harness.run("check", folder / name, "--reference", reference, "--tol",
                    max(HALF_TOLERANCE, 1.5 * error))
    return worst


def check_the_help(folder):
    """The Python lines of `blockscope check --help` write a reference that passes."""
    lines = harness.run("check", "--help").splitlines()
    first = next(i for i, line in enumerate(lines) if "import torch" in line)
    last = next(i for i, line in enumerate(lines) if line.startswith("Exit codes"))
    reference = folder / "ref.safetensors"
    code = textwrap.dedent("\n".join(lines[first:last])).replace("ref.safetensors", str(reference))
    exec(code, {"path": str(folder / "qwen3-g2")})
    harness.run("check", folder / "qwen3-g2", "--reference", reference, "--dtype", "float32")


def check_that_differences_are_found(folder):
    """One changed logit, the wrong mask, the wrong weights: exit code 1. Bad flags: 2."""
    name = "sdar-g2"
    reference = folder / f"{name}-4.safetensors"
    harness.run("check", folder / name, "--reference", folder / "sdar-yarn-8.safetensors",
                "--dtype", "float32", expect=1)
    from safetensors import safe_open
    with safe_open(reference, "pt") as file:
        ids, logits = file.get_tensor("input_ids"), file.get_tensor("logits")
    bad = folder / "bad.safetensors"
    changed = logits.clone()
    changed[17, 5] += 3e-4 * float(logits.max() - logits.min())
    save_reference(bad, ids, changed, 4)
    text = harness.run("check", folder / name, "--reference", bad, "--dtype", "float32", expect=1)
    harness.require("BEYOND" in text and " 17 " in text, f"the changed position is not named: {text}")
    harness.run("check", folder / name, "--reference", bad, "--dtype", "float32", "--tol", 4e-4)
    save_reference(bad, ids, logits, 5)
    harness.run("check", folder / name, "--reference", bad, "--dtype", "float32", expect=1)
    changed[:] = logits
    changed[3, 3] = float("nan")
    save_reference(bad, ids, changed, 4)
    harness.run("check", folder / name, "--reference", bad, "--dtype", "float32", expect=1)
    save_reference(bad, ids, logits[:-1], 4)  # misshapen
    harness.run("check", folder / name, "--reference", bad, expect=1)
    harness.run("check", folder / name, expect=2)
    harness.run("check", folder / name, "--reference", reference, "--tol", -1, expect=2)


def main():
    harness.start()
    with harness.temporary_folder() as path:
        folder = pathlib.Path(path)
        for name in SPECS:
            print(f"{name:24} max abs error {check_spec(folder, name):.2e} of the logit range")
        check_the_help(folder)
        check_that_differences_are_found(folder)


if __name__ == "__main__":
    main()
