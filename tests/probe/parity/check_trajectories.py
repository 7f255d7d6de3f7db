"""Oracle B: greedy decoding step by step against oracle_decoder.py, for every strategy.

Ours runs the prompts as batches of unequal lengths; the oracle decodes each alone. Compared are the
kinds of rows, N, M, masks left, the transferred positions, tokens and confidences, the most
probable token of every position, the final sequence and why it ended.
"""

import dataclasses
import json
import pathlib

import harness
import torch
from checkpoints import mask_id, spec_of, write_checkpoint
from oracle_decoder import COMMIT, DENOISE, PREFILL, Options, decode
from oracle_rules import Rules
from trace_file import Trace

CONFIDENCE_TOLERANCE = 1e-4
# Seeds are chosen so that no decision is nearer than this to another one: our logits differ by
# about 1e-5, our probabilities by about 3e-6.
NEAR_TIE_LOGITS = 1e-4
NEAR_TIE_CHOICE = 1e-5
REASONS = {1: "length", 2: "stop"}
ALL = [("sequential", {}), ("low_confidence_static", {}),
       ("low_confidence_dynamic", {"threshold": 0.4}), ("entropy_bounded", {"eb_threshold": 4.0}),
       ("threshold", {"threshold": 0.3}), ("factor", {"factor": 1.6})]
BY_SCORE = [("low_confidence_static", {"rank_by": "margin"}),
            ("low_confidence_static", {"rank_by": "negative_entropy"}),
            ("low_confidence_dynamic", {"rank_by": "margin", "threshold": 0.2}),
            ("low_confidence_dynamic", {"rank_by": "negative_entropy", "threshold": -2.0}),
            ("threshold", {"rank_by": "margin", "threshold": 0.15}),
            ("threshold", {"rank_by": "negative_entropy", "threshold": -2.5}),
            ("factor", {"rank_by": "margin", "factor": 1.8})]
KLASS = [("klass", {"threshold": 0.15, "kl_threshold": 0.6}),
         ("klass", {"threshold": 0.1, "kl_threshold": 1.5, "kl_history": 1}),
         ("klass", {"threshold": 0.1, "kl_threshold": 2.0, "kl_history": 3}),
         ("klass", {"threshold": 0.1, "kl_threshold": 2.0, "klass_choose": "max_conf"}),
         ("klass", {"threshold": 0.1, "kl_threshold": 2.0, "klass_choose": "min_kl"})]
PREFIX = [("prefix_ordered", {"threshold": 0.35}),
          ("prefix_ordered", {"threshold": 0.2, "rank_by": "margin"})]
LINEAR = [("low_confidence_static", {"quota": "linear"}),
          ("low_confidence_dynamic", {"quota": "linear", "threshold": 0.4}),
          ("sequential", {"quota": "linear"}),
          ("prefix_ordered", {"quota": "linear", "threshold": 0.3}),
          ("klass", {"quota": "linear", "threshold": 0.2, "kl_threshold": 0.8})]
CARRY = [("threshold", {"quota": "carry", "threshold": 0.1}),
         ("threshold", {"quota": "carry", "threshold": 0.6}),
         ("threshold", {"quota": "carry", "threshold": 0.3, "rank_by": "margin"})]
DENSITY = [("low_confidence_static", {"density_sigma": 3.0}),
           ("threshold", {"density_sigma": 8.0, "threshold": 0.15}),
           ("prefix_ordered", {"density_sigma": 1.5, "threshold": 0.15}),
           ("pc_sampler", {"density_sigma": 5.0, "pc_lambda": 0.0, "frequencies": "table"})]
PC = [("pc_sampler", {"frequencies": "table"}),
      ("pc_sampler", {"frequencies": "table", "pc_lambda": 0.0}),
      ("pc_sampler", {"frequencies": "table", "pc_lambda": 0.05, "pc_alpha": 0.9})]
# After a step that chose nothing but [MASK] the same input comes again, and every KL is 0: a tie.
WITHOUT_TIES = lambda choices: [c for c in choices if c[1].get("klass_choose") != "min_kl"]
NEW = [*KLASS, *PREFIX, *LINEAR, *CARRY, *DENSITY, *PC]


@dataclasses.dataclass
class Case:
    name: str
    checkpoint: str
    steps: int
    lengths: list               # prompt lengths
    strategies: list = dataclasses.field(default_factory=lambda: ALL)
    batch: int = 3
    overrides: dict = dataclasses.field(default_factory=dict)  # of the checkpoint
    stop: bool = False          # take stop ids from what a run without them generates
    as_diffusion: int = 0       # qwen3 run with SDAR's masks: the block length


CACHES = ("commit", "blockd")

CASES = [
    Case("one token a step", "sdar-g3-tied", 8, [3, 8, 17, 30, 1]),
    Case("uneven schedule 3 3 2", "sdar-g3-tied", 3, [9, 6, 16, 23], batch=4),
    Case("block of 5 in bf16 shards", "sdar-g4-bf16-sharded", 2, [5, 4, 12, 21], batch=2),
    Case("stop ids", "sdar-g2", 4, [2, 7, 12, 19], stop=True),
    Case("[MASK] is often the best token", "sdar-g2", 3, [5, 11, 16], batch=3,
         overrides={"mask_bias": 2.5, "block_length": 8}),
    Case("holes in a sequential run", "sdar-g2", 2, [5, 4, 13, 12, 21, 20, 29, 28], batch=4,
         overrides={"mask_bias": 3.5, "block_length": 8, "seed": 56}, strategies=ALL[:1]),
    Case("block of 32", "sdar-d128-b32", 8, [5, 77], batch=2, strategies=ALL[1:]),
    Case("RoPE scaling and grouped heads", "sdar-yarn", 4, [6, 33], strategies=ALL[1:3]),
    Case("a prompt of several prefill passes", "sdar-g4-bf16-sharded", 5, [1103, 7], batch=2,
         overrides={"positions": 2048}, strategies=ALL[2:3]),
    Case("Stable-DiffCoder", "stable-diffcoder", 3, [6, 19, 33], strategies=ALL[1:]),
    Case("experts", "sdarmoe-16", 5, [6, 19, 40], strategies=ALL[1:4]),
    Case("experts in groups", "llada2-groups", 5, [6, 19, 40], strategies=ALL[1:4]),
    Case("Qwen2 with SDAR's masks", "qwen2-g2", 4, [5, 14], as_diffusion=4, strategies=ALL[1:2]),
    Case("Qwen3 with SDAR's masks", "qwen3-g2", 6, [4, 13, 18], as_diffusion=6,
         strategies=ALL[:2]),
    Case("margins and entropies", "sdar-g3-tied", 3, [7, 12, 25], strategies=BY_SCORE),
    Case("margins and entropies, block of 5", "sdar-g4-bf16-sharded", 2, [5, 4, 21], batch=2,
         strategies=BY_SCORE),
    Case("newer strategies", "sdar-g3-tied", 8, [3, 17, 30], strategies=NEW),
    Case("newer strategies, uneven", "sdar-g3-tied", 3, [9, 6, 16], strategies=NEW),
    Case("newer strategies, block of 5", "sdar-g4-bf16-sharded", 4, [5, 4, 12], batch=2,
         strategies=NEW),
    Case("newer strategies, [MASK]", "sdar-g2", 6, [5, 11, 16], strategies=WITHOUT_TIES(NEW),
         overrides={"mask_bias": 2.5, "block_length": 8}),
    Case("newer strategies, block of 32", "sdar-d128-b32", 12, [5, 77], batch=2, strategies=NEW),
]


def make_prompts(spec, case):
    generator = torch.Generator().manual_seed(1000 + spec["seed"])
    prompts = []
    for i, length in enumerate(case.lengths):
        ids = torch.randint(0, spec["vocab"] - 5, (length,), generator=generator).tolist()
        prompts.append({"id": f"p{i}", "input_ids": ids, "gen_length": 14 + 3 * i})
    return prompts


def label(strategy, values):
    """What is counted apart: the strategy and what it is combined with."""
    names = [values.get("rank_by", ""), values.get("quota", ""), values.get("klass_choose", ""),
             "density" if "density_sigma" in values else ""]
    return " ".join([strategy, *filter(None, names)])


def write_table(checkpoint, vocab):
    """Token counts for pc_sampler."""
    generator = torch.Generator().manual_seed(vocab)
    counts = (torch.rand(vocab, generator=generator) ** 4 * 5000).int().tolist()
    return harness.write_frequencies(checkpoint, counts)


def our_run(folder, case, checkpoint, prompts, options, values, cache):
    trace = folder / "run.h5"
    lines = folder / "prompts.jsonl"
    lines.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    strategy = ",".join([options.strategy, *(f"{name}={value}" for name, value in values.items())])
    flags = ["--strategy", strategy, "--denoising-steps", options.steps,
             "--batch-size", case.batch, "--cache", cache]
    for token in options.stop_ids:
        flags += ["--stop-id", token]
    if case.as_diffusion:
        flags += ["--mask-token-id", options.mask_id, "--block-length", options.block_length]
    harness.run("capture", checkpoint, "--prompts", lines, "--record", "trajectory", "-o", trace,
                "--force", "--quiet", "--dtype", "float32", "--threads", 1, *flags)
    return Trace(trace)


def compare_row(trace, row, expected, prompt_length, where):
    def same(name, ours, theirs):
        harness.require(ours == theirs, f"{where}: {name}: ours {ours}, oracle {theirs}")

    value = lambda name: int(trace.rows(f"/steps/{name}")[row])
    same("kind", value("kind"), expected.kind)
    same("block", value("block"), expected.block)
    same("step", value("step"), expected.step)
    same("N", value("context_length"), expected.context_length)
    same("M", value("changed"), expected.changed)
    same("masks left", value("masks_left"), expected.masks_left)
    positions, tokens, confidence = trace.delta(row)
    same("positions", [prompt_length + p for p in positions], expected.positions)
    same("tokens", tokens, expected.tokens)
    if expected.kind == DENOISE:
        same("best tokens", trace.rows("/prediction/token")[row].tolist(), expected.top1)
        confidence += trace.rows("/prediction/confidence")[row].tolist()
        theirs = expected.confidence + expected.top1_confidence
        worst = max(abs(a - b) for a, b in zip(confidence, theirs, strict=True))
        harness.require(worst <= CONFIDENCE_TOLERANCE, f"{where}: confidence differs by {worst}")
        return worst
    return 0.0


def check_prefill(trace, rows, prompt_length, block_length, where):
    """The prefill passes tile the prompt's whole blocks."""
    starts = [int(trace.rows("/steps/block_start")[row]) for row in rows]
    lengths = [int(trace.rows("/steps/context_length")[row]) for row in rows]
    whole = prompt_length // block_length * block_length
    harness.require(starts == lengths and starts == sorted(set(starts)) and
                    all(s % block_length == 0 and s < whole for s in starts) and
                    (starts[:1] == [0]) == (whole > 0), f"{where}: prefill passes at {starts}")
    return len(rows)


def compare_sequence(trace, index, prompt, oracle, counts, where):
    rows = trace.rows_of(index)
    kinds = trace.rows("/steps/kind")[rows]
    size = int(trace.file.attrs["block_length"])
    counts["prefill passes"] = max(counts["prefill passes"], check_prefill(
        trace, rows[kinds == PREFILL], len(prompt), size, where))
    rows = rows[kinds != PREFILL]
    # blockd commits a block with the next one's first step, so never the last.
    last = oracle.rows[-1].kind == COMMIT and where.endswith("blockd")
    harness.require(len(rows) == len(oracle.rows) - last,
                    f"{where}: {len(rows)} rows, the oracle has {len(oracle.rows)}")
    harness.require(trace.prompt(index) == prompt, f"{where}: another prompt")
    worst = 0.0
    tokens = list(oracle.tokens[:len(prompt)]) + [None] * (len(oracle.tokens) - len(prompt))
    for number, (row, expected) in enumerate(zip(rows, oracle.rows)):
        worst = max(worst, compare_row(trace, int(row), expected, len(prompt),
                                       f"{where}, row {number}"))
        for position, token in zip(*trace.delta(int(row))[:2]):
            tokens[len(prompt) + position] = token
    known = [token for token, want in zip(tokens, oracle.tokens) if token is not None]
    harness.require(all(a in (None, b) for a, b in zip(tokens, oracle.tokens)),
                    f"{where}: the frames end elsewhere")
    reason = REASONS.get(int(trace.file["/sequences/finish_reason"][index]))
    harness.require(reason == oracle.reason, f"{where}: ended by {reason}, not {oracle.reason}")
    harness.require(len(known) > len(prompt), f"{where}: nothing was generated")
    return worst


def check_passes(trace, cache, where):
    """A commit shares its pass with the first step of the next block, and only under blockd."""
    column = lambda name: trace.rows(f"/steps/{name}").tolist()
    rows = list(zip(column("sequence"), column("pass"), column("kind"), column("block"), column("step")))
    denoising = {(sequence, number): (block, step)
                 for sequence, number, kind, block, step in rows if kind == DENOISE}
    for sequence, number, kind, block, _ in rows:
        if kind != COMMIT:
            continue
        beside = denoising.get((sequence, number))
        expected = (block + 1, 1) if cache == "blockd" else None
        harness.require(beside == expected,
                        f"{where}: block {block} is committed beside {beside}, not {expected}")


def stop_ids_of(model, prompts, options):
    """Two tokens that free running generates in a middle block of some prompt."""
    ids = []
    for prompt in prompts[:2]:
        free = decode(model, prompt["input_ids"],
                      dataclasses.replace(options, gen_length=prompt["gen_length"]))
        generated = free.tokens[len(prompt["input_ids"]):]
        ids.append(generated[len(generated) // 2])
    return tuple(ids)


def check_case(folder, case, counts):
    spec = spec_of(case.checkpoint, **case.overrides)
    checkpoint = folder / case.name.replace(",", "").replace(" ", "-")
    model = write_checkpoint(checkpoint, spec)
    prompts = make_prompts(spec, case)
    worst = 0.0
    table = write_table(checkpoint, spec["vocab"])
    for strategy, values in case.strategies:
        if "frequencies" in values:
            values = {**values, "frequencies": table}
        where = f"{case.name}, {label(strategy, values)}"
        options = Options(strategy, mask_id(spec), case.as_diffusion or spec["block_length"],
                          case.steps, 0, **values)
        if case.stop:
            options.stop_ids = stop_ids_of(model, prompts, options)
        traces = {cache: our_run(checkpoint, case, checkpoint, prompts, options, values, cache)
                  for cache in CACHES}
        for prompt in prompts:
            oracle = decode(model, prompt["input_ids"],
                            dataclasses.replace(options, gen_length=prompt["gen_length"]))
            counts["logit margin"] = min(counts["logit margin"], oracle.logit_margin)
            counts["choice margin"] = min(counts["choice margin"], oracle.choice_margin)
            harness.require(oracle.logit_margin > NEAR_TIE_LOGITS
                            and oracle.choice_margin > NEAR_TIE_CHOICE,
                            f"{where}: {prompt['id']} has a near tie ({oracle.logit_margin:.1e}, "
                            f"{oracle.choice_margin:.1e}); choose another seed")
            for cache, trace in traces.items():
                worst = max(worst, compare_sequence(trace, trace.names().index(prompt["id"]),
                                                    prompt["input_ids"], oracle, counts,
                                                    f"{where}, {prompt['id']}, {cache}"))
                check_passes(trace, cache, f"{where}, {cache}")
            count(counts, oracle, label(strategy, values), options.steps)
    return worst


def count(counts, oracle, strategy, steps):
    """What the cases reached, so that a case that tests nothing is seen."""
    counts["rows"] += len(oracle.rows)
    counts["sequences"] += 1
    counts["stopped"] += oracle.reason == "stop"
    counts["masks committed"] += sum(r.masks_left for r in oracle.rows if r.kind == COMMIT)
    for row in oracle.rows:
        if row.kind == DENOISE:
            counts["late"] += row.step > steps
            counts.setdefault(strategy, set()).add(len(row.positions))


def main():
    harness.start()
    counts = {"rows": 0, "sequences": 0, "stopped": 0, "masks committed": 0, "late": 0,
              "prefill passes": 0, "logit margin": float("inf"), "choice margin": float("inf")}
    with harness.temporary_folder() as path:
        for case in CASES:
            worst = check_case(pathlib.Path(path), case, counts)
            print(f"{case.name:32} largest difference of a confidence {worst:.1e}", flush=True)
    print(f"{counts['sequences']} sequences, {counts['rows']} rows, {counts['stopped']} ended by a "
          f"stop id, {counts['masks committed']} masks committed")
    print(f"nearest decision: {counts['logit margin']:.1e} in logits, "
          f"{counts['choice margin']:.1e} in confidence or entropy")
    for name in {label(*chosen): None for case in CASES for chosen in case.strategies}:
        print(f"  {name}: tokens per step {sorted(counts[name])}")
        harness.require(len(counts[name]) > 1, f"{name}: every step took the same number")
    print(f"{counts['late']} steps behind the last that was planned; steps with several positions ready: {dict(Rules.several)}")
    harness.require(counts["late"] > 0, "no block took more steps than planned: the carried quota was not tried")
    harness.require(all(Rules.several[name] for name in ("all", "max_conf", "min_kl")),
                    "klass never had several positions to choose from")
    harness.require(counts["prefill passes"] > 2, "no prompt took several prefill passes")
    harness.require(counts["stopped"] > 0 and counts["masks committed"] > 0,
                    "the cases reach no stop id or leave no mask")


if __name__ == "__main__":
    main()
