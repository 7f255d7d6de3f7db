"""`blockscope capture TARGET --draft DRAFT` in batches, with the answers of a trace (--replay), and recording the target
(--recorded-model). Compared with the same run one by one, by rounds counted in numpy on the answer, and by attention in
float64 over the recorded queries and keys. What a single draft computes: probe.parity.dflash."""

import json
import unittest

import h5py
import numpy as np
from attention_math import attend
from capture_harness import CheckpointCase, capture, require_binary, trajectories, write_prompts
from capture_refusal import USAGE
from test_draft import BLOCK, VOCAB, draft_tensors, speculators_config, write_draft, write_target, zlab_config

DENOISE, REPLAYED = 1, 3
INTEGERS = ("accepted", "target_token", "target_rank_under_draft", "drafted_rank_under_target")
NUMBERS = ("target_probability_under_draft", "drafted_probability_under_target", "draft_entropy", "target_entropy")


class Trace:
    """Rows of a trace by sequence name."""

    def __init__(self, path):
        self.file = h5py.File(path)
        self.rows = int(self.file["/steps/committed"][0])
        text = self.file["/sequences/bytes"][:].tobytes()
        owner = self.file["/steps/sequence"][:self.rows]
        self.of = {}
        for index in range(int(self.file["/sequences/committed"][0])):
            begin, length = (int(self.file[f"/sequences/name_{part}"][index]) for part in ("start", "length"))
            self.of[text[begin:begin + length].decode()] = np.flatnonzero(owner == index)

    def get(self, path, name, kind=None):
        rows = self.of[name]
        if kind is not None:
            rows = rows[self.file["/steps/kind"][:self.rows][rows] == kind]
        return self.file[path][:self.rows][rows]

    def prefix(self, name, part="key"):
        """[positions, layers, KV heads, D] that the sequence's rows stored."""
        ends = np.concatenate([[0], self.file["/prefix/end"][:self.rows]])
        parts = [self.file[f"/prefix/{part}"][int(ends[row]):int(ends[row + 1])] for row in self.of[name]]
        return np.concatenate(parts).astype(np.float64)


def answer_of(trajectory):
    tokens = np.full(trajectory["position"].max() + 1, -1)
    tokens[trajectory["position"]] = trajectory["token"]
    return tokens


class DraftModes(CheckpointCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = write_target(cls.root / "target")
        cls.draft = write_draft(cls.root / "draft", zlab_config(), draft_tensors())
        cls.own = write_draft(cls.root / "own", speculators_config(), draft_tensors(True))
        cls.prompts = write_prompts(cls.root / "prompts.jsonl", 7, gen_length=24)

    def made(self, name, *flags, draft=None, level="trajectory"):
        out = self.root / f"{name}.h5"
        code, _, err = capture(self.model, *(() if draft is None else ("--draft", draft)), "--no-stop", "--record",
                               level, *flags, "-o", out, "--force")
        self.assertEqual(code, 0, err)
        return out

    def free(self, name, draft, *flags, **level):
        return self.made(name, "--prompts", self.prompts, *flags, draft=draft, **level)

    def assert_same_rounds(self, path, expected, tolerance, replayed=False):
        """`replayed`: without the last round of a run that has filled its length, which decides nothing."""
        got, want = Trace(path), Trace(expected)
        self.assertEqual(set(got.of), set(want.of))
        for name in want.of:
            rows = None
            if replayed:
                rows = len(got.of[name])
                self.assertLessEqual(len(want.of[name]) - rows, 2)
                self.assertEqual(want.get("/steps/changed", name)[rows:].tolist(), [0] * (len(want.of[name]) - rows))
            # After the first rejection the target's choices follow the draft's tokens, not the answer's.
            behind = np.arange(BLOCK) > want.get("/draft/accepted", name)[:rows, None] + 1
            for part in INTEGERS + NUMBERS:
                ours, theirs = got.get(f"/draft/{part}", name), want.get(f"/draft/{part}", name)[:rows]
                if replayed and part.startswith("target_") and part != "target_entropy":
                    ours, theirs = np.where(behind, 0, ours), np.where(behind, 0, theirs)
                np.testing.assert_allclose(ours, theirs, atol=0 if part in INTEGERS else tolerance, rtol=0, err_msg=part)

    def test_a_batch_decodes_each_sequence_as_alone(self):
        for draft, more in ((self.draft, ()), (self.own, ()), (self.draft, ("--temperature", 0.8, "--seed", 3)),
                            (self.draft, ("--block-length", 1)), (self.draft, ("--block-length", 3))):
            one = self.free("one", draft, *more, level="full")
            many = self.free("many", draft, *more, "--batch-size", 3, level="full")
            # Without AVX-512, torch multiplies other numbers of rows in another order.
            self.assert_same_rounds(many, one, 2e-5)
            alone, together = trajectories(one), trajectories(many)
            for name in alone:
                for key in ("/steps/kind", "/steps/block", "/steps/context_length", "token", "position", "reason"):
                    np.testing.assert_array_equal(together[name][key], alone[name][key], key)
            first, second = Trace(one), Trace(many)
            for name in first.of:
                for path in ("/attention/external", "/attention/lse_internal", "/query/query", "/kv/key"):
                    np.testing.assert_allclose(second.get(path, name).astype(np.float64),
                                               first.get(path, name).astype(np.float64), atol=2e-2, err_msg=path)

    def test_a_batch_that_is_cut_goes_on(self):
        whole = self.free("whole", self.draft, "--batch-size", 3)
        code, _, err = capture(self.model, "--draft", self.draft, "--no-stop", "--record", "trajectory", "--prompts",
                               self.prompts, "--batch-size", 2, "-o", whole, "--resume")
        self.assertEqual(code, USAGE, err)
        self.assertIn("batch_size", err)

    def test_replays_of_ones_own_answers_have_the_same_rounds(self):
        for draft in (self.draft, self.own):
            free = self.free("free", draft)
            alone = self.made("alone", "--prompts", self.prompts)
            self.assert_same_rounds(self.made("again", "--replay", free, draft=draft), free, 1e-6, replayed=True)
            again = self.made("of-target", "--replay", alone, "--batch-size", 2, draft=draft)
            got, want = trajectories(again), trajectories(alone)
            for name in want:
                np.testing.assert_array_equal(answer_of(got[name]), answer_of(want[name]))
            self.assertEqual(set(Trace(again).file["/sequences/finish_reason"][:]), {REPLAYED})

    def test_another_models_answers_count_rounds_by_the_answer(self):
        """The target never wrote them; a draft is accepted where it is the answer's token."""
        other = write_target(self.root / "other", seed=11)
        answers = self.root / "answers.h5"
        code, _, err = capture(other, "--no-stop", "--prompts", self.prompts, "-o", answers, "--force")
        self.assertEqual(code, 0, err)
        trace = Trace(self.made("given", "--replay", answers, draft=self.draft))
        for name, given in trajectories(answers).items():
            answer = answer_of(given)
            np.testing.assert_array_equal(answer_of(trajectories(trace.file.filename)[name]), answer)
            drafted = trace.get("/prediction/token", name, DENOISE)
            at, accepted = 1, []
            for row in drafted:
                following = answer[at:at + BLOCK - 1]
                same = row[1:1 + len(following)] == following
                accepted.append(int(np.cumprod(same).sum()))
                at += accepted[-1] + 1
            ours = trace.get("/draft/accepted", name, DENOISE)
            self.assertEqual(ours[:-1].tolist(), accepted[:-1])  # the last one may continue after the answer
            self.assertGreaterEqual(ours[-1], accepted[-1])
            tokens = trace.get("/draft/target_token", name, DENOISE)
            self.assertEqual(tokens[0, 1:].tolist(), answer[1:BLOCK].tolist())

    def test_replays_that_do_not_fit(self):
        wide = write_target(self.root / "wide", vocab_size=VOCAB + 10)
        trace = self.root / "wide.h5"
        code, _, err = capture(wide, "--no-stop", "--prompts", self.prompts, "-o", trace)
        self.assertEqual(code, 0, err)
        with h5py.File(trace, "r+") as file:
            file["/frames/token"][3] = VOCAB + 5
        code, _, err = capture(self.model, "--draft", self.draft, "--replay", trace, "-o", self.root / "no.h5")
        self.assertEqual(code, 1, err)
        for word in ("replay: sequence", f"token {VOCAB + 5}", str(VOCAB), "HINT"):
            self.assertIn(word, err)
        self.assertFalse((self.root / "no.h5").exists())

    def test_the_recorded_model_needs_a_draft(self):
        code, _, err = capture(self.model, "--recorded-model", "target", "--prompts", self.prompts, "-o",
                               self.root / "no.h5")
        self.assertEqual(code, USAGE, err)
        self.assertIn("--draft", err)

    def test_the_targets_trace_has_the_same_rounds(self):
        for more in ((), ("--temperature", 0.8), ("--batch-size", 3)):
            of_draft = self.free("of-draft", self.draft, *more, level="full")
            of_target = self.free("of-target", self.draft, "--recorded-model", "target", *more, level="full")
            self.assert_same_rounds(of_target, of_draft, 1e-6)
            drafts, target = Trace(of_draft), Trace(of_target)
            model = json.loads(target.file["/model/json"][()].tobytes())
            self.assertEqual(model["draft"]["digest"], json.loads(drafts.file["/model/json"][()].tobytes())["digest"])
            for name in drafts.of:
                for path in ("/steps/kind", "/steps/block", "/steps/pass", "/steps/context_length"):
                    np.testing.assert_array_equal(target.get(path, name), drafts.get(path, name), path)
                for part in ("token", "confidence"):  # also what the target rejected, as the draft's trace has it
                    expected = drafts.get(f"/prediction/{part}", name, DENOISE)
                    for trace in (drafts, target):
                        np.testing.assert_allclose(trace.get(f"/draft/{part}", name, DENOISE), expected, rtol=0,
                                                   atol=1e-6, err_msg=part)
                np.testing.assert_array_equal(target.get("/prediction/token", name, DENOISE)[:, 1:],
                                              target.get("/draft/target_token", name, DENOISE)[:, 1:])

    def test_the_targets_keys_are_those_it_has_alone(self):
        of_target = Trace(self.free("keys", self.draft, "--recorded-model", "target", "--batch-size", 2,
                                    "--array-type", "f32", level="full"))
        alone = Trace(self.made("alone-keys", "--prompts", self.prompts, "--array-type", "f32", level="full"))
        for name in alone.of:
            ours, ends = of_target.prefix(name), alone.prefix(name)
            count = min(len(ours), len(ends))
            self.assertGreater(count, 20)
            np.testing.assert_allclose(ours[:count], ends[:count], atol=1e-4, rtol=1e-4)

    def test_the_targets_attention_in_float64(self):
        trace = Trace(self.free("attention", self.draft, "--recorded-model", "target", "--batch-size", 2,
                                "--array-type", "f32", level="full"))
        checked = 0
        for name in trace.of:
            prefix, values = trace.prefix(name), trace.prefix(name, "value")
            for row in trace.of[name][trace.get("/steps/kind", name) == DENOISE]:
                context = int(trace.file["/steps/context_length"][row])
                read = lambda path: trace.file[path][row].astype(np.float64)
                query, key, value = read("/query/query"), read("/kv/key"), read("/kv/value")
                before = (x[:context].transpose(1, 2, 0, 3) for x in (prefix, values))
                for side, keys, seen in (("external", before, True),
                                         ("internal", (key, value), np.tri(query.shape[2], dtype=bool))):
                    output, lse = attend(query, *keys, query.shape[-1] ** -0.5, seen)
                    np.testing.assert_allclose(read(f"/attention/lse_{side}"), lse, atol=1e-4)
                    np.testing.assert_allclose(read(f"/attention/{side}"), output, atol=1e-4)
                    checked += output[..., 0, 0].size
        self.assertGreater(checked, 500)


if __name__ == "__main__":
    require_binary()
    unittest.main()
