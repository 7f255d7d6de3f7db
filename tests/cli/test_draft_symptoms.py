"""The symptoms of `analyze --metric draft` and of the report: planted faults in rounds of an imported engine, then real
ones with the shipped pair. The table of docs/drafts.md is that of the report."""

import json
import pathlib
import random
import re
import shutil
import sys
import unittest

from capture_harness import MODELS, require_binary, run
from round_files import BLOCK, HEADER, VOCAB, RoundCase

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "analysis"))

from report_page import Page  # noqa: E402


class Fault:
    """How a draft and its target do. right(position, first, p): chance that a reached guess is the target's token."""

    def __init__(self, right=lambda position, first, p: 0.85, sure_if_wrong=0.4, unsure_target=0.1, shift=0):
        self.right, self.sure_if_wrong, self.unsure_target, self.shift = right, sure_if_wrong, unsure_target, shift


def rounds_of(fault, seed, prompt_length, gen_length, known=("confidence", "target_entropy")):
    """The lines of one sequence: a random answer, in which no token repeats the one before it."""
    chance = random.Random(seed)
    answer = [1]
    while len(answer) < gen_length + 2 * BLOCK:
        answer.append(chance.choice([t for t in range(1, VOCAB - 1) if t != answer[-1]]))
    name, at, lines = f"s{seed}", 0, []
    lines.append({"sequence": name, "prompt_ids": [(seed + i) % 50 for i in range(prompt_length)],
                  "gen_length": gen_length})
    while at + 1 < gen_length:
        drafted, confidence, entropy = [], [], []
        for p in range(1, BLOCK):
            own = answer[at + p]
            right = chance.random() < fault.right(prompt_length + at, at == 0, p)
            token = own if right else chance.choice([t for t in range(1, VOCAB - 1) if t != own])
            if fault.shift:
                token = answer[at + p + fault.shift] if at + p + fault.shift >= 0 else 0
            drafted.append(token)
            confidence.append(0.97 if token == own else fault.sure_if_wrong)
            entropy.append(0.05 if token == own else fault.unsure_target)
        accepted = next((i for i in range(BLOCK - 1) if drafted[i] != answer[at + 1 + i]), BLOCK - 1)
        line = {"sequence": name, "token": answer[at], "drafted": drafted, "accepted": accepted,
                "next": answer[at + accepted + 1], "confidence": confidence, "target_entropy": entropy}
        lines.append({k: v for k, v in line.items() if k not in ("confidence", "target_entropy") or k in known})
        at += accepted + 1
    return lines


FAULTS = {
    "healthy": (Fault(), set()),
    "window": (Fault(lambda position, first, p: 0.85 if position < 256 else 0.15), {"window"}),
    "target_layers": (Fault(lambda position, first, p: 0.2, sure_if_wrong=0.95),
                      {"target_layers", "template", "sure_and_wrong"}),
    "template": (Fault(lambda position, first, p: 0.1 if first else 0.85), {"template"}),
    "slot, one back": (Fault(shift=-1), {"slot", "template"}),
    "slot, one on": (Fault(shift=1), {"slot", "template"}),
    "sure_and_wrong": (Fault(lambda position, first, p: 0.95 if p == 1 else 0.4, sure_if_wrong=0.95),
                       {"sure_and_wrong"}),
    "unsure_target": (Fault(unsure_target=2.0), {"unsure_target"}),
}


class DraftSymptoms(RoundCase):
    def symptoms(self, path):
        """-> {name: (number, evidence, seen)}"""
        metric = json.loads(self.must("analyze", path, "--metric", "draft", "--json", "-"))["metrics"][0]
        arrays = {array["name"]: array for array in metric["arrays"]}
        numbers, seen = arrays["symptoms"], arrays["symptom_seen"]
        return {name: (number, terms, verdict) for name, number, terms, verdict in zip(
            numbers["axes"][0]["labels"], numbers["values"], numbers["terms"], seen["values"])}

    def trace(self, fault, name, sequences=24, gen_length=100, known=("confidence", "target_entropy")):
        lines = [HEADER]
        for i in range(sequences):
            lines += rounds_of(fault, i + 1, 40 + 15 * i, gen_length, known)
        return self.imported(lines, name.replace(" ", ""))

    def report(self, path):
        """-> rows of the table, without its header."""
        page = path.with_suffix(".html")
        self.must("report", path, "-o", page, "--force", "-q")
        return Page(page.read_text(encoding="utf-8")).figures["draft_symptoms"]["rows"][1:]

    def test_planted_faults(self):
        for name, (fault, wanted) in FAULTS.items():
            with self.subTest(name):
                found = self.symptoms(self.trace(fault, name))
                untold = {name for name, (_, _, seen) in found.items() if seen is None}
                low = "slot" in name or name == "target_layers"  # acceptance can't fall further
                self.assertTrue(untold == set() or low and untold <= {"window", "sure_and_wrong"}, found)
                self.assertEqual({name for name, (_, _, seen) in found.items() if seen == 1}, wanted, found)

    def test_what_it_cannot_tell(self):
        short = self.symptoms(self.trace(Fault(), "short", sequences=2, gen_length=12))
        self.assertEqual({name for name, (_, _, seen) in short.items() if seen is not None}, set())
        silent = self.symptoms(self.trace(Fault(), "silent", known=()))
        for name in ("target_layers", "sure_and_wrong", "unsure_target"):
            self.assertEqual(silent[name], (None, 0, None))
        self.assertEqual(silent["template"][2], 0)
        low = self.symptoms(self.trace(Fault(lambda position, first, p: 0.1), "low"))
        self.assertTrue(low["window"][1] >= 100 and low["window"][2] is None, low)

    def test_the_report_and_its_document(self):
        path = self.trace(Fault(), "short", sequences=1, gen_length=10)
        rows = self.report(path)
        page = path.with_suffix(".html").read_text(encoding="utf-8")
        self.assertEqual(page.count("Decoding: no block has two recorded steps, so there is nothing to compare."), 1)
        self.assertNotIn("the trace has no values for this", page)
        text = (ROOT / "docs" / "drafts.md").read_text(encoding="utf-8")
        section = text.split("## Causes of low acceptance")[1].split("\n\n")[2]
        documented = [[cell.strip().strip("`") for cell in line.strip("|").split("|")]
                      for line in section.splitlines()[2:]]
        self.assertEqual(len(rows), len(documented))
        for (cause, verdict, _, condition, count, measured, alike, look_at), wanted in zip(rows, documented):
            title, name = re.fullmatch(r"(.*) \((\w+)\)", cause).groups()
            needs = re.fullmatch(r"cannot tell: needs (.*), found (\d+)", verdict)
            self.assertEqual(needs[2], count)
            self.assertEqual([name, title, measured, condition, needs[1], alike, look_at], wanted)
        fault, wanted = FAULTS["target_layers"]
        path = self.trace(fault, "layers")
        found = self.symptoms(path)
        for cause, verdict, number, _, count, *_ in self.report(path):
            value, terms, seen = found[re.search(r"\((\w+)\)", cause)[1]]
            untold = "cannot tell: before every such depth, acceptance is below 0.3 already"
            self.assertEqual(verdict, untold if seen is None else "seen" if seen else "not seen")
            self.assertLess(abs(float(number) - value), 6e-4)
            self.assertEqual(int(count.replace(",", "")), terms)

    def test_the_shipped_pair(self):
        needle = MODELS / "needle"
        shifted = self.root / "shifted"
        shutil.copytree(needle / "dflash", shifted)
        config = json.loads((shifted / "config.json").read_text())
        layers = config["dflash_config"]["target_layer_ids"]
        config["dflash_config"]["target_layer_ids"] = [layer - 1 for layer in layers]
        (shifted / "config.json").write_text(json.dumps(config))
        seen = {}
        for name, draft in (("as it is", needle / "dflash"), ("shifted", shifted)):
            path = self.root / f"{name.replace(' ', '')}.h5"
            code, _, err = run("capture", needle / "backbone", "--draft", draft, "--prompts", needle / "demo.jsonl",
                               "--no-draft-cost", "--record", "trajectory", "-q", "-o", path)
            if "LibTorch" in err:
                self.skipTest("this build can't decode")
            self.assertEqual(code, 0, err)
            seen[name] = {name for name, (_, _, verdict) in self.symptoms(path).items() if verdict == 1}
        self.assertEqual(seen, {"as it is": set(), "shifted": {"target_layers", "template", "sure_and_wrong"}})


if __name__ == "__main__":
    require_binary()
    unittest.main()
