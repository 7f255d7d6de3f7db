"""Rounds of dflash_oracle.py, written as another engine would dump them, against `capture`'s: `import` and `diff` find
no difference; with one token of the dump changed, `diff` names that round and no other. The lines of Python that
docs/interchange.md gives to users of vLLM and SGLang run here on stand-ins that hold the judge's rounds."""

import json
import pathlib
import random
import re
import sys
from types import SimpleNamespace

import h5py
import harness
import numpy as np
import torch
from check_dflash import NEAR_TIE, capture
from dflash_checkpoints import Shape, write_pair
from dflash_oracle import COMMIT, DENOISE, decode

DOCUMENT = pathlib.Path(__file__).parents[3] / "docs" / "interchange.md"
SHAPES = [Shape(vocab=5, seed=1), Shape(vocab=5, block_size=2, draft_layers=3, layers=9, seed=29),
          Shape(vocab=9, draft_vocab=5, target_layers=(0, 2, 4), seed=44), Shape(vocab=7, block_size=4, seed=5),
          Shape(vocab=12, block_size=8, second=(2, 16, 6, 4), seed=1)]
EQUAL = "{} rounds at the same positions, {} of them equal; the rounds are equal"
LENGTHS, GEN_LENGTHS = (1, 7, 30), (23, 11, 40)


def rounds_of(run, prompt, lengthwise):
    """The judge's rounds. lengthwise: as an engine knows them, which keeps no choices of the target."""
    tokens = prompt + run.answer
    lines, drafting = [], None
    for row in run.rows:
        if row.kind == DENOISE:
            drafting = row
        elif row.kind == COMMIT:
            drafted, accepted = (drafting.drafted, drafting.accepted) if drafting else ([], 0)
            line = {"position": row.block_start, "token": tokens[row.block_start], "drafted": drafted,
                    "accepted": accepted}
            if row.decided:
                line["next"] = row.decided[0][1]
            if drafting and not lengthwise:
                line["target"] = drafting.verdict["target_token"]
            lines.append(line)
    return lines


def dump(path, shape, prompts, rounds, block):
    lines = [{"format": "blockscope-rounds", "format_version": 1, "engine": "oracle", "vocab_size": shape.vocab,
              "block_size": block, "mask_token_id": shape.vocab - 1}]
    for i, ((prompt, count), mine) in enumerate(zip(prompts, rounds, strict=True)):
        lines += [{"sequence": f"p{i}", "prompt_ids": prompt, "gen_length": count},
                  *({"sequence": f"p{i}", "round": n} | line for n, line in enumerate(mine))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    trace = path.with_suffix(".h5")
    harness.run("import", path, "-o", trace, "--force")
    return trace


def documented(name):
    """The function that a block of the document defines."""
    block, = [b for b in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S) if b.startswith(f"# {name}:")]
    names = {}
    exec(block, names)
    return names[name]


def token_after(line):
    """The token after the accepted drafts. After the answer's end, with all of them accepted, it is not known: 0."""
    return line.get("next", (line.get("target", []) + [0])[line["accepted"]])


def vllm_steps(prompts, rounds, chunk=5):
    """What each request feeds to a step and gets from it: (position, tokens, drafts, sampled or None)."""
    for (prompt, _), mine in zip(prompts, rounds, strict=True):
        steps = []
        for begin in range(0, len(prompt), chunk):
            part, whole = prompt[begin:begin + chunk], begin + chunk >= len(prompt)
            steps.append((begin, part, [], [mine[0]["token"]] if whole else None))
        for line in mine:
            output = line["drafted"][:line["accepted"]] + [token_after(line)]
            steps.append((line["position"], [line["token"], *line["drafted"]], line["drafted"], output))
        yield steps


def dump_vllm(path, shape, prompts, rounds):
    """Steps of a batch that shrinks, prefills in chunks together with rounds."""
    dump_rounds, steps = documented("vllm_rounds"), list(vllm_steps(prompts, rounds))
    requests = {f"p{i}": SimpleNamespace(prompt_token_ids=prompt, sampling_params=SimpleNamespace(max_tokens=count))
                for i, (prompt, count) in enumerate(prompts)}
    runner = SimpleNamespace(requests=requests, speculative_config=SimpleNamespace(
        num_speculative_tokens=shape.block_size - 1))
    for number in range(max(map(len, steps))):
        active = [(f"p{i}", mine[number]) for i, mine in enumerate(steps) if number < len(mine)]
        runner.input_batch = SimpleNamespace(req_ids=[name for name, _ in active], vocab_size=shape.vocab)
        tokens = [token for _, (_, part, _, _) in active for token in part]
        ends = torch.tensor([0, *(len(part) for _, (_, part, _, _) in active)]).cumsum(0)
        runner.query_start_loc = SimpleNamespace(gpu=ends)
        runner.input_ids = SimpleNamespace(gpu=torch.tensor(tokens).clamp(min=0))
        runner.positions = torch.tensor([begin + i for _, (begin, part, _, _) in active for i in range(len(part))])
        runner.discard_request_mask = SimpleNamespace(np=[output is None for _, (_, _, _, output) in active])
        counts = [len(drafts) for _, (_, _, drafts, _) in active]
        width = max(counts) + 1
        sampled = torch.tensor([[*(output or [0]), *[-1] * width][:width] for _, (_, _, _, output) in active])
        metadata = None
        if any(counts):
            indices = [int(end) - 1 - count + i for end, count in zip(ends[1:], counts) for i in range(count + 1)]
            drafts = [token for _, (_, _, drafted, _) in active for token in drafted]
            metadata = SimpleNamespace(logits_indices=torch.tensor(indices), num_draft_tokens=counts,
                                       draft_token_ids=torch.tensor(drafts))
        dump_rounds(runner, SimpleNamespace(sampled_token_ids=sampled), metadata, path)


def dump_sglang(path, shape, prompts, rounds, greedy):
    """A batch of fixed blocks, each request with a round after its end, as the overlap schedule runs it."""
    dump_rounds, block = documented("sglang_rounds"), shape.block_size
    worker = SimpleNamespace(ps=SimpleNamespace(tp_rank=0), block_size=block, _mask_token_id=shape.vocab - 1,
                             model_runner=SimpleNamespace(model_config=SimpleNamespace(vocab_size=shape.vocab)))
    requests = [SimpleNamespace(rid=f"p{i}", origin_input_ids=prompt,
                                sampling_params=SimpleNamespace(max_new_tokens=count))
                for i, (prompt, count) in enumerate(prompts)]
    behind = [{"position": mine[-1]["position"] + mine[-1]["accepted"] + 1, "token": token_after(mine[-1]),
               "accepted": 0, "drafted": [0] * (block - 1), "next": 1, "target": [1] * (block - 1)} for mine in rounds]
    for number in range(max(map(len, rounds)) + 1):
        active = [(request, (mine + [end])[number]) for request, mine, end in zip(requests, rounds, behind)
                  if number <= len(mine)]
        lines = [line for _, line in active]
        after = [token_after(line) for line in lines]
        chosen = [(line.get("target", []) + [after[i]])[:block] for i, line in enumerate(lines)]
        dump_rounds(worker, SimpleNamespace(reqs=[request for request, _ in active]),
                    torch.tensor([line["position"] for line in lines]),
                    torch.tensor([[line["token"], *line["drafted"]] for line in lines]),
                    torch.tensor([line["accepted"] for line in lines]), torch.tensor(after),
                    torch.tensor(chosen) if greedy else None, path)


def check_dumps(folder, shape, prompts, rounds):
    total = sum(map(len, rounds))
    for name, write in (("vllm", lambda path: dump_vllm(path, shape, prompts, rounds)),
                        ("sglang", lambda path: dump_sglang(path, shape, prompts, rounds, True)),
                        ("sampled", lambda path: dump_sglang(path, shape, prompts, rounds, False))):
        path = folder / f"{name}.jsonl"
        write(path)
        harness.run("import", path, "-o", path.with_suffix(".h5"))
        out = harness.run("diff", path.with_suffix(".h5"), folder / "ours.h5")
        harness.require(EQUAL.format(total, total) in out, out)


def exported(trace):
    """The lines of our own rounds, by the sequences' names."""
    lines = [json.loads(line) for line in harness.run("export", trace, "--format", "rounds").splitlines()]
    names = {line["sequence"]: line["name"] for line in lines if "name" in line}
    return {name: [line for line in lines if line.get("sequence") == i and "drafted" in line]
            for i, name in names.items()}


def check_recordings(folder, prompts):
    """The rounds of a trace of the target, and of a batch, are those of the draft's one by one."""
    for name, flags in (("target", ["--recorded-model", "target"]), ("batch", ["--batch-size", len(prompts)])):
        path = folder / f"{name}.h5"
        capture(folder, path, prompts, "--record", "trajectory", "--no-stop", *flags).file.close()
        out = harness.run("diff", folder / "ours.h5", path, "--rounds")
        harness.require("the rounds are equal" in out, out)
        known = exported(folder / "ours.h5")
        for sequence, mine in exported(path).items():
            got, expected = ([{k: line[k] for k in ("position", "token", "drafted", "accepted", "next")}
                              | {k: line.get(k) for k in ("target", "target_rank_under_draft", "drafted_rank_under_target")} for line in part]
                             for part in (mine, known[sequence]))
            harness.require(got == expected, f"{name}, {sequence}: {got}, expected {expected}")
        (folder / f"{name}.jsonl").write_text(harness.run("export", path, "--format", "rounds"))
        harness.run("import", folder / f"{name}.jsonl", "-o", folder / f"{name}-again.h5")
        out = harness.run("diff", folder / "ours.h5", folder / f"{name}-again.h5")
        harness.require("the rounds are equal" in out, out)


def check_all_of_draft(folder):
    """Exported and imported again, a trace has all of its /draft."""
    (folder / "whole.jsonl").write_text(harness.run("export", folder / "ours.h5", "--format", "rounds"))
    harness.run("import", folder / "whole.jsonl", "-o", folder / "whole.h5")
    with h5py.File(folder / "ours.h5") as ours, h5py.File(folder / "whole.h5") as again:
        rows, others = (np.flatnonzero(file["steps/kind"][:] == 1) for file in (ours, again))
        names = [name for name, node in ours["draft"].items() if isinstance(node, h5py.Dataset)]
        harness.require("draft_candidates" not in ours.attrs or "candidate_score" in names, names)
        for name in names:
            np.testing.assert_array_equal(again["draft"][name][others], ours["draft"][name][rows], err_msg=name)


def compare_export(trace, rounds):
    """Our own capture in that form, compared with the judge's rounds."""
    for i, (mine, theirs) in enumerate(zip(exported(trace).values(), rounds, strict=True)):
        harness.require(len(mine) == len(theirs), f"p{i}: {len(mine)} rounds, expected {len(theirs)}")
        for line, expected in zip(mine, theirs):
            got = {name: line.get(name) for name in expected}
            harness.require(got == expected, f"p{i}: {got}, expected {expected}")


def change_one(rounds, vocab, chance):
    """Changes a drafted token after the first rejected one of some round. -> sequence, round, block position, both
    values."""
    places = [(i, n, p) for i, mine in enumerate(rounds) for n, line in enumerate(mine)
              for p in range(line["accepted"] + 1, len(line["drafted"]))]
    i, n, p = chance.choice(places)
    before = rounds[i][n]["drafted"][p]
    after = (before + 1) % vocab
    rounds[i][n] = dict(rounds[i][n], drafted=[*rounds[i][n]["drafted"][:p], after, *rounds[i][n]["drafted"][p + 1:]])
    return i, n, p + 1, before, after


def check(folder, shape, chance):
    pair = write_pair(folder, shape)
    generator = torch.Generator().manual_seed(0)
    prompts = [(torch.randint(0, shape.vocab - 1, (n,), generator=generator).tolist(), count)
               for n, count in zip(LENGTHS, GEN_LENGTHS)]
    runs = [decode(pair, prompt, count) for prompt, count in prompts]
    for run in runs:
        harness.require(run.margin > NEAR_TIE, f"a near tie of {run.margin:.1e}; choose another seed")
    capture(folder, folder / "ours.h5", prompts, "--record", "trajectory", "--no-stop").file.close()
    check_recordings(folder, prompts)
    check_all_of_draft(folder)
    for lengthwise in (False, True):
        rounds = [rounds_of(run, prompt, lengthwise) for run, (prompt, _) in zip(runs, prompts)]
        total = sum(map(len, rounds))
        theirs = dump(folder / "theirs.jsonl", shape, prompts, rounds, shape.block_size)
        out = harness.run("diff", folder / "ours.h5", theirs)
        harness.require(EQUAL.format(total, total) in out, out)
        if not lengthwise:
            compare_export(folder / "ours.h5", rounds)
            check_dumps(folder, shape, prompts, rounds)
        if not any(len(line["drafted"]) > line["accepted"] + 1 for mine in rounds for line in mine):
            harness.require(shape.block_size <= 2, "nothing to change")
            continue
        for _ in range(5):
            changed = [list(mine) for mine in rounds]
            i, n, p, before, after = change_one(changed, shape.vocab, chance)
            at = changed[i][n]["position"] - len(prompts[i][0])
            out = harness.run("diff", folder / "ours.h5",
                              dump(folder / "changed.jsonl", shape, prompts, changed, shape.block_size), expect=1)
            told = (f"sequence {i} ('p{i}'), round {n}, at position {at} of the answer: drafted token at block "
                    f"position {p}: {before} in A, {after} in B\n")
            harness.require(told in out and out.count("of the answer") == 1, f"expected {told}{out}")
            harness.require(f"{total - 1} of them equal; the rounds are different" in out, out)
    return total


def main():
    harness.start()
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with harness.temporary_folder() as path:
        total = sum(check(pathlib.Path(path) / str(i), shape, random.Random(seed)) for i, shape in enumerate(SHAPES))
    print(f"{len(SHAPES)} pairs, {total} rounds: no difference; each changed token named")


if __name__ == "__main__":
    main()
