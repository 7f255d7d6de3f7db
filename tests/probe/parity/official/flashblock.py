"""FlashBlock's engine (dllm/sample/jetengine_ext) on tiny random checkpoints and on the shipped models, float32, CPU.

python flashblock.py FLASH_BLOCK OUT MODELS [--commit ID] [--tau N] [--random N]

The engine's own scheduler, sequences, block manager, model runner, layers and generate_streaming run unchanged. Replaced:
its CUDA and Triton kernels by exact torch (attention with and without the kept pair, the prefill's staircase mask, the store
of keys and values by the engine's own Python for it), torch.cuda and the device by the CPU, the tokenizer and the reader of
config.json by stubs, RMSNorm by a formula that doesn't write in place (in float32 the official one overwrites the residual),
and the draw of a token by the best one: the engine draws even where a run should be greedy.
--tau replaces that of every case; 1 never reuses. --random N decodes N random batches instead.
"""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import random
import sys
import types

import common
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

sys.path[:0] = [str(folder / name) for folder, name in ((pathlib.Path(__file__).parents[1], "."),
                                                         (pathlib.Path(__file__).parents[3], "support"))]
import checkpoints  # noqa: E402

SPECS = {  # name -> spec of checkpoints.py; RoPE without scaling and no biases, which the engine does not have
    "g2": ("sdar-g2", {}), "g3-tied": ("sdar-g3-tied", {}), "d128": ("sdar-d128-b32", {}),
    "g1": ("sdar-g1-fp16", {}), "one-layer": ("sdar-one-layer", {}),
    "mask-best": ("sdar-g2", dict(mask_bias=2.0, seed=41))}

SHIPPED = ("needle", "needle-2k")

# checkpoint, tau, B, T, threshold, tokens to generate, prompt lengths, sequences at once
CASES = [
    ("g2", 2, 4, 4, 1.0, 17, [18], 1),
    ("g2", 3, 4, 8, 0.30, 24, [21], 1),
    ("g3-tied", 4, 8, 8, 1.0, 20, [16], 1),
    ("g3-tied", 2, 8, 8, 0.45, 24, [13], 1),
    ("d128", 6, 16, 16, 1.0, 28, [37], 1),
    ("g1", 3, 16, 16, 0.35, 40, [5], 1),
    ("needle", 2, 16, 16, 1.0, 24, [237], 1),
    ("needle-2k", 4, 16, 16, 1.0, 32, [1005], 1),
    ("needle", 6, 8, 8, 0.90, 32, [499], 1),
    ("g1", 4, 8, 3, 0.60, 24, [30], 1),
    ("g3-tied", 3, 8, 8, 0.30, 26, [13, 24, 3], 2),
    ("one-layer", 6, 8, 5, 0.50, 24, [9], 1),
    ("mask-best", 2, 8, 8, 0.40, 32, [11], 1),
]


class OnCpu(TorchFunctionMode):
    """Takes every request for the device cuda as one for the CPU."""

    def __torch_function__(self, function, types_, arguments=(), options=None):
        options = dict(options or {})
        if function is torch.Tensor.cuda:
            return arguments[0]
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = "cpu"
        return function(*arguments, **options)


def attend(query, key, value, scale):
    """query [B, H, D], key and value [N, K, D] -> [B, H, D], natural LSE [B, H]; of no key 0 and -inf."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = torch.einsum("bhd,nhd->bhn", query, key) * scale
    lse = scores.logsumexp(-1)
    weight = (scores - lse[..., None]).exp() if len(key) else scores
    return torch.einsum("bhn,nhd->bhd", weight, value), lse


def merge(first, second):
    top = torch.maximum(first[1], second[1])
    a, b = ((lse - top).exp()[..., None] for _, lse in (first, second))
    return (first[0] * a + second[0] * b) / (a + b)


class Kernels:
    """The kernels' contract (flash_api.cpp, update_attn_fused.cu) in exact torch; keeps what each call used."""

    def __init__(self):
        self.calls = []

    def kvcache(self, q, k_cache, v_cache, k, v, cache_seqlens, block_table, causal, return_softmax_lse, block_size,
                delta_cache_seqlens=None, num_splits=0, attn_output_past=None, logsumexp=None,
                need_update_kvcache_mask=None, need_store_history_mask=None, dirty_mask=None):
        assert not causal and return_softmax_lse
        page, scale, out, used = k_cache.shape[1], q.shape[-1] ** -0.5, torch.empty_like(q), []
        for s, length in enumerate(cache_seqlens.tolist()):
            slots = torch.arange(length + q.shape[1])
            slots = block_table[s][slots // page].long() * page + slots % page
            for cache, new in ((k_cache, k), (v_cache, v)):
                cache.view(-1, *cache.shape[2:])[slots[length:]] = new[s]
            keys, values = (cache.view(-1, *cache.shape[2:])[slots] for cache in (k_cache, v_cache))
            reads = need_update_kvcache_mask is None or bool(need_update_kvcache_mask[s].all())
            stores = need_store_history_mask is not None and bool(need_store_history_mask[s].all())
            history = attend(q[s], keys[:length], values[:length], scale)
            block = attend(q[s], keys[length:], values[length:], scale)
            if not reads:
                history = (attn_output_past[s].clone(), logsumexp[s, ..., 0].clone())
            out[s] = merge(history, block) if stores or not reads else attend(q[s], keys, values, scale)[0]
            if stores:
                attn_output_past[s], logsumexp[s, ..., 0] = history
            used.append((*history, out[s].clone()))
        self.calls.append(used)
        return (out, None) if block_size == 0 else (out, None, None, None, attn_output_past, logsumexp)

    def prefill(self, q, k, v, cu_seqlens_q, cu_seqlens_k, staircase_size):
        out, ends = torch.empty_like(q), cu_seqlens_q.tolist()
        for begin, end in zip(ends, ends[1:]):
            for start in range(begin, end, staircase_size):
                stop = min(start + staircase_size, end)
                out[start:stop] = attend(q[start:stop], k[begin:stop], v[begin:stop], q.shape[-1] ** -0.5)[0]
        return out


class Hash:
    """xxhash's, as the block manager uses it: of full pages of tokens."""

    def __init__(self):
        self.update = (state := hashlib.blake2b(digest_size=8)).update
        self.intdigest = lambda: int.from_bytes(state.digest(), "little")


class Pipe:
    """flashinfer's LogitsPipe for temperature 1, top-k 0, top-p 1."""

    def __init__(self, steps):
        pass

    def __call__(self, logits, temperature, top_p):
        assert temperature == 1 and top_p == 1
        return logits.float().softmax(-1)


def stub_modules(kernels):
    def module(name, **content):
        sys.modules[name] = stub = types.ModuleType(name)
        stub.__dict__.update(content)
        return stub
    name = "jetengine_ext.kernels"
    module(name, fused_moe=None)
    module(f"{name}.triton.attention", sparse_attn_varlen=kernels.prefill)
    module("flash_attn", flash_attn_with_kvcache=kernels.kvcache, flash_attn_func=None, flash_attn_varlen_func=None)
    language = module("triton.language", constexpr=None)
    module("triton", jit=lambda function: None, language=language)
    module("flashinfer")
    step = lambda: None  # noqa: E731
    module("flashinfer.logits_processor", LogitsPipe=Pipe, Temperature=step, Softmax=step, TopP=step, TopK=step, Sample=step)
    module("xxhash", xxh64=lambda: Hash())


def no_cuda():
    for name in ("set_device", "empty_cache", "reset_peak_memory_stats", "synchronize"):
        setattr(torch.cuda, name, lambda *_: None)
    torch.cuda.memory_stats = lambda: {"allocated_bytes.all.peak": 0, "allocated_bytes.all.current": 0}
    torch.set_default_device = lambda device: None
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    torch.distributed.init_process_group = torch.distributed.destroy_process_group = lambda *_, **__: None


def rms_norm(self, x, residual=None):
    """The official one writes in place after a cast, which is no copy in float32: it would overwrite the residual."""
    total = x if residual is None else x + residual
    normal = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
    return normal if residual is None else (normal, total)


class Greedy:
    """torch, whose multinomial takes the most probable token."""

    def __getattr__(self, name):
        return getattr(torch, name)

    @staticmethod
    def multinomial(probabilities, num_samples):
        return probabilities.argmax(-1, keepdim=True)


class ConfigReader:
    @staticmethod
    def from_pretrained(folder, **_):
        config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        return types.SimpleNamespace(**(config | dict(torch_dtype=torch.float32)))


class Watch:
    """One row of each sequence for each denoising or commit pass, as the engine's objects hold it around the pass."""

    def __init__(self, engine, kernels):
        self.rows, self.logits, self.nearest, self.kernels, self.passes = [], None, common.Margin(), kernels, 0
        scheduler, runner = engine.scheduler, engine.model_runner
        schedule, run_model, postprocess = scheduler.schedule, runner.run_model, scheduler.postprocess

        def watched_schedule():
            sequences, kind = schedule()
            if kind is not None and kind.name == "DENOISE":
                shared = sequences[0].sparsity_params
                for slot, one in enumerate(sequences):
                    reads = slot in shared["need_update_kvcache_idx"]
                    self.rows.append(dict(
                        sequence=one.seq_id, slot=slot, kind=one.status.name.lower(), step=one.current_denoising_step,
                        reads=reads, stores=slot in shared["need_store_history_idx"],
                        dirty=one.sparsity_params["dirty_token_count"], input=list(one.intermediate_block_tokens),
                        start=one.num_tokens if reads else one.num_tokens_backend, **{"pass": self.passes}))
                self.open = self.rows[-len(sequences):]
            self.passes += 1
            return sequences, kind

        def watched_run_model(*arguments, **options):
            kernels.calls = []
            self.logits = run_model(*arguments, **options)
            return self.logits

        def watched_postprocess(sequences, logits, kind):
            counts = [len(one.sparsity_params["dirty_tokens"]) for one in sequences]
            postprocess(sequences, logits, kind)
            if kind.name != "DENOISE":
                return
            size = len(self.open[0]["input"])
            for slot, (row, one, before) in enumerate(zip(self.open, sequences, counts)):
                positions = []
                if row["kind"] == "denoising":
                    positions = one.sparsity_params["dirty_tokens"][0 if row["reads"] else before:]
                    row["output"] = list(one.intermediate_block_tokens)
                mine = logits[slot * size:(slot + 1) * size]
                probability, best = mine.double().softmax(-1).max(-1)
                row |= dict(decided=sorted(positions), top1=best.tolist(), logits=mine.clone(),
                            probability=[common.number(p) for p in probability])
                for i, name in enumerate(("external", "lse_external", "merged")):
                    row[name] = torch.stack([call[slot][i] for call in kernels.calls]).transpose(1, 2)  # [layer, H, B, ...]
                self.near(row, mine, one.dynamic_threshold, scheduler.mask_token_id)

        scheduler.schedule, runner.run_model, scheduler.postprocess = watched_schedule, watched_run_model, watched_postprocess

    def near(self, row, logits, threshold, mask_id):
        if row["kind"] == "saving":
            return
        if row["step"] >= len(row["input"]):
            self.nearest.of(0.0)  # ours takes B steps at most; more are only for masks that were decided as [MASK]
        masked = [i for i, token in enumerate(row["input"]) if token == mask_id]
        scores = {i: row["probability"][i] for i in masked}
        best = logits.topk(2, -1).values
        self.nearest.of_logits(*(best[masked, 0] - best[masked, 1]))
        self.nearest.of_cut(scores, row["decided"])
        if threshold < 1:
            self.nearest.of(*[s - threshold for s in scores.values()])


def engine_for(folder, mask_id, block_length, slots):
    from jetengine_ext.engine import llm_engine, model_runner, scheduler, sequence
    from jetengine_ext import config as config_file
    from jetengine_ext.layers import attention, layernorm
    config_file.AutoConfig, scheduler.torch = ConfigReader, Greedy()
    attention.store_kvcache = attention.store_kvcache_python
    layernorm.RMSNorm.forward = rms_norm
    tokenizer = types.SimpleNamespace(eos_token_id=-1, mask_token_id=mask_id, pad_token_id=None, vocab_size=1 << 30,
                                      decode=lambda *_, **__: "")
    llm_engine.AutoTokenizer = types.SimpleNamespace(from_pretrained=lambda *_, **__: tokenizer)
    llm_engine.atexit = types.SimpleNamespace(register=lambda *_: None)
    shape = ConfigReader.from_pretrained(folder)
    page = 2 * 4 * 256 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim
    torch.cuda.mem_get_info = lambda: (80 * page, 80 * page)
    engine = llm_engine.LLMEngine(str(folder), mask_token_id=mask_id, block_length=block_length, max_num_seqs=slots,
                                  enforce_eager=True, batch_size=slots)
    sequence.Sequence.counter = sequence.count()  # the warm-up's sequences took the first numbers
    return engine


def run_case(folder, mask_id, vocab, case, tau, kernels, wanted, seed):
    name, _, block_length, steps, threshold, count, lengths, slots = case
    from jetengine_ext.sampling_params import SamplingParams
    prompts = [common.prompt_of(seed + 100 * i, length, vocab, mask_id) for i, length in enumerate(lengths)]
    engine = engine_for(folder, mask_id, block_length, slots)
    watch = Watch(engine, kernels)
    sampling = SamplingParams(temperature=1.0, max_tokens=count, ignore_eos=True, block_length=block_length,
                              denoising_steps=steps, dynamic_threshold=threshold, topk=0, topp=1.0,
                              remasking_strategy="low_confidence_dynamic")
    engine.generate_streaming([list(p) for p in prompts], sampling, max_active=slots, use_tqdm=False, sparsity_ratio=tau)
    parameters = dict(tau=tau, block_length=block_length, denoising_steps=steps, threshold=threshold, gen_length=count,
                      slots=slots, mask_id=mask_id)
    done = dict(checkpoint=name, parameters=parameters, prompts=prompts, rows=watch.rows)
    if not shows(done, wanted):
        watch.nearest.of(0.0)
    return done, watch.nearest


def random_cases(count):
    """Batches of four to six short prompts in two or three slots."""
    draw = random.Random(5)
    for _ in range(count):
        size = draw.choice([4, 8, 16])
        lengths = [size - 1, size, size + 1, 2 * size + 3, 3 * size, 5]
        yield (draw.choice(["g2", "g3-tied", "g1", "one-layer", "mask-best"]), draw.choice([2, 3, 4, 6]), size,
               draw.choice([size, size // 2, 3]), draw.choice([1.0, 0.3, 0.4, 0.5]), draw.choice([2 * size, 3 * size - 1]),
               [draw.choice(lengths) for _ in range(draw.choice([4, 5, 6]))], draw.choice([2, 3]))


def shows(case, wanted):
    """Whether the run has what it is there for: a pair that is used in another slot than it was kept in, where sequences
    share slots; a position decided as [MASK], where [MASK] is often the best token; else a pass that reuses. And no pass
    that merges a pair which an earlier pass than the last reading one left: a fault of the engine."""
    last, found = {}, {"moved": False, "mask": False, "reuse": False, "stale": False}
    for row in case["rows"]:
        before = last.get(row["sequence"], row)
        last[row["sequence"]] = row
        found["reuse"] |= not row["reads"]
        found["moved"] |= not row["reads"] and row["slot"] != before["slot"]
        found["stale"] |= not row["reads"] and before["reads"] and not before["stores"]
        found["mask"] |= any(row["output"][i] == row["input"][i] for i in row["decided"])
    special = "moved" if len(case["prompts"]) > 1 else "mask" if "mask" in case["checkpoint"] else "reuse"
    return (found[special] or not wanted) and not found["stale"]


def write(out, number, case):
    """The arrays of all rows in a file of their own, [row, ...] each; the rest stays in the case."""
    names = ("external", "lse_external", "merged", "logits")
    arrays = {name: np.stack([row.pop(name).numpy() for row in case["rows"]]) for name in names}
    case["arrays"] = f"flashblock-{number:02}.npz"
    np.savez(out / case["arrays"], **arrays)
    return case


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("repository", type=pathlib.Path, help="work tree of Caesarhhh/Flash_Block")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("models", type=pathlib.Path, help="our models/ folder")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--tau", type=int)
    parser.add_argument("--random", type=int, default=0)
    arguments = parser.parse_args()
    wanted = not arguments.random and arguments.tau != 1  # whether a run must have what it is there for
    out, kernels = arguments.out, Kernels()
    out.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(arguments.repository / "dllm/sample"))
    os.environ["TRADO_WARMUP_MODEL_LEN"] = "8"
    torch.set_num_threads(1)
    cases, given_up = [], 0
    for name, (spec_name, overrides) in SPECS.items():
        checkpoints.write_checkpoint(out / name, checkpoints.spec_of(spec_name, **overrides))
    for name in SHIPPED:
        (out / name).unlink(missing_ok=True)
        (out / name).symlink_to((arguments.models / name).resolve())
    stub_modules(kernels)
    no_cuda()
    with OnCpu():
        for number, case in enumerate(random_cases(arguments.random) if arguments.random else CASES, 1):
            name, tau = case[0], arguments.tau or case[1]
            config = json.loads((out / name / "config.json").read_text())
            mask_id, vocab = config["mask_token_id"], config["vocab_size"]

            run = lambda seed: run_case(out / name, mask_id, vocab, case, tau, kernels, wanted, seed)  # noqa: E731
            done = common.without_near_ties(run, 1000 * number)
            given_up += done is None
            cases += [write(out, number, done)] if done else []
            print(number, name, "given up" if done is None else (len(done["rows"]), done["choice_margin"]), flush=True)
    source = dict(repository="Caesarhhh/Flash_Block", commit=arguments.commit,
                  function="dllm/sample/jetengine_ext/engine/llm_engine.py:generate_streaming")
    head = json.dumps(dict(family="flashblock", method="engine", source=source, torch=torch.__version__))
    text = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (out / "oracle-flashblock-engine.json").write_text(f'{head[:-1]}, "cases": [\n{text}\n]}}\n')
    print(f"{len(cases)} cases, {sum(len(case['rows']) for case in cases)} rows, {given_up} given up (near ties)")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
