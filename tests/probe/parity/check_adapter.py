"""`check --adapter` and the merged weights against transformers' models whose weights were summed in float64: PEFT's
formats of ranks, scales, layers and dtypes."""

import json
import math
import pathlib

import harness
import torch
from check_logits import reference_logits, save_reference
from checkpoints import spec_of, write_checkpoint
from safetensors.torch import save_file

TOLERANCE = 1e-4
LENGTH = 29
CASES = {
    "plain": ("sdar-g2", {}),
    "one module": ("sdar-g3-tied", {"target_modules": ["self_attn.o_proj"]}),
    "rslora, whole name": ("qwen2-g2", {"use_rslora": True, "target_modules": [
        "model.layers.0.self_attn.q_proj", "v_proj"]}),
    "patterns": ("sdar-mqa-bias-sharded", {"rank_pattern": {"k_proj": 5, "layers.1.self_attn.o_proj": 2},
                                           "alpha_pattern": {"q_proj": 3.5}}),
    "layers": ("sdar-g4-bf16-sharded", {"layers_to_transform": [1], "target_modules": ["q_proj", "k_proj"]}),
    "one layer, half": ("sdar-g1-fp16", {"layers_to_transform": 0, "init_lora_weights": "gaussian"}),
    "experts": ("qwen3moe-8", {"lora_dropout": 0.3, "inference_mode": False, "revision": "main"}),
}


def applies(name, module):
    return module == name or module.endswith("." + name)


def pattern_value(pattern, module, usual):
    return next((value for name, value in pattern.items() if applies(name, module)), usual)


def write_adapter(folder, spec, model, changes, dtype):
    """A random adapter; adds its sums to the model's weights."""
    folder.mkdir()
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "somewhere", "r": 4,
              "lora_alpha": 6, "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": False, "use_dora": False,
              "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"], "rank_pattern": {}, "alpha_pattern": {},
              "modules_to_save": None, "init_lora_weights": True, "layers_to_transform": None} | changes
    (folder / "adapter_config.json").write_text(json.dumps(config))
    layers = config["layers_to_transform"]
    layers = range(spec["layers"]) if layers is None else [layers] if isinstance(layers, int) else layers
    generator, tensors = torch.Generator().manual_seed(5), {}
    parameters = dict(model.named_parameters())
    for layer in layers:
        for letter in "qkvo":
            module = f"model.layers.{layer}.self_attn.{letter}_proj"
            if not any(applies(name, module) for name in config["target_modules"]):
                continue
            rank = pattern_value(config["rank_pattern"], module, config["r"])
            alpha = pattern_value(config["alpha_pattern"], module, config["lora_alpha"])
            weight = parameters[module + ".weight"]
            a = (0.3 * torch.randn(rank, weight.shape[1], generator=generator)).to(dtype)
            b = (0.3 * torch.randn(weight.shape[0], rank, generator=generator)).to(dtype)
            tensors |= {f"base_model.model.{module}.lora_A.weight": a, f"base_model.model.{module}.lora_B.weight": b}
            scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
            with torch.no_grad():
                weight.copy_((weight.double() + scale * (b.double() @ a.double())).float())
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def check_case(folder, name, index):
    spec_name, changes = CASES[name]
    spec = spec_of(spec_name)
    model = write_checkpoint(folder / f"model{index}", spec)
    ids = torch.randint(0, spec["vocab"], (1, LENGTH), generator=torch.Generator().manual_seed(index))
    before = reference_logits(model, ids, spec["block_length"])
    dtype = (torch.float32, torch.bfloat16, torch.float16)[index % 3]
    adapter = write_adapter(folder / f"adapter{index}", spec, model, changes, dtype)
    logits = reference_logits(model, ids, spec["block_length"])
    span = float(logits.max() - logits.min())
    harness.require(float((logits - before).abs().max()) > 0.05 * span, f"{name}: the adapter changes too little to be judged")
    reference = folder / f"reference{index}.safetensors"
    save_reference(reference, ids, logits, spec["block_length"])
    report = json.loads(harness.run("check", folder / f"model{index}", "--adapter", adapter, "--reference", reference,
                                    "--dtype", "float32", "--tol", TOLERANCE, "--json", "--threads", 1))
    harness.require(report["argmax_agreement"] == LENGTH, f"{name}: argmax differs: {report}")
    return report["relative_error"]


def main():
    harness.start()
    with harness.temporary_folder() as path:
        for index, name in enumerate(CASES):
            print(f"{name:20} max abs error {check_case(pathlib.Path(path), name, index):.2e} of the logit range")


if __name__ == "__main__":
    main()
