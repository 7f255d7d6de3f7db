"""`blockscope verify` on the shipped model, judged by numpy: KL, output errors and the keys read are
recomputed in float64 from two traces read with h5py alone (the dense run, and its replay under the
same reuse with a shadow). KL needs the logits, which no trace holds: they follow from the last
layer's recorded input and attention and the checkpoint's weights.
"""

import csv
import json
import os
import pathlib
import struct
import subprocess
import sys

import attention_math as am
import harness
import numpy as np
from layer_math import rms_norm, silu
from trace_file import Trace

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "models" / "needle"
CONFIG = json.loads((MODEL / "config.json").read_text())
LAYERS, HEADS = CONFIG["num_hidden_layers"], CONFIG["num_attention_heads"]
KV_HEADS, DIM = CONFIG["num_key_value_heads"], CONFIG["head_dim"]
GROUP, BLOCK, ELEMENT = HEADS // KV_HEADS, CONFIG["block_size"], 4
DENOISE, COMMIT = 1, 2
# A whole block is decided 3, 3, 2, 2, 2, 2 and 2 tokens a step, so that tau 3 matters.
DECODING = ["--gen-length", 16, "--denoising-steps", 7, "--dtype", "float32", "--threads", 1,
            "--batch-size", 2]
ERRORS = ("sum_absolute", "sum_squared", "sum_reference_squared")


def read_weights(path):
    """bf16 safetensors -> float64 arrays by name."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    weights = {}
    for name, entry in json.loads(raw[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        words = np.frombuffer(raw[begin:end], "<u2").astype(np.uint32) << 16
        weights[name] = words.view(np.float32).astype(np.float64).reshape(entry["shape"])
    return weights


def last_log_p(trace, row, weights):
    """log softmax [B, V] after the last layer of a row."""
    layer = LAYERS - 1
    name = f"model.layers.{layer}"
    get = lambda path: trace.file[path][row, layer].astype(np.float64)
    z = am.merge([(get(f"/attention/{n}"), get(f"/attention/lse_{n}")) for n in ("external", "internal")])[0]
    hidden = get("/hidden/hidden")
    hidden = hidden + z.transpose(1, 0, 2).reshape(len(hidden), -1) @ weights[
        f"{name}.self_attn.o_proj.weight"].T
    x = rms_norm(hidden, weights[f"{name}.post_attention_layernorm.weight"])
    gated = silu(x @ weights[f"{name}.mlp.gate_proj.weight"].T) * (
        x @ weights[f"{name}.mlp.up_proj.weight"].T)
    hidden = hidden + gated @ weights[f"{name}.mlp.down_proj.weight"].T
    logits = rms_norm(hidden, weights["model.norm.weight"]) @ weights[
        "model.embed_tokens.weight"].T  # tied
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def masked_positions(trace):
    """By denoising row: which positions of the block's input are masks."""
    masked = {}
    for index in range(trace.num_sequences):
        prompt = len(trace.prompt(index))
        decided = set(range(prompt))
        for row in map(int, trace.rows_of(index)):
            if trace.rows("/steps/kind")[row] == DENOISE:
                start = int(trace.rows("/steps/block_start")[row])
                masked[row] = [start + i not in decided for i in range(BLOCK)]
                harness.require(sum(masked[row]) == trace.rows("/steps/masks_left")[row],
                                f"row {row}: masks")
            decided.update(prompt + p for p in trace.delta(row)[0])
    return masked


def recompute(dense, reuse, mask, tau):
    """The replay section of verify's JSON, from the two traces."""
    for path in ("/steps/kind", "/steps/step", "/steps/changed", "/steps/context_length",
                 "/frames/position", "/frames/token"):
        harness.require(np.array_equal(dense.file[path][:], reuse.file[path][:]),
                        f"{path}: the replay left the recorded trajectory")
    kinds, steps = dense.rows("/steps/kind"), dense.rows("/steps/step")
    changed, lengths = dense.rows("/steps/changed"), dense.rows("/steps/context_length")
    weights, masked = read_weights(MODEL / "model.safetensors"), masked_positions(dense)
    kl = {}
    sums = {name: np.zeros((LAYERS, HEADS, 3)) for name in ("first_order", "reused", "propagated")}
    rows_read = np.zeros((2, LAYERS, KV_HEADS), int)
    flops = np.zeros(2)
    sequences, since = dense.rows("/steps/sequence"), {}
    for row in np.flatnonzero(kinds == DENOISE):
        a, b = (last_log_p(t, row, weights) for t in (dense, reuse))
        kl.setdefault(int(steps[row]), []).extend(
            (np.exp(a) * (a - b)).sum(-1)[masked[int(row)]].tolist())
        index = int(sequences[row])
        since[index] = 0 if steps[row] == 1 else since[index] + int(changed[row])
        may = steps[row] > 1 and since[index] < tau
        since[index] = since[index] if may else 0
        for layer in range(LAYERS):
            get = lambda t, path: t.file[path][row, layer].astype(np.float64)
            pair = lambda t, group, side: (get(t, f"/{group}/{side}"), get(t, f"/{group}/lse_{side}"))
            used, exact, before = (
                am.merge([pair(t, group, "external"), pair(t, "attention", "internal")])[0]
                for t, group in ((reuse, "attention"), (reuse, "shadow"), (dense, "attention")))
            reused = reuse.file["/attention/reused"][row, layer].astype(bool)
            harness.require(np.array_equal(reused, mask[layer] & may), f"row {row}: {reused}")
            total = lambda got, ref: np.stack([np.abs(got - ref).sum((1, 2)), ((got - ref)**2).sum(
                (1, 2)), (ref**2).sum((1, 2))], -1)
            sums["first_order"][layer] += total(used, exact)
            sums["reused"][layer] += total(used, exact) * reused[:, None]
            sums["propagated"][layer] += total(used, before)
            whole = reused.reshape(KV_HEADS, GROUP).all(1)
            rows_read[0, layer] += lengths[row]
            rows_read[1, layer] += np.where(whole, 0, lengths[row])
            flops += 4.0 * BLOCK * DIM * lengths[row] * np.array([HEADS, reused.sum()])
    return kl, sums, rows_read, flops


def close(name, ours, expected, absolute, relative=1e-5):
    ours, expected = np.asarray(ours, np.float64), np.asarray(expected, np.float64)
    error = np.abs(ours - expected)
    harness.require((error <= absolute + relative * np.abs(expected)).all(),
                    f"{name}: largest error {error.max():.2e}\n{ours}\n{expected}")
    print(f"  {name:34} {expected.size:5} values, largest error {error.max():.1e}", flush=True)


def compare(replay, dense, reuse, mask, tau):
    kl, sums, rows_read, flops = recompute(dense, reuse, mask, tau)
    everything = np.concatenate([kl[step] for step in sorted(kl)])
    # The logits were float32: a KL can't be known better than their rounding.
    for name, value in (("mean", everything.mean()), ("p95", np.quantile(everything, 0.95)),
                        ("max", everything.max())):
        close(f"KL {name}", replay["kl"][name], value, 1e-5, 1e-4)
    harness.require(replay["kl"]["positions"] == everything.size, "number of masked positions")
    harness.require([s["step"] for s in replay["kl_by_step"]] == sorted(kl), "steps")
    close("KL by step", [s["mean"] for s in replay["kl_by_step"]],
          [np.mean(kl[step]) for step in sorted(kl)], 1e-5, 1e-4)
    for name, key in (("first_order", "first_order"), ("reused", "first_order_approximated"),
                      ("propagated", "propagated")):
        heads = replay[f"{key}_by_head"]
        elements = np.array([[h["elements"] for h in row] for row in heads])
        for i, sum_name in enumerate(ERRORS):
            got = np.array([[h[sum_name] for h in row] for row in heads])
            close(f"{key} {sum_name}", got, sums[name][..., i], 1e-4)
        absolute, squared, reference = np.moveaxis(sums[name], -1, 0)
        safe = lambda a, b: np.divide(a, b, out=np.zeros_like(a), where=b > 0)
        close(f"{key} L1", [[h["l1"] for h in row] for row in heads], safe(absolute, elements), 1e-5)
        close(f"{key} relative L2", [[h["relative_l2"] for h in row] for row in heads],
              np.sqrt(safe(squared, reference)), 1e-5)
    reads = replay["reads"]
    harness.require(np.array_equal(reads["key_rows_by_kv_head"], rows_read[0])
                    and np.array_equal(reads["key_rows_read_by_kv_head"], rows_read[1]), "key rows")
    harness.require(reads["bytes_read"] == rows_read[1].sum() * 2 * DIM * ELEMENT, "bytes")
    harness.require([reads["flops"], reads["flops_avoided"]] == flops.tolist(), "FLOPs")
    harness.require(rows_read[1].sum() < rows_read[0].sum(), "nothing was saved")


def write_reuse(path, digest, mask, **more):
    path.write_text(json.dumps({
        "format": "blockscope-reuse", "format_version": 1,
        "model": {"layers": LAYERS, "heads": HEADS, "digest": digest},
        "reuse": mask.astype(bool).tolist(), **more}))
    return path


def reusing(path, **options):
    """The policy that reads this calibration file."""
    text = "".join(f",{name}={value}" for name, value in options.items())
    return ["--policy", f"flashblock,reuse={path}{text}"]


def verify(*arguments):
    return json.loads(harness.run("verify", MODEL, *DECODING, "--json", "--quiet", *arguments))


def check_replay(folder, prompts, dense, mask):
    """verify against numpy; the head mask leaves some KV groups whole and cuts others."""
    common = ["--record", "full", "--array-type", "f32", *DECODING, "--quiet"]
    reuse_file = write_reuse(folder / "reuse.json", dense.json("/model/json")["digest"], mask)
    policy = reusing(reuse_file, tau=3)
    result = verify(*policy, "--prompts", prompts, "--repeats", 1)
    replayed = folder / "replayed.h5"
    harness.run("capture", MODEL, "--replay", folder / "dense.h5", *policy, "--shadow", *common, "-o", replayed)
    own = result["settings"][0]
    compare(own["replay"], dense, Trace(replayed), mask, 3)
    harness.require(own["measured_equals_predicted"], "the rule does not predict what was read")
    # Free-running: the same tokens as capture decodes.
    free = folder / "free.h5"
    harness.run("capture", MODEL, "--prompts", prompts, *policy, "--record", "trajectory", *DECODING, "--quiet", "-o",
                free)
    for name, side, trace in (("reference", result["reference"]["free_running"], dense),
                              ("reuse", own["free_running"], Trace(free))):
        scores = [float(trace.file["/sequences/score"][i]) for i in range(trace.num_sequences)]
        harness.require(side["scores"] == scores, f"{name}: scores {side['scores']}, {scores}")
        steps = int((trace.rows("/steps/kind") == DENOISE).sum())
        harness.require(side["denoising_steps"] == steps, f"{name}: denoising steps")
    return reuse_file


def check_nothing_reused(folder, prompts, dense):
    none = write_reuse(folder / "none.json", dense.json("/model/json")["digest"],
                       np.zeros((LAYERS, HEADS)))
    own = verify(*reusing(none), "--prompts", prompts, "--limit", 2, "--repeats", 2)["settings"][0]
    replay, agreement = own["replay"], own["agreement"]
    harness.require(replay["kl"]["max"] == 0.0 and replay["kl"]["positions"] > 0, "KL is not zero")
    for name in ("first_order", "propagated"):
        harness.require(replay[name]["sum_absolute"] == 0.0 and replay[name]["elements"] > 0, name)
    harness.require(agreement["equal"] == agreement["positions"] > 0, "tokens differ")
    harness.require(own["first_divergences"] == [] and replay["reads"]["saving"] == 0.0, "saving")


def check_sweep(folder, prompts, digest):
    """Masks from similarities, one line per setting, pictures of the right kind."""
    similarity = np.linspace(0.4, 0.99, LAYERS * HEADS).reshape(LAYERS, HEADS)
    source = write_reuse(folder / "swept.json", digest, similarity > 0.9, gamma=0.9, tau=2,
                         similarity=similarity.tolist())
    table = folder / "verify.csv"
    figures = folder / "figures"
    text = harness.run("verify", MODEL, *DECODING, "--quiet", *reusing(source), "--sweep", "--taus",
                       "1,3", "--gammas", "0.5,0.95", "--prompts", prompts, "--limit", 2,
                       "--repeats", 1, "--csv", table, "-o", folder / "verify.json", "--figures",
                       figures)
    result = json.loads((folder / "verify.json").read_text())
    rows = list(csv.DictReader(table.open()))
    harness.require([r["setting"] for r in rows] == ["reference", "policy"] + ["sweep"] * 4, "CSV rows")
    for row, own in zip(rows[1:], result["settings"]):
        gamma, tau = own["gamma"], own["tau"]
        harness.require(np.array_equal(own["reuse"], similarity > gamma), f"mask of gamma {gamma}")
        harness.require([float(row["gamma"]), int(row["tau"])] == [gamma, tau], "CSV setting")
        harness.require(own["measured_equals_predicted"], f"tau {tau}, gamma {gamma}: prediction")
        close(f"CSV of tau {tau}, gamma {gamma}",
              [float(row["saving_replay"]), float(row["kl_mean"]), float(row["tokens_equal"])],
              [own["replay"]["reads"]["saving"], own["replay"]["kl"]["mean"],
               own["agreement"]["share"]], 1e-8)
    for line in ("Saved:", "Cost:", "Noise:"):
        harness.require(line in "\n".join(text.splitlines()[-3:]), f"no {line} in the last lines")
    for name in ("verify_tradeoff",):
        harness.require(b"<svg" in (figures / f"{name}.svg").read_bytes()[:600], "no SVG")
        harness.require((figures / f"{name}.pdf").read_bytes()[:5] == b"%PDF-", "no PDF")
    return source


def refused(expect, *words_and_arguments, words):
    command = [harness.BINARY, "verify", *map(str, words_and_arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    harness.require(done.returncode == expect and done.stdout == "",
                    f"{command}: exit code {done.returncode}, expected {expect}\n{done.stderr}")
    lines = [line for line in done.stderr.splitlines() if line.startswith("blockscope: error:")]
    harness.require(len(lines) == 1 and all(word in lines[0] for word in words),
                    f"{command}: expected {words} in\n{done.stderr}")


def check_bad_input(folder, prompts, good, swept, mask):
    digest = json.loads(good.read_text())["model"]["digest"]
    other = write_reuse(folder / "other.json", "0" * 64, mask)
    broken = folder / "broken.json"
    broken.write_text('{"format": "blockscope-reuse", ')
    given = ["--prompts", prompts]
    refused(1, MODEL, *reusing(other), *given, words=["model.digest", digest, "0" * 64])
    refused(1, MODEL, *reusing(broken), *given, words=[str(broken)])
    refused(1, MODEL, *reusing(folder / "none here.json"), *given, words=["none here.json"])
    refused(2, MODEL, *reusing(good), words=["no prompt given"])
    refused(2, MODEL, *given, words=["expected --policy"])
    refused(1, MODEL, *reusing(good), "--sweep", *given, words=["similarity", "calibrate"])
    refused(2, MODEL, *reusing(swept), "--sweep", "--gammas", "0.5,1.5", *given,
            words=["--gammas", "from -1 to 1", "1.5"])
    refused(2, MODEL, *reusing(swept), "--sweep", "--taus", "0", *given, words=["--taus"])
    refused(2, MODEL, *reusing(good, tau=0), *given, words=["tau: expected a whole number from 1"])
    refused(2, MODEL, *reusing(good), "--repeats", 0, *given, words=["--repeats"])
    refused(2, MODEL, *reusing(good), "-o", prompts, *given, words=["reads this file"])
    unanswered = folder / "unanswered.jsonl"
    first = json.loads(prompts.read_text().splitlines()[0])
    unanswered.write_text(json.dumps({"prompt": first["prompt"]}) + "\n")
    # No accuracy, one setting, a KL of one value or none: still a picture.
    for name, reuse in (("one", good), ("nothing", folder / "none.json")):
        output = folder / f"{name}-unanswered.json"
        text = harness.run("verify", MODEL, *DECODING, "--quiet", *reusing(reuse), "--prompts",
                           unanswered, "--repeats", 1, "-o", output, "--figures", folder / name)
        harness.require("accuracy n/a" in text, f"no n/a in\n{text}")
        own = json.loads(output.read_text())["settings"][0]
        harness.require(own["accuracy"] == {"count": 0}, "an accuracy of nothing")
        harness.require((folder / name / "verify_tradeoff.svg").exists(), "no picture")
    refused(2, MODEL, *reusing(good), *given, "--figures", folder / "one", words=["--force"])


def main():
    if not os.access(harness.BINARY, os.X_OK):
        print(f"skipped: no binary at '{harness.BINARY}'; build the target blockscope")
        sys.exit(77)
    mask = np.random.default_rng(3).random((LAYERS, HEADS)) < 0.5
    mask[0], mask[1, :GROUP] = True, True  # whole groups, so that something is saved
    with harness.temporary_folder() as path:
        folder = pathlib.Path(path)
        prompts = folder / "prompts.jsonl"
        lines = (MODEL / "demo.jsonl").read_text().splitlines()
        prompts.write_text("\n".join(lines[:3]) + "\n")
        harness.run("capture", MODEL, "--prompts", prompts, "--record", "full", "--array-type",
                    "f32", *DECODING, "--quiet", "-o", folder / "dense.h5")
        dense = Trace(folder / "dense.h5")
        good = check_replay(folder, prompts, dense, mask)
        check_nothing_reused(folder, prompts, dense)
        swept = check_sweep(folder, prompts, dense.json("/model/json")["digest"])
        check_bad_input(folder, prompts, good, swept, mask)


if __name__ == "__main__":
    main()
