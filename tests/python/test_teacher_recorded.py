"""`blockscope diff --teacher` of recorded models with experts: router choices against transformers' own, near-ties
against NumPy, sequences in another order, and the runtime against transformers with planted mistakes."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
from conftest import BINARY  # noqa: E402

MASK, SIZE, EXPERTS, CHOSEN = 96, 4, 8, 3
PROMPTS = [[5 * i % 90 for i in range(12)], [7 * i % 90 for i in range(16)]]


def moe(**changes):
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(3)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**{
        **dict(vocab_size=97, hidden_size=48, intermediate_size=64, moe_intermediate_size=32, num_hidden_layers=4,
               num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=EXPERTS,
               num_experts_per_tok=CHOSEN, norm_topk_prob=True, initializer_range=0.2, max_position_embeddings=256,
               mlp_only_layers=[1]), **changes})).eval()


def record(path, model, prompts=PROMPTS, per_step=2, **options):
    options = dict(level="full", router=True, array_type="f32", set_size=4) | options
    with torch.no_grad(), blockscope.record(model, path, block_length=SIZE, mask_token_id=MASK, gen_length=8,
                                            **options) as run:
        for prompt in prompts:
            run.end_sequence(models.decode_qwen_blocks(model, torch.tensor([prompt]), 8, SIZE, MASK, per_step))
    return path


def denoising(file):
    return np.flatnonzero(file["/steps/kind"][:int(file["/steps/committed"][0])] == 1)


def test_router_choices(tmp_path):
    """Those that transformers' routers return, by falling weight."""
    model, seen = moe(), {0: [], 2: [], 3: []}
    for layer, kept in seen.items():
        model.model.layers[layer].mlp.gate.register_forward_hook(lambda module, args, out, kept=kept: kept.append(out))
    path = record(tmp_path / "run.h5", model, PROMPTS[:1])
    with h5py.File(path) as file:
        assert (file.attrs["num_experts"], file.attrs["experts_per_token"]) == (EXPERTS, CHOSEN)
        expert, weight = file["/router/expert"], file["/router/weight"]
        assert expert.shape[1:] == (4, SIZE, CHOSEN)
        for row in denoising(file):  # a row for each pass
            assert (expert[row, 1] == -1).all() and np.isnan(weight[row, 1]).all()
            for layer, passes in seen.items():
                _, theirs, chosen = passes[row]
                order = theirs.argsort(stable=True, dim=-1, descending=True)
                assert np.array_equal(expert[row, layer], chosen.gather(1, order).numpy())
                assert np.array_equal(weight[row, layer], theirs.gather(1, order).numpy())
    analysis = blockscope.open(path).analyze("router")
    assert float(analysis.entropy.sel(layer=0)) > 0


def test_router_refusals(tmp_path):
    with pytest.raises(blockscope.UsageError, match="router: no layer has a router that can be seen"):
        record(tmp_path / "dense.h5", models.qwen3())
    with pytest.raises(blockscope.UsageError, match="router: does nothing without level"):
        record(tmp_path / "low.h5", moe(), level="trajectory")
    with pytest.raises(blockscope.UsageError, match="router: expected a model that is whole in one process"):
        record(tmp_path / "ranks.h5", moe(), ranks="heads")


def test_sequences_in_another_order(tmp_path):
    a = record(tmp_path / "a.h5", moe())
    b = record(tmp_path / "b.h5", moe(), PROMPTS[::-1])
    found = blockscope.compare(a, b, teacher=True)
    assert found.equal and found.data["sequences"] == 2 and found.data["rows"] == found.data["recorded_rows"] > 4
    with h5py.File(b, "r+") as file:
        row = int(denoising(file)[1])
        file["/hidden/hidden"][row, 3, 1, 7] += 2
    first = blockscope.compare(a, b, teacher=True).first
    assert (first["sequence_a"], first["sequence_b"], first["row_b"], first["layer"]) == (1, 0, row, 3)
    assert first["row_a"] != row and "TeacherComparison: first hidden at row_a" in repr(
        blockscope.compare(a, b, teacher=True))
    found.save(tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text()) == found.data


def test_steps_that_only_one_has(tmp_path):
    """A model whose predictions depend on nothing but the token itself, decoded with one and with two steps a block."""
    model = moe()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            for name, weight in layer.mlp.named_parameters():
                if "down_proj" in name:
                    weight.zero_()
    two, one = record(tmp_path / "two.h5", model), record(tmp_path / "one.h5", model, per_step=SIZE)
    for a, b, note in ((two, one, "4 steps only in A: not compared"), (one, two, "4 steps only in B: not compared")):
        found = blockscope.compare(a, b, teacher=True)
        assert found.equal and found.data["rows"] == 4 and found.data["notes"] == [note], found.data["notes"]


GAPS = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1)


def gap_of(a, b, weights_a, weights_b):
    """NumPy's answer for one token: the swapped experts' weights in pairs, and against experts that both chose."""
    pairs = []
    for mine, theirs, weights in ((a, b, weights_a), (b, a, weights_b)):
        common = [w for e, w in zip(mine, weights) if e in theirs]
        pairs += [(w, min(common)) for e, w in zip(mine, weights) if e not in theirs and common and w > min(common)]
    only_a, only_b = (sorted((w for e, w in zip(x, weights) if e not in y), reverse=True)
                      for x, y, weights in ((a, b, weights_a), (b, a, weights_b)))
    return max(abs(x - y) / max(x, y) for x, y in [*pairs, *zip(only_a, only_b)])


def test_experts_that_differ_at_a_tie_and_elsewhere(tmp_path):
    a = record(tmp_path / "a.h5", moe())
    b = pathlib.Path(shutil.copy(a, tmp_path / "b.h5"))
    random, wanted = np.random.default_rng(2), np.zeros((4, len(GAPS) + 1), int)
    with h5py.File(a) as old, h5py.File(b, "r+") as file:
        rows = denoising(file)
        planted = []
        for row in rows:
            for layer in (0, 2, 3):
                for position in range(SIZE):
                    if random.random() > 0.4:
                        continue
                    chosen = file["/router/expert"][row, layer, position]
                    weights = file["/router/weight"][row, layer, position].astype(np.float64)
                    slot = int(random.integers(CHOSEN))
                    chosen[slot] = next(e for e in range(EXPERTS) if e not in chosen)
                    weights[slot] *= 1 - 10 ** random.uniform(-8, -0.3)
                    file["/router/expert"][row, layer, position] = chosen
                    file["/router/weight"][row, layer, position] = weights
                    gap = gap_of(old["/router/expert"][row, layer, position].tolist(), chosen.tolist(),
                                 old["/router/weight"][row, layer, position].astype(float).tolist(),
                                 file["/router/weight"][row, layer, position].astype(float).tolist())
                    wanted[layer, int(np.searchsorted(GAPS, gap))] += 1
                    planted.append((int(row), layer, position, gap))
    found = blockscope.compare(a, b, teacher=True)
    assert [list(layer["gaps"]) for layer in found["expert"] and found.data["experts"]] == wanted.tolist()
    assert (wanted.sum(0) > 0).sum() >= 4  # gaps of most sizes
    for layer in found.data["experts"]:
        assert layer["different"] == layer["swapped"] == wanted[layer["layer"]].sum() and layer["unknown"] == 0
        assert layer["tokens"] == (0 if layer["layer"] == 1 else len(rows) * SIZE)
    row, layer, position, gap = planted[0]
    first = found.first
    assert (first["quantity"], first["row_a"], first["layer"], first["position"]) == ("expert", row, layer, position)
    assert abs(first["relative"] - gap) < 1e-9 and len(set(first["experts_a"]) - set(first["experts_b"])) == 1
    assert found["router_weight"]["different"] == 0  # compared where both chose the same experts
    said = subprocess.run([BINARY, "diff", a, b, "--teacher"], capture_output=True, text=True)
    assert said.returncode == 1 and "by how near a tie they were" in said.stdout
    total = 100 * wanted.sum() / (len(rows) * SIZE * 3)
    assert f"{total:.2f} %" in said.stdout


def test_one_router_weight(tmp_path):
    a = record(tmp_path / "a.h5", moe())
    b = shutil.copy(a, tmp_path / "b.h5")
    with h5py.File(b, "r+") as file:
        row = int(denoising(file)[2])
        chosen, weights = file["/router/expert"][row, 2, 3], file["/router/weight"][row, 2, 3]
        order = [1, 0, 2]  # the order of equal sets does not count
        weights[1] += 0.05
        file["/router/expert"][row, 2, 3], file["/router/weight"][row, 2, 3] = chosen[order], weights[order]
    found = blockscope.compare(a, b, teacher=True)
    first = found.first
    assert (first["quantity"], first["row_a"], first["layer"], first["position"]) == ("router_weight", row, 2, 3)
    assert first["experts_a"] == [chosen[1]] and abs(first["b"] - first["a"] - 0.05) < 1e-6
    assert (found["expert"]["different"], found["router_weight"]["different"]) == (0, 1)


def capture(checkpoint, replay, out):
    done = subprocess.run([
        BINARY, "capture", checkpoint, "--replay", replay, "--record", "full", "--record-router", "--mask-token-id",
        str(MASK), "--block-length", str(SIZE), "--array-type", "f32", "--dtype", "float32", "--threads", "1", "-q",
        "-o", out], capture_output=True, text=True)
    if "LibTorch" in done.stderr:
        pytest.skip("this build can't decode")
    assert done.returncode == 0, done.stderr
    return out


FAULTS = {"norm_topk_prob": (lambda config: config.update(norm_topk_prob=False), "router_weight", 0),
          "rope_theta": (lambda config: config["rope_parameters"].update(rope_theta=12000.0), "query", 0),
          "rms_norm_eps": (lambda config: config.update(rms_norm_eps=1e-1), "query", 0)}


def test_the_runtime_against_transformers(tmp_path):
    """No difference beyond rounding; each planted mistake at its place."""
    sys.path.insert(0, os.fspath(pathlib.Path(__file__).parents[1] / "probe" / "parity"))
    from checkpoints import spec_of, write_checkpoint

    checkpoint = tmp_path / "checkpoint"
    model = write_checkpoint(checkpoint, spec_of("qwen3moe-8", vocab=99, layers=6, std=0.15))
    model.set_attn_implementation("sdpa")
    theirs = record(tmp_path / "theirs.h5", model)
    found = blockscope.compare(theirs, capture(checkpoint, theirs, tmp_path / "ours.h5"), teacher=True)
    assert found.equal and found.data["tolerance"] == 1e-3, found
    compared = {q["name"]: q["largest_relative"] for q in found.data["quantities"]}
    assert None not in compared.values() and max(compared.values()) < 1e-4, compared
    assert found["expert"]["elements"] == 6 * SIZE * found.data["rows"]
    for name, (change, quantity, layer) in FAULTS.items():
        other = tmp_path / name
        shutil.copytree(checkpoint, other)
        config = json.loads((other / "config.json").read_text())
        change(config)
        (other / "config.json").write_text(json.dumps(config))
        first = blockscope.compare(theirs, capture(other, theirs, tmp_path / f"{name}.h5"), teacher=True).first
        assert (first["quantity"], first["layer"]) == (quantity, layer), (name, first)
    weights = tmp_path / "weights"  # one layer's key norm is another one
    shutil.copytree(checkpoint, weights)
    from safetensors.torch import load_file, save_file
    tensors = load_file(weights / "model.safetensors")
    tensors["model.layers.3.self_attn.k_norm.weight"] *= 1.1
    save_file(tensors, weights / "model.safetensors", metadata={"format": "pt"})
    first = blockscope.compare(theirs, capture(weights, theirs, tmp_path / "k.h5"), teacher=True).first
    assert (first["quantity"], first["layer"], first["position"]) == ("key", 3, 0)
