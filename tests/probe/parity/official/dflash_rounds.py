"""Rounds of z-lab's dflash_generate, through the lines of docs/interchange.md and `import`, against our capture.

python dflash_rounds.py BLOCKSCOPE DFLASH [--pairs N] [--seed S]

BLOCKSCOPE is the binary, DFLASH a work tree of z-lab/dflash. Random pairs, prompts and stop tokens, float32, greedily.
No round may differ; then one drafted token of the dump is changed, and diff must name that round and no other."""

import argparse
import importlib.util
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

import torch
from safetensors.torch import load_file
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from dflash_checkpoints import Shape, write_pair  # noqa: E402

DOCUMENT = pathlib.Path(__file__).parents[4] / "docs" / "interchange.md"


class Cache(DynamicCache):
    """crop() as the official code means it: the length to keep."""

    def crop(self, length):
        more = self.get_seq_length() - length
        if more > 0:
            super().crop(-more)


def official(folder):
    spec = importlib.util.spec_from_file_location("dflash_model", folder / "dflash" / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.DynamicCache, module._cuda_time = Cache, time.perf_counter
    return module


def documented(name):
    block, = [b for b in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S) if b.startswith(f"# {name}:")]
    names = {}
    exec(block, names)
    return names[name]


def random_shape(chance, seed):
    return Shape(vocab=chance.randint(4, 12), layers=chance.randint(4, 8), draft_layers=chance.randint(1, 3),
                 block_size=chance.randint(2, 12), tied=chance.random() < 0.3, seed=seed)


def run(binary, *arguments, expect=0):
    done = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != expect:
        sys.exit(f"{arguments}\nexit code {done.returncode}, expected {expect}\n{done.stdout}{done.stderr}")
    return done.stdout


def load(module, folder):
    eager = {"attn_implementation": "eager"}
    target = Qwen3ForCausalLM.from_pretrained(folder / "target", dtype=torch.float32, **eager).eval()
    config = Qwen3Config(**json.loads((folder / "draft" / "config.json").read_text()), **eager)
    draft = module.DFlashDraftModel(config).float().eval()
    draft.load_state_dict(load_file(folder / "draft" / "model.safetensors"))
    return draft, target


def dump(path, shape, stop_ids, lines):
    header = {"format": "blockscope-rounds", "format_version": 1, "engine": "z-lab dflash", "vocab_size": shape.vocab,
              "block_size": shape.block_size, "mask_token_id": shape.vocab - 1, "stop_token_ids": stop_ids}
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]))
    return path


def check(a, module, chance, seed, folder):
    shape = random_shape(chance, seed)
    write_pair(folder, shape)
    draft, target = load(module, folder)
    prompts = [([chance.randrange(shape.vocab - 1) for _ in range(chance.randint(1, 40))], chance.randint(2, 60))
               for _ in range(3)]
    # --stop-id refuses the mask's token.
    stop_ids = [chance.randrange(shape.vocab - 1)] if chance.random() < 0.5 else []
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"id": f"p{i}", "input_ids": ids, "gen_length": n}) + "\n"
                                                  for i, (ids, n) in enumerate(prompts)))
    run(a.binary, "capture", folder / "target", "--draft", folder / "draft", "--prompts", folder / "prompts.jsonl",
        "-o", folder / "ours.h5", "--record", "trajectory", "--dtype", "float32", "--threads", 1, "-q",
        *([x for i in stop_ids for x in ("--stop-id", i)] or ["--no-stop"]))
    lines_of = documented("dflash_rounds")
    lines = [line for i, (ids, n) in enumerate(prompts)
             for line in lines_of(module, draft, target, ids, n, stop_ids or None, f"p{i}")]
    rounds = [line for line in lines if "drafted" in line]
    theirs = folder / "theirs.h5"
    run(a.binary, "import", dump(folder / "theirs.jsonl", shape, stop_ids, lines), "-o", theirs)
    out = run(a.binary, "diff", theirs, folder / "ours.h5")
    kept, equal = map(int, re.search(r"(\d+) rounds? at the same positions, (\d+) of them equal; the rounds are equal",
                                     out).groups())
    assert kept == equal and len(rounds) - kept <= len(prompts), out
    places = [(n, p) for n, line in enumerate(lines) if "drafted" in line
              for p in range(line["accepted"] + 1, len(line["drafted"]))]
    named = 0
    if places:
        n, p = chance.choice(places)
        changed = [json.loads(json.dumps(line)) for line in lines]
        changed[n]["drafted"][p] = (changed[n]["drafted"][p] + 1) % shape.vocab
        sequence = changed[n]["sequence"]
        number = sum("drafted" in line and line["sequence"] == sequence for line in lines[:n])
        run(a.binary, "import", dump(folder / "changed.jsonl", shape, stop_ids, changed), "-o", folder / "changed.h5")
        ours = [json.loads(x) for x in run(a.binary, "export", folder / "ours.h5", "--format", "rounds").splitlines()]
        there = sum(x.get("sequence") == int(sequence[1:]) and "drafted" in x for x in ours)
        if number < there:  # one after the end is not kept
            out = run(a.binary, "diff", folder / "changed.h5", folder / "ours.h5", expect=1)
            told = (f"('{sequence}'), round {number}, ", f"drafted token at block position {p + 1}: "
                    f"{changed[n]['drafted'][p]} in A, {lines[n]['drafted'][p]} in B\n")
            assert all(words in out for words in told) and out.count("of the answer") == 1, (told, out)
            assert f"{kept - 1} of them equal; the rounds are different" in out, out
            named = 1
    return kept, sum(line["accepted"] for line in rounds), len(rounds) - kept, named


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("repository", type=pathlib.Path, help="work tree of z-lab/dflash")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    torch.set_num_threads(1)
    module, totals = official(a.repository), [0, 0, 0, 0]
    with tempfile.TemporaryDirectory(prefix="dflash-rounds-") as name:
        for seed in range(a.seed, a.seed + a.pairs):
            found = check(a, module, random.Random(seed), seed, pathlib.Path(name) / str(seed))
            totals = [x + y for x, y in zip(totals, found)]
    print(f"{a.pairs} pairs, {totals[0]} rounds, {totals[1]} drafts accepted: no difference; {totals[2]} behind a stop "
          f"token left out; {totals[3]} changed tokens, each named")


if __name__ == "__main__":
    main()
