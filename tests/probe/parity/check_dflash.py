"""DFlash drafts in both layouts against dflash_oracle.py: every token, accepted lengths, rows, /draft, /prediction, and
what the draft's attention did in every layer; then sampled runs, whose tokens must have the target's distribution."""

import collections
import dataclasses
import json
import pathlib

import attention_math as am
import harness
import numpy as np
import torch
from check_attention import Worst, check_set
from dflash_checkpoints import LETTERS, Shape, write_pair
from dflash_oracle import COMMIT, DENOISE, PREFILL, decode, run_target
from trace_file import Trace

NEAR_TIE = 1e-4  # in logits
REASONS = {1: "length", 2: "stop"}
SET_SIZE = 6
CANDIDATES = ("candidate_token", "candidate_probability", "candidate_score", "candidate_chosen", "candidate_target")


@dataclasses.dataclass
class Case:
    name: str
    shape: Shape
    lengths: tuple = (1, 7, 30)       # of the prompts
    gen_lengths: tuple = (23, 11, 40)
    block_length: int | None = None
    stop: bool = False
    level: str = "full"
    seed: int = 0                     # of the prompts


CASES = [
    Case("z-lab, layers by default", Shape(vocab=5, seed=1)),
    Case("tied target, the last layer tapped", Shape(vocab=6, layers=4, tied=True, target_layers=(0, 3), block_size=6,
                                                     heads=6, kv_heads=3, seed=4)),
    Case("a Llama 3.1 target", Shape(vocab=5, llama=True, seed=6), stop=True),
    Case("one draft layer", Shape(vocab=5, layers=7, draft_layers=1, block_size=9, kv_heads=1, seed=2),
         stop=True),
    Case("block of 2", Shape(vocab=5, block_size=2, draft_layers=3, layers=9, seed=29), stop=True),
    Case("rounds of 1", Shape(vocab=7, block_size=4, seed=5), gen_lengths=(5, 6, 7), block_length=1),
    Case("shorter blocks than the draft's", Shape(vocab=5, block_size=8, target_layers=(2, 1, 4), seed=100),
         block_length=3),
    Case("block size among dflash_config", Shape(vocab=6, block_size=16, block_key_inside=True, draft_layers=4,
                                                 layers=12, seed=1), gen_lengths=(1, 2, 40), level="outputs"),
    Case("two prefill passes", Shape(vocab=5, block_size=4, layers=4, draft_layers=1, target_layers=(1, 2), seed=8),
         lengths=(512, 700), gen_lengths=(9, 12)),
    Case("speculators, fewer tokens", Shape(vocab=9, draft_vocab=5, target_layers=(0, 2, 4), seed=44), stop=True),
    Case("DFlash 2", Shape(vocab=12, block_size=8, second=(2, 16, 6, 4), seed=1), stop=True),
    Case("DFlash 2, factors", Shape(vocab=9, block_size=6, second=(3, 4, 5, 9), target_layers=(1, 3), seed=2,
                                    block_key_inside=True,
                                    factors={"input_embedding_scale": 1.5, "output_multiplier": 0.4,
                                             "final_logit_softcapping": 3.0})),
    Case("DFlash 2, one candidate, blocks of 2", Shape(vocab=7, block_size=5, second=(2, 8, 3, 1), seed=3),
         block_length=2),
    Case("DFlash 2 of speculators", Shape(vocab=8, draft_vocab=8, target_layers=(0, 4), second=(2, 32, 4, 3), seed=4),
         level="outputs"),
    Case("factors of DFlash 1", Shape(vocab=6, seed=6, factors={"input_embedding_scale": 0.5, "output_multiplier": 2.0,
                                                               "final_logit_softcapping": 5.0})),
    Case("a target with experts", Shape(vocab=6, experts=5, second=(2, 16, 4, 3), seed=30)),
    Case("from the anchor", Shape(vocab=6, draft_vocab=6, target_layers=(1, 3), from_anchor=True, seed=8), stop=True),
    Case("from the anchor, fewer tokens, shorter blocks",
         Shape(vocab=9, draft_vocab=5, target_layers=(2,), from_anchor=True, block_size=6, seed=9), block_length=4,
         level="sets"),
    Case("windows, causal by default", Shape(vocab=6, windows=(9, 0), block_size=5, seed=10)),
    Case("windows of DFlash 2, whole blocks", Shape(vocab=12, windows=(16, 16), causal=False, block_size=6,
                                                    second=(2, 16, 6, 4), seed=11)),
    Case("causal without windows", Shape(vocab=6, causal=True, seed=12)),
    Case("windows of speculators' drafts", Shape(vocab=7, draft_vocab=7, windows=(0, 7), target_layers=(1,),
                                                from_anchor=True, block_size=6, seed=13), level="sets"),
    Case("speculators, all tokens", Shape(vocab=6, draft_vocab=6, target_layers=(3,), block_size=7, seed=119),
         level="sets"),
]


def capture(folder, trace, prompts, *flags):
    lines = folder / "prompts.jsonl"
    lines.write_text("".join(json.dumps({"id": f"p{i}", "input_ids": ids, "gen_length": count}) + "\n"
                             for i, (ids, count) in enumerate(prompts)))
    harness.run("capture", folder / "target", "--draft", folder / "draft", "--prompts", lines, "-o", trace, "--force",
                "--quiet", "--dtype", "float32", "--threads", 1, *flags)
    return Trace(trace)


def compare_columns(trace, index, prompt, run, where, worst):
    """-> the trace's rows of the sequence."""
    rows = trace.rows_of(index)
    for name, field in (("kind", "kind"), ("block_start", "block_start"), ("context_length", "context"),
                        ("step", "step"), ("masks_left", "masks_left")):
        ours, expected = trace.rows(f"/steps/{name}")[rows].tolist(), [getattr(row, field) for row in run.rows]
        harness.require(ours == expected, f"{where}: {name} {ours}, expected {expected}")
    rounds = np.cumsum([row.kind == COMMIT for row in run.rows])
    expected = [-1 if row.kind == PREFILL else int(n) - (row.kind == COMMIT) for row, n in zip(run.rows, rounds)]
    ours = trace.rows("/steps/block")[rows].tolist()
    harness.require(ours == expected, f"{where}: block {ours}, expected {expected}")
    ours = trace.rows("/draft/accepted")[rows].tolist()
    harness.require(ours == [row.accepted for row in run.rows], f"{where}: accepted {ours}")
    for number, row in zip(rows, run.rows):
        # The last position of a round that begins to draft at the anchor has no row of the draft.
        valid = trace.rows("/steps/valid")[number].tolist()
        queries = {PREFILL: 0, DENOISE: row.queries, COMMIT: len(valid)}[row.kind]
        expected = [1] * queries + [0] * (len(valid) - queries)
        harness.require(valid == expected, f"{where}, row {number}: valid {valid}, expected {expected}")
        positions, tokens, confidence = trace.delta(int(number))
        decided = [list(column) for column in zip(*row.decided)] or [[], [], []]
        harness.require([positions, tokens] == decided[:2],
                        f"{where}, row {number}: {positions} {tokens}, {row.decided}")
        worst.add("/frames/confidence", confidence, decided[2], 1e-4)
        compare_verdict(trace, int(number), row, f"{where}, row {number}", worst)
    return rows


def compare_verdict(trace, number, row, where, worst):
    size = trace.rows("/steps/valid").shape[1]
    hole = {np.dtype(np.int32): -1, np.dtype(np.float32): np.nan}
    for name in CANDIDATES:
        compare_candidates(trace, number, name, row.candidates.get(name), where, worst)
    said = {f"/draft/{name}": values for name, values in row.verdict.items()}
    for group in ("/prediction", "/draft"):
        said |= {f"{group}/token": row.drafted, f"{group}/confidence": row.confidence}
    for path in ("/draft/target_token", "/draft/target_rank_under_draft", "/draft/target_probability_under_draft", "/draft/drafted_rank_under_target",
                 "/draft/drafted_probability_under_target", "/draft/draft_entropy", "/draft/target_entropy", "/draft/token",
                 "/draft/confidence", "/prediction/token", "/prediction/confidence"):
        ours, none = trace.rows(path)[number], hole[trace.file[path].dtype]
        expected = np.array([none, *said[path]] if said.get(path) else [none] * size)
        if ours.dtype == np.int32:
            harness.require(np.array_equal(ours, expected), f"{where}: {path} {ours}, expected {expected}")
        else:
            worst.add(path, ours, expected, 1e-4)


def compare_candidates(trace, number, name, values, where, worst):
    """values: of block positions from 1 on, or None: a row without candidates, or a trace without a selector."""
    path = f"/draft/{name}"
    if not trace.has(path):
        harness.require(values is None, f"{where}: no {path}")
        return
    ours = trace.rows(path)[number]
    none = np.nan if ours.dtype == np.float32 else -1
    expected = np.full(ours.shape, none)
    if values is not None:
        expected[1:] = values
    if ours.dtype == np.int32:
        harness.require(np.array_equal(ours, expected),
                        f"{where}: {path} {ours.tolist()}, expected {expected.tolist()}")
    else:
        worst.add(path, ours, expected, 1e-4, max(1.0, np.abs(np.nan_to_num(expected)).max()))


def to_block(rows, axis, valid):
    """The rows of a pass along `axis` at the positions where `valid` is true; NaN at the others."""
    if axis is None or valid.all():
        return rows
    shape = list(rows.shape)
    shape[axis] = len(valid)
    block = np.moveaxis(np.full(shape, np.nan), axis, 0)
    block[valid] = np.moveaxis(rows, axis, 0)
    return np.moveaxis(block, 0, axis)


def compare_layers(trace, number, row, spec, worst):
    get = lambda path, *at: trace.file[path][(number, *at)].astype(np.float64)
    valid = trace.rows("/steps/valid")[number].astype(bool)
    for layer, seen in enumerate(row.layers):
        query, key, value, context_key, context_value, hidden = (
            getattr(seen, name).detach().numpy()
            for name in ("query", "key", "value", "context_key", "context_value", "hidden"))
        scale = query.shape[-1] ** -0.5
        outer, inner = am.scores_of(query, context_key, scale), am.scores_of(query, key, scale)
        outside, inside = (part.numpy() for part in seen.seen)
        external, internal = am.attention(outer, context_value, outside), am.attention(inner, value, inside)
        mass = 1 / (1 + np.exp(internal[1] - external[1]))
        for path, expected, axis in (
                ("/attention/external", external[0], 1), ("/attention/lse_external", external[1], 1),
                ("/attention/internal", internal[0], 1), ("/attention/lse_internal", internal[1], 1),
                ("/query/query", query, 1), ("/hidden/hidden", hidden, 0), ("/kv/key", key, 1), ("/kv/value", value, 1),
                ("/summary/external_mass", mass.mean(-1), None)):
            if trace.has(path):
                size = max(1.0, np.abs(expected).max()) * (max(1.0, np.abs(inner).max()) if "attention" in path else 1)
                worst.add(path, get(path, layer), to_block(expected, axis, valid), 5e-5, size)
        if not trace.has("/sets/topk"):
            continue
        # The sets are of keys that every row sees, in absolute positions.
        first = int(np.argmax(outside.all(0))) if outside.size else 0
        truth = am.mean_probability(outer[..., first:], external[1], spec.kv_heads)
        index = trace.file["/sets/topk"][number, layer]
        index = np.where(index < 0, index, index - first)
        check_set(worst, "/sets/topk", index, get("/sets/probability", layer), truth, SET_SIZE)
        count = min(SET_SIZE, truth.shape[-1])
        best = np.sort(truth, -1)[:, ::-1]
        clear = (best[:, :count] - np.pad(best, ((0, 0), (0, 1)))[:, 1:count + 1] > 1e-5).all(-1)
        expected = am.best(truth, count)
        harness.require(np.array_equal(index[clear, :count], expected[clear]),
                        f"row {number}, layer {layer}: other sets")


def compare_prefix(trace, rows, run, num_layers, worst):
    """Keys and values that each prefill and commit row stored: those of the last pass's context there."""
    last = [row for row in run.rows if row.layers][-1]
    ends = np.concatenate([[0], trace.rows("/prefix/end")])
    stored = 0
    sequence = trace.file["/steps/sequence"][rows[0]]
    answer_end = trace.file["/sequences/prompt_length"][sequence] + trace.file["/sequences/gen_length"][sequence]
    for number, row in zip(rows, run.rows):
        begin, end = int(ends[number]), int(ends[number + 1])
        kept = (row.stored[0], max(row.stored[0], min(row.stored[1], answer_end)))  # a round may go past the end
        harness.require(trace.file["/prefix/position"][begin:end].tolist() == list(range(*kept)),
                        f"row {number}: stored {trace.file['/prefix/position'][begin:end]}, expected {kept}")
        count = min(kept[1], last.context) - row.stored[0]  # after it no pass of the judge looked
        for layer in range(num_layers if count > 0 else 0):
            seen = last.layers[layer]
            for path, truth in (("/prefix/key", seen.context_key), ("/prefix/value", seen.context_value)):
                expected = truth[:, row.stored[0]:row.stored[0] + count].detach().numpy().transpose(1, 0, 2)
                ours = trace.file[path][begin:begin + count, layer].astype(np.float64)
                worst.add(path, ours, expected, 5e-5, max(1.0, np.abs(expected).max()))
        stored += count
    harness.require(stored == last.context, "not all of the context was stored")


def compare_end(trace, index, run, stop_ids, mask, where):
    """The mask's token, which a target of random weights may choose, is left out of texts, as everywhere."""
    reason = REASONS[int(trace.file["/sequences/finish_reason"][index])]
    harness.require(reason == run.reason, f"{where}: {reason}, expected {run.reason}")
    answer = [token for token in run.answer if token is not None]
    stops = [i for i, token in enumerate(answer) if token in stop_ids]
    text = "".join(LETTERS[token] for token in answer[:stops[0] if stops else len(answer)] if token != mask)
    ours = trace._text("text", index).decode()
    harness.require(ours == text, f"{where}: text {ours!r}, expected {text!r}")


def check_case(folder, case, worst, counts):
    pair = write_pair(folder, case.shape)
    generator = torch.Generator().manual_seed(case.seed)
    prompts = [(torch.randint(0, case.shape.vocab - 1, (n,), generator=generator).tolist(), count)
               for n, count in zip(case.lengths, case.gen_lengths)]
    block = case.block_length or pair.longest_round
    free = [decode(pair, prompt, count, block) for prompt, count in prompts]
    # The token that comes up last, so that there are rounds before; --stop-id refuses the mask's.
    longest = free[-1].answer
    stop_ids = [max(set(longest) - {pair.mask}, key=longest.index)] if case.stop else []
    flags = [flag for token in stop_ids for flag in ("--stop-id", token)] or ["--no-stop"]
    flags += ["--block-length", case.block_length] if case.block_length else []
    flags += ["--array-type", "f32"] if case.level in ("outputs", "full") else []
    trace = capture(folder, folder / "run.h5", prompts, "--record", case.level, "--set-size", SET_SIZE, *flags)
    harness.require(int(trace.file.attrs["has_draft"]) == 1, "no has_draft")
    harness.require(trace.json("/model/json")["target"]["digest"] != trace.json("/model/json")["digest"], "one digest")
    for i, (prompt, count) in enumerate(prompts):
        run, where = decode(pair, prompt, count, block, stop_ids) if stop_ids else free[i], f"{case.name}, p{i}"
        harness.require(run.margin > NEAR_TIE, f"{where}: a near tie of {run.margin:.1e}; choose another seed")
        index = trace.names().index(f"p{i}")
        rows = compare_columns(trace, index, prompt, run, where, worst)
        for number, row in zip(rows, run.rows):
            compare_layers(trace, int(number), row, case.shape, worst)
        if case.level == "full" and any(row.layers for row in run.rows):
            compare_prefix(trace, rows, run, case.shape.draft_layers, worst)
        compare_end(trace, index, run, stop_ids, pair.mask, where)
        drafts = [row for row in run.rows if row.kind == DENOISE]
        counts["sequences"] += 1
        counts["rounds"] += len(drafts)
        counts["accepted"] += sum(row.accepted for row in drafts)
        counts["nothing accepted"] += sum(row.accepted == 0 for row in drafts)
        counts["everything accepted"] += sum(row.accepted == block - 1 for row in drafts)
        counts["cut at the answer's end"] += sum(len(row.decided) < row.accepted for row in drafts)
        counts["choices the draft lacks"] += sum(rank == -1 for row in drafts for rank in row.verdict["target_rank_under_draft"])
        for row in drafts:
            counts["chose another than the best"] += sum(i > 0 for i in row.candidates.get("candidate_chosen", ()))
            counts["target's token no candidate"] += sum(i < 0 for i in row.candidates.get("candidate_target", ()))
        counts["stopped"] += run.reason == "stop"
        counts["nearest decision"] = min(counts["nearest decision"], run.margin)


def check_sampling(folder, shape, prompt, runs, limit):
    """Chi-square of the first two tokens over `runs` seeds; `limit`: what is exceeded once in 10,000 times."""
    pair = write_pair(folder, shape)
    seen, accepted = collections.Counter(), 0
    first = run_target(pair, prompt)[0][-1].softmax(-1)
    truth = torch.stack([first[t] * run_target(pair, [*prompt, t])[0][-1].softmax(-1) for t in range(shape.vocab)])
    for seed in range(runs):
        trace = capture(folder, folder / "run.h5", [(prompt, 2)], "--record", "trajectory", "--no-stop",
                        "--temperature", 1, "--seed", seed)
        deltas = [trace.delta(int(row)) for row in trace.rows_of(0)]
        tokens = dict(pair for d in deltas for pair in zip(d[0], d[1]))
        seen[tokens[0], tokens[1]] += 1
        row = int(np.flatnonzero(trace.rows("/steps/kind") == DENOISE)[0])
        same = trace.rows("/prediction/token")[row][1:] == trace.rows("/draft/target_token")[row][1:]
        harness.require(int(trace.rows("/draft/accepted")[row]) == int(np.cumprod(same).sum()),
                        f"seed {seed}: accepted")
        accepted += bool(same[0])
    expected = (truth * runs).numpy()
    harness.require(expected.min() >= 5, f"a cell of {expected.min():.1f} runs: choose another seed")
    got = np.array([[seen[a, b] for b in range(shape.vocab)] for a in range(shape.vocab)])
    statistic = float(((got - expected) ** 2 / expected).sum())
    print(f"sampled: {runs} runs, {accepted} accepted, chi-square {statistic:.1f} (limit {limit})")
    harness.require(0 < accepted < runs, "one outcome only")
    harness.require(statistic < limit, f"chi-square {statistic:.1f} exceeds {limit}:\n{got}\n{expected}")


def main():
    harness.start()
    worst, counts = Worst(), collections.Counter({"nearest decision": float("inf")})
    with harness.temporary_folder() as path:
        for i, case in enumerate(CASES):
            check_case(pathlib.Path(path) / str(i), case, worst, counts)
            print(case.name, flush=True)
        check_sampling(pathlib.Path(path) / "sampled", Shape(vocab=3, block_size=3, seed=43), [0, 1, 1], 300, 31.8)
    for name, (count, error) in worst.errors.items():
        print(f"  {name:30} {count:8} values, largest error {error:.1e}")
    for name, count in counts.items():
        print(f"  {name}: {count}")
        harness.require(count > 0, f"{name}: the cases never get there")


if __name__ == "__main__":
    main()
