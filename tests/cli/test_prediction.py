"""`blockscope study time --predict` against a program of its own: every kernel of a pass as (bytes, FLOP), written from
docs/design/0024-predicted-time.md, in float64. And what is refused."""

import csv
import json
import shutil
import unittest

import h5py

from capture_harness import require_binary
from command_line_case import FAILED, NEEDLE, USAGE, CommandLineCase
from family_case import write_family

TRADO = {"num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
         "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": False}
A100 = {"memory_bytes": 80e9, "memory_bandwidth": 2.039e12, "bandwidth_efficiency": 0.89, "flops": {"bfloat16": 312e12},
        "product_efficiency": 0.7, "attention_efficiency": 0.5, "launch_seconds": 5e-6, "link_bandwidth": 300e9,
        "link_seconds": 20e-6}
# Slow products, so that products and attention are bound by FLOP, and a cache that holds small passes.
SMALL = {"memory_bytes": 2e6, "memory_bandwidth": 1e9, "bandwidth_efficiency": 0.5, "flops": {"float32": 3e9},
         "product_efficiency": 0.8, "attention_efficiency": 0.25, "launch_seconds": 1e-6, "cache_bytes": 3e5,
         "cache_bandwidth": 4e9}


def device_file(numbers):
    def sourced(value):
        return {key: sourced(inner) for key, inner in value.items()} if isinstance(value, dict) else \
            {"value": value, "source": "made up"}
    return {"device": "a device", **sourced(numbers)}


class Pass:
    """Seconds of one pass; `work`: the formulas' n, s, r, k_head and pair."""

    def __init__(self, config, device, dtype, batch, block, tp, *, read, first_read=0.0, first=0, scored=0.0, residual=0.0,
                 head=0.0, pair=False):
        c, layers = config, config["num_hidden_layers"]
        size = 4 if dtype == "float32" else 2
        hidden = c["hidden_size"]
        q, kv = (c[name] * c["head_dim"] / tp for name in ("num_attention_heads", "num_key_value_heads"))
        rows = batch * block
        # Bytes that decide whether the pass lies in a cache: weights and what it reads of the KV cache.
        products, mlp = [], []
        for _ in range(layers):
            products += [(hidden * (q + 2 * kv), hidden + q + 2 * kv), (hidden * q, hidden + q)]
        for layer in range(layers):
            experts = c.get("num_experts") if layer in c.get("sparse", ()) else None
            if experts:
                chosen = c["num_experts_per_tok"]
                used = experts * (1 - (1 - chosen / experts) ** rows)
                mlp.append((3 * hidden * c["moe_intermediate_size"] / tp, used, chosen, c["moe_intermediate_size"] / tp))
            else:
                mlp.append((3 * hidden * c["intermediate_size"] / tp, 1, 1, c["intermediate_size"] / tp))
        vocab = c["vocab_size"] / tp
        streamed = sum(w for w, _ in products) + sum(w * used for w, used, _, _ in mlp) + (hidden * vocab if head else 0)
        streamed += sum(batch * 2 * kv * (first_read if layer < first else read) for layer in range(layers))
        cached = size * streamed <= device.get("cache_bytes", 0)
        bandwidth = device["cache_bandwidth"] if cached else device["memory_bandwidth"] * device["bandwidth_efficiency"]
        rate = device["flops"][dtype]

        def kernel(elements, flop, efficiency, other_bytes=0.0):
            return max((size * elements + other_bytes) / bandwidth, flop / (rate * efficiency))
        product, attend = device["product_efficiency"], device["attention_efficiency"]
        self.products = sum(kernel(w + rows * width, 2 * rows * w, product) for w, width in products)
        self.products += kernel(sum(w * used + rows * (2 * hidden + 3 * chosen * width) for w, used, chosen, width in mlp),
                                2 * rows * sum(w * chosen for w, _, chosen, _ in mlp), product)
        self.attention = 0.0
        for layer in range(layers):
            n, s, r = (first_read, 0.0, 0.0) if layer < first else (read, scored, residual)
            keys = 2 * kv * (n + block + r) + kv * s  # keys and values; keys alone to choose
            flop = 4 * q * block * (n + block + r) + 2 * q * block * s
            kept = 4 * rows * q * (1 + 1 / c["head_dim"]) if pair else 0.0
            self.attention += kernel(batch * keys + 2 * rows * q, batch * flop, attend, kept)
        self.head = 0.0
        if head:
            logits = batch * head
            self.head = kernel(hidden * vocab + logits * (hidden + vocab), 2 * logits * hidden * vocab, product)
            self.head += size * logits * vocab / bandwidth
        kernels = 1 + 7 * layers + sum(2 * used for _, used, _, _ in mlp) + (2 * (layers - first) if scored else 0)
        kernels += 2 if head else 0
        moved = layers * rows * (8 * hidden + 2 * (q + 2 * kv)) + 3 * rows * sum(chosen * width for _, _, chosen, width in mlp)
        self.rest = size * moved / bandwidth + kernels * device["launch_seconds"]
        if tp > 1:
            one = 2 * (tp - 1) / tp * size * rows * hidden / device["link_bandwidth"] + device["link_seconds"]
            self.rest += 2 * layers * one
        self.total = self.products + self.attention + self.head + self.rest


def steps_that_read(block, steps, tau):
    """The released rule, token by token."""
    dirty, reads = set(), 0
    tokens = iter(range(block))
    for step in range(steps):
        if step == 0 or len(dirty) >= tau:
            reads, dirty = reads + 1, set()
        dirty |= {next(tokens) for _ in range(block // steps + (step < block % steps))}
    return reads


def expected(config, device, dtype, batch, block, tp, total, steps, method, exact_layers=0, share=None):
    """The row of the CSV."""
    context = total / batch
    arguments = (config, device, dtype, batch, block, tp)
    logits = {"head": block * (steps + 1) / (2 * steps)}
    read = Pass(*arguments, read=context, **logits)
    name, _, option = method.partition(" ")
    key, _, value = option.partition("=")
    first, others, reads = read, read, steps
    if name == "flashblock":
        reads = steps_that_read(block, steps, int(value)) if key == "tau" else steps * (1 - share)
        first = Pass(*arguments, read=context, pair=True, **logits)
        others = Pass(*arguments, read=0.0, pair=True, **logits)
    elif name != "exact":
        k, reads = int(value) if key == "k" else float(value) * context, 1
        if k < context:
            pair = name == "mage+flashblock"
            same = {"first": exact_layers, "first_read": context, "pair": pair, **logits}
            first = Pass(*arguments, read=context, scored=context, residual=context - k if pair else 0.0, **same)
            others = Pass(*arguments, read=k, **same)
    commit = Pass(*arguments, read=context).total
    mean = {part: (reads * getattr(first, part) + (steps - reads) * getattr(others, part)) / steps
            for part in ("products", "attention", "head", "rest", "total")}
    seconds = steps * mean["total"] + commit
    size = 4 if dtype == "float32" else 2
    c, layers = config, config["num_hidden_layers"]
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    weights = layers * c["hidden_size"] * 2 * (heads + kv_heads) * c["head_dim"]
    for layer in range(layers):
        sparse = layer in c.get("sparse", ())
        weights += 3 * c["hidden_size"] * (c["num_experts"] * c["moe_intermediate_size"] if sparse else
                                           c["intermediate_size"])
    weights += (1 if c["tie_word_embeddings"] else 2) * c["hidden_size"] * c["vocab_size"]
    memory = size * (weights + 2 * batch * layers * kv_heads * c["head_dim"] * (context + block)
                     + batch * block * c["vocab_size"]) + 4 * layers * batch * block * heads * (c["head_dim"] + 1)
    exact = steps * read.total + commit
    return {"total_context": total, "context": context, "steps": steps, "reads": reads / steps,
            "step_ms": 1e3 * mean["total"], "products_ms": 1e3 * mean["products"], "attention_ms": 1e3 * mean["attention"],
            "head_ms": 1e3 * mean["head"], "rest_ms": 1e3 * mean["rest"], "commit_ms": 1e3 * commit,
            "block_ms": 1e3 * seconds, "tokens_per_second": batch * block / seconds, "speedup": exact / seconds,
            "memory_bytes": memory / tp}


class Prediction(CommandLineCase):
    def setUp(self):
        super().setUp()
        self.out = self.root / "predicted"
        shutil.rmtree(self.out, ignore_errors=True)

    def predict(self, model, device, *arguments):
        self.must("study", "time", model, "--predict", device, "-q", "--no-figures", "--force", "-o", self.out, *arguments)
        with (self.out / "time-predicted.csv").open() as lines:
            return list(csv.DictReader(lines))

    def compare(self, rows, config, device, dtype, batch, block, tp, **options):
        for row in rows:
            want = expected(config, device, dtype, batch, block, tp, float(row["total_context"]), float(row["steps"])
                            if "share" in options else int(row["steps"]), row["method"], **options)
            for name, value in want.items():
                self.assertAlmostEqual(float(row[name]) / value, 1, delta=2e-8, msg=(row["method"], name))
            self.assertEqual(row["fits"], "yes" if want["memory_bytes"] <= device["memory_bytes"] else "NO")

    def written(self, numbers, name="device.json"):
        path = self.root / name
        path.write_text(json.dumps(numbers))
        return path

    def test_the_papers_shape_equals_the_formulas(self):
        for block in (4, 8):
            rows = self.predict("trado-8b", "a100", "--tp", 2, "--batch-size", 128, "--block-length", block)
            self.assertEqual([float(row["total_context"]) for row in rows[::6]], [1e5 * i for i in range(1, 9)])
            self.assertEqual([row["method"] for row in rows[:6]],
                             ["exact", "flashblock tau=2", "flashblock tau=3", "flashblock tau=4", "mage k=1024",
                              "mage+flashblock k=1024"])
            self.compare(rows, TRADO, A100, "bfloat16", 128, block, 2)

    def test_contexts_that_do_not_fit_are_marked(self):
        rows = self.predict("trado-8b", "a100", "--batch-size", 128, "--total-contexts", "300000,800000")
        self.assertEqual({(row["total_context"], row["fits"]) for row in rows}, {("300000", "yes"), ("800000", "NO")})
        self.compare(rows, TRADO, A100, "bfloat16", 128, 4, 1)
        needed = expected(TRADO, A100, "bfloat16", 128, 4, 1, 800_000, 4, "exact")["memory_bytes"]
        self.assertIn(f"800000 tokens do not fit: the run needs {needed / 1e9:.1f} GB on each device, which has 80 GB.",
                      (self.out / "time-predicted.txt").read_text().replace("\n", " "))

    def test_experts_a_cache_and_other_options_equal_the_formulas(self):
        model = self.root / "experts"
        write_family(model, "sdar_moe")
        config = json.loads((model / "config.json").read_text())
        config["sparse"] = range(config["num_hidden_layers"])
        (model / "model.safetensors").unlink()  # weights are not needed
        device = self.written(device_file(SMALL))
        rows = self.predict(model, device, "--dtype", "float32", "--block-length", 8, "--steps", "3,8", "--taus", "1,3,5",
                            "--k", 5, "--densities", "0.25", "--exact-layers", 1, "--batch-size", 3, "--total-contexts", "12,100,450")
        self.assertEqual(len(rows), 2 * 3 * 8)
        self.assertEqual({row["fits"] for row in rows}, {"yes"})
        self.compare(rows, config, SMALL, "float32", 3, 8, 1, exact_layers=1)

    def test_reuse_of_a_trace_is_counted(self):
        trace = self.root / "run.h5"
        self.must("capture", NEEDLE, "--prompt", "Q: Anna", "--gen-length", 32, "--policy", "flashblock,tau=3",
                  "--denoising-steps", 11, "--record", "summary", "-q", "-o", trace, "--force")
        with h5py.File(trace) as file:
            denoising = file["/steps/kind"][:] == 1
            blocks = {tuple(pair) for pair in zip(file["/steps/sequence"][denoising], file["/steps/block"][denoising])}
            steps, share = denoising.sum() / len(blocks), float(file["/attention/reused"][:][denoising].mean())
        self.assertGreater(share, 0)
        device = self.written(device_file({**SMALL, "flops": {"bfloat16": 1e10}}))
        rows = self.predict(NEEDLE, device, "--trace", trace, "--contexts", 200, "--k", 9)
        self.assertEqual(rows[1]["method"], "flashblock trace")
        self.assertAlmostEqual(float(rows[1]["reads"]), 1 - share, delta=1e-8)
        self.assertAlmostEqual(float(rows[1]["steps"]), steps, delta=1e-7)
        config = json.loads((NEEDLE / "config.json").read_text())
        rows = self.predict(NEEDLE, device, "--reuse-share", 0.3, "--contexts", 200, "--k", 9)
        self.compare(rows, config, {**SMALL, "flops": {"bfloat16": 1e10}}, "bfloat16", 1, 16, 1, share=0.3)
        code = ["study", "time", NEEDLE, "--predict", device, "--trace", trace, "-o", self.root / "none"]
        self.refused(FAILED, ["expected a trace with B 8, got B 16"], *code, "--block-length", 8)

    def test_a_bad_file_is_refused_by_name(self):
        good = device_file(A100)
        device = self.root / "bad.json"
        command = ["study", "time", "trado-8b", "--batch-size", 128, "-o", self.out, "--predict", device]
        for change, words in (({"memory_bandwidth": None}, 'key "memory_bandwidth": expected an object'),
                              ({"memory_bandwidth": 2e12}, 'key "memory_bandwidth": expected an object'),
                              ({"memory_bytes": {"value": "80e9", "source": "s"}}, 'memory_bytes: key "value": expected a number'),
                              ({"launch_seconds": {"value": 0, "source": "s"}}, 'launch_seconds: key "value": expected a number'),
                              ({"memory_bytes": {"value": -1, "source": "s"}}, 'memory_bytes: key "value": expected a number'),
                              ({"product_efficiency": {"value": 1.1, "source": "s"}}, "at most 1, got 1.1"),
                              ({"memory_bytes": {"value": 80e9}}, 'memory_bytes: key "source": expected a text'),
                              ({"memory_bytes": {"value": 80e9, "source": ""}}, 'memory_bytes: key "source": expected a text'),
                              ({"flops": {}}, 'key "flops": expected a number for at least one dtype'),
                              ({"flops": {"int8": {"value": 1, "source": "s"}}}, 'key "int8": expected no such key'),
                              ({"bandwidth": {"value": 1, "source": "s"}}, 'key "bandwidth": expected no such key'),
                              ({"cache_bytes": {"value": 1, "source": "s"}}, 'key "cache_bandwidth": expected an object'),
                              ({"device": ""}, 'key "device": expected a text')):
            numbers = {key: value for key, value in {**good, **change}.items() if value is not None}
            device.write_text(json.dumps(numbers))
            self.refused(FAILED, ["bad.json", words], *command)
        device.write_text(json.dumps(good)[:-1])
        self.refused(FAILED, ["bad.json: expected JSON"], *command)
        without_link = {key: value for key, value in good.items() if not key.startswith("link")}
        device.write_text(json.dumps(without_link))
        self.refused(USAGE, ["--tp", "bad.json: expected link_bandwidth"], *command, "--tp", 2)
        self.refused(USAGE, ["expected a rate of products in float32"], *command, "--dtype", "float32")
        self.assertFalse(self.out.exists())

    def test_what_fits_nothing_is_refused(self):
        command = ["study", "time", "trado-8b", "--predict", "h100", "-o", self.out]
        self.refused(USAGE, ["expected one of h100, a100, cpu or a JSON file", "got 'b200'"], *command[:4], "b200", *command[5:])
        self.refused(USAGE, ["40960 positions of this model", "--batch-size"], *command)
        self.refused(USAGE, ["at most the block length 4, got 5"], *command, "--contexts", 64, "--steps", 5)
        self.refused(USAGE, ["at most 0.75"], *command, "--contexts", 64, "--reuse-share", 0.8)
        self.refused(USAGE, ["a divisor of 32 heads and 8 KV heads, got 3"], *command, "--contexts", 64, "--tp", 3)
        self.refused(USAGE, ["bidirectional"], *command[:2], NEEDLE.parent / "needle-bidirectional", *command[3:],
                     "--block-length", 4)
        self.refused(USAGE, ["--predict: does nothing in study tau"], "study", "tau", *command[2:])
        for option in (["--device", "cuda"], ["--threads", 1], ["--pages", 4], ["--gen-length", 8], ["--resume"],
                       ["--cache", "block"], ["--blocks", 2], ["--backbone", NEEDLE], ["--limit", 2]):
            self.refused(USAGE, [f"{option[0]}: does nothing together with --predict"], *command, *option)
        self.refused(USAGE, ["--revision: does nothing for a given shape, and trado-8b is one"], *command, "--revision", "x")
        self.refused(USAGE, ["--revision: does nothing for a folder"], *command[:2], NEEDLE, *command[3:], "--revision", "x")
        for first, second in ((["--contexts", 64], ["--total-contexts", 640]), (["--taus", 2], ["--reuse-share", 0.3]),
                              (["--taus", 2], ["--trace", "x.h5"]), (["--steps", 2], ["--trace", "x.h5"]),
                              (["--reuse-share", 0.5], ["--trace", "x.h5"])):
            self.refused(USAGE, [f"{first[0]}: does nothing together with {second[0]}"], *command, *first, *second)
        for option in (["--tp", 2], ["--total-contexts", 640], ["--trace", "x.h5"], ["--reuse-share", 0.3]):
            self.refused(USAGE, [f"{option[0]}: does nothing without --predict"], "study", "time", NEEDLE, *option, "-o",
                         self.out)
        self.assertFalse(self.out.exists())

    def test_results_are_not_replaced_and_a_device_file_is_no_output(self):
        self.predict("trado-8b", "h100", "--contexts", 64)
        command = ["study", "time", "trado-8b", "--predict", "h100", "--contexts", 64, "-o", self.out, "--no-figures"]
        self.refused(USAGE, ["--force"], *command)
        device = self.written(device_file(A100), self.out / "time-predicted.txt")
        self.refused(USAGE, ["time-predicted.txt"], *command[:4], device, *command[5:], "--force")


if __name__ == "__main__":
    require_binary()
    unittest.main()
