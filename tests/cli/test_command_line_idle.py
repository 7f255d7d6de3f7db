"""An option that would do nothing is refused, saying what it needs: every option of `capture`, `eval`,
`verify`, `bench`, `check` and `train` that another option, the model or the prompts make idle. So is an option of a
policy or a strategy that the named one does not have."""

import json
import struct
import unittest

import numpy as np

from capture_harness import VOCAB, require_binary, run, write_checkpoint
from command_line_case import FAILED, TINY_TRAINING, USAGE, CommandLineCase
from family_case import write_canvases

TURNS = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
         "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
SWITCH = "{% if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}{% endif %}"
DECODING = (["--top-k", 2], ["--top-p", 0.5])
# A strategy, then an option that it does not have.
STRATEGIES = (
    *(("low_confidence_static", option) for option in (
        "threshold=0.5", "eb_threshold=1", "factor=2", "kl_threshold=0.1", "kl_history=3", "klass_choose=min_kl",
        "pc_lambda=1", "pc_alpha=1", "frequencies=x.json", "threshold_back=0.5")),
    ("factor", "threshold=0.5"), ("threshold", "factor=1"), ("klass", "rank_by=margin"), ("sequential", "rank_by=margin"),
    ("entropy_bounded", "rank_by=margin"), ("klass", "density_sigma=2"), ("sequential", "density_sigma=2"),
    ("factor", "quota=linear"), ("entropy_bounded", "quota=linear"), ("wino", "quota=linear"),
    ("joint_threshold", "quota=linear"), ("threshold", "editing_threshold=0.5"), ("wino", "max_post_steps=2"))
# A policy, then an option that it does not have.
POLICIES = (
    *(("exact", option) for option in ("tau=2", "reuse=x.json", "k=4", "density=0.5", "page=8", "exact_layers=1",
                                       "per_block", "seed=1")),
    *(("recent,k=4", option) for option in ("tau=2", "reuse=x.json", "page=8", "per_block", "seed=1")),
    *(("flashblock", option) for option in ("k=4", "density=0.5", "exact_layers=1", "page=8")), ("mage,k=4", "page=8"))
SEED = (["--seed", 1], ["--temperature", 0, "--seed", 1])
SPARSE = ["--policy", "recent,k=4"]
WITHIN_BLOCKS = (["--policy", "flashblock"], ["--policy", "mage,k=2"], ["--policy", "sparsed,k=2,per_block"])
TOKEN_BY_TOKEN = (["--strategy", "factor"], ["--strategy", "factor,rank_by=margin"], ["--denoising-steps", 1],
                  ["--strategy", "sequential,quota=linear"], ["--strategy", "factor,density_sigma=2"],
                  ["--cache", "commit"])


def write_reference(path, **metadata):
    """One token and its logits, for `check`."""
    tensors = [("input_ids", "I64", [1], np.array([1], "<i8").tobytes()),
               ("logits", "F32", [1, VOCAB], np.zeros(VOCAB, "<f4").tobytes())]
    header, data = {"__metadata__": metadata}, b""
    for name, dtype, shape, raw in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


class Idle(CommandLineCase):
    def commands(self):
        """(command, option lists that it would ignore)."""
        made, model, out = self.made, self.model, self.root / "idle.h5"
        single = write_checkpoint(self.root / "single", model_type="qwen3",
                                  architectures=["Qwen3ForCausalLM"])
        scored = self.root / "scored.jsonl"
        scored.write_text('{"input_ids": [1], "answer": "x", "metric": "f1", "gen_length": 2}\n')
        plain = ["--input-ids", "1,2", "--gen-length", 4]
        capture = ["capture", model, "-o", out]
        yield [*capture, *plain], [*DECODING, *SEED, ["--shadow"], ["--revision", "abc"], ["--metric", "f1"], ["--chat"],
                                   ["--no-thinking"], ["--set-size", 4], ["--set-normaliser", "prefix"],
                                   ["--array-type", "f32"]]
        yield ([*capture, *plain, "--record", "trajectory"],
               [["--layers", "0"], ["--heads", "0"], ["--steps", "1"], ["--blocks", "0"], ["--sequences", "0"]])
        yield ([*capture, "--prompts", scored],
               [["--gen-length", 3], ["--metric", "contains"], ["--no-thinking"], ["--chat"]])
        yield [*capture, "--prompts", made / "a.jsonl"], [["--metric", "f1"], ["--no-thinking"]]
        yield ([*capture, "--replay", made / "a.h5"],
               [["--limit", 1], ["--prompt", "a"], ["--prompts", scored], ["--input-ids", "1"], ["--metric", "f1"],
                ["--chat"], ["--no-thinking"]])
        yield (["capture", single, "-o", out, *plain],
               [*TOKEN_BY_TOKEN, *WITHIN_BLOCKS])
        yield ["eval", model], [*DECODING, *SEED, ["--force"], ["--revision", "abc"]]
        yield ["eval", single], [*TOKEN_BY_TOKEN, *WITHIN_BLOCKS]
        verify = ["verify", model, "--policy", f"flashblock,reuse={made / 'reuse.json'}"]
        yield ([*verify, *plain], [*DECODING, *SEED, ["--taus", 1], ["--gammas", 0], ["--force"], ["--metric", "f1"],
                                   ["--chat"], ["--no-thinking"], ["--revision", "abc"]])
        yield [*verify, "--prompts", scored], [["--gen-length", 3], ["--metric", "f1"]]
        yield ["verify", model, *plain], [["--policy", "exact"]]
        for policy in WITHIN_BLOCKS:
            yield ["verify", single, *plain], [policy]
        yield (["verify", single, *plain, *SPARSE],
               [["--against", "mage,k=2"], ["--against", "flashblock"], ["--against", "sparsed,k=2,per_block"]])
        yield ["bench", model], [*DECODING, ["--levels", "off", "--folder", self.root], ["--revision", "abc"],
                                 ["--block-lengths", 2], ["--prompt", "a"], ["--prompts", scored], ["--input-ids", "1"],
                                 ["--limit", 1], ["--metric", "f1"], ["--chat"], ["--no-thinking"]]
        yield ["bench", single], TOKEN_BY_TOKEN
        named = write_reference(self.root / "named", mask="block_causal", block_length="1")
        causal = write_reference(self.root / "causal", mask="causal")
        for reference in (named, causal):
            yield (["check", model, "--reference", reference],
                   [["--block-length", 2], ["--mask-token-id", 258], ["--revision", "abc"]])
        train = ["train", "--out", self.root / "idle"]
        yield ([*train, "--stage", "backbone"],
               [["--diffusion-steps", 1], ["--diffusion-learning-rate", 1], ["--diffusion-advance-below", 1]])
        yield ([*train, "--family", "llada"], [["--head-dim", 16]])
        yield ([*train, "--stage", "diffusion", "--init", model],
               [["--backbone-steps", 1], ["--learning-rate", 1], ["--advance-below", 1],
                ["--last-context", 128, "--diffusion-advance-below", 1]])
        yield ([*train, "--stage", "reuse", "--init", model],
               [["--layers", 1], ["--hidden", 32], ["--ffn", 32], ["--heads", 2], ["--kv-heads", 1], ["--head-dim", 16],
                ["--family", "sdar"], ["--tokenizer", model], ["--drill-share", 0.5], ["--learning-rate", 1],
                ["--diffusion-steps", 1], ["--draft-steps", 1], ["--advance-below", 1]])
        yield (train, [["--reuse-steps", 1], ["--reuse-learning-rate", 1], ["--weight-decay", 0], ["--lora-modules", "q"],
                       ["--lora-rank", 2], ["--lora-alpha", 2], ["--lora-dropout", 0], ["--unroll", 3], ["--quota", 2],
                       ["--threshold", 0.5], ["--reuse-weight", 1], ["--dense-weight", 1], ["--probes", 3],
                       ["--start-steps", 2], ["--block-length", 4], ["--data", "x"], ["--merge"]])
        yield (train, [["--tasks", "sort"], ["--context", 64], ["--split", "test"], ["--prompts-out", "x"],
                       ["--evaluate-documents", 0, "--evaluate-every", 3],
                       ["--last-context", 64, "--drill-share", 0.5],
                       ["--first-context", 1024, "--advance-below", 1]])
        yield ["train", "--dump-prompts", 1], [["--out", out], ["--steps", 3], ["--layers", 1], ["--resume"],
                                               ["--threads", 1], ["--minutes", 1], ["--init", model], ["--force"]]
        yield ["repack", made / "a.h5", "-o", out], [["--level", 3], ["--copy"]]
        yield ["analyze", made / "a.h5"], [["--row-a", 0], ["--field", "query"]]

    def test_an_option_that_would_do_nothing_is_refused(self):
        for command, idle in self.commands():
            for options in idle:
                self.refused(USAGE, "does nothing", *command, *options)
        for flag, value in (("--sequences", "7"), ("--steps", "99"), ("--blocks", "999")):
            self.refused(USAGE, "is beyond this run", "capture", self.model, "--prompts", self.made / "a.jsonl",
                         "-o", self.root / "idle.h5", flag, value)
        self.assertFalse((self.root / "idle.h5").exists())
        self.assertFalse((self.root / "idle").exists())

    def test_an_option_of_another_choice_is_refused(self):
        plain, out = ["--input-ids", "1,2", "--gen-length", 4], self.root / "other.h5"
        capture = ["capture", self.model, "-o", out, *plain]
        verify = ["verify", self.model, *plain]
        flashblock = ["--policy", f"flashblock,reuse={self.made / 'reuse.json'}"]
        for commands, flag, choices in (
                ((capture, ["eval", self.model], [*verify, *flashblock], ["bench", self.model]), "--strategy", STRATEGIES),
                ((capture, ["eval", self.model], verify), "--policy", POLICIES),
                (([*verify, *flashblock],), "--against", POLICIES)):
            kind = "strategy" if flag == "--strategy" else "policy"
            for command in commands:
                for choice, option in choices:
                    text, name = f"{choice},{option}", option.split("=")[0]
                    self.refused(USAGE, [f"{kind} '{text}': ", f", got '{name}'"], *command, flag, text)
        for text, says in (("threshold,quota=linear", "quota: expected even or carry, got 'linear'"),
                           ("sequential,quota=carry", "quota: expected even or linear, got 'carry'")):
            self.refused(USAGE, [f"strategy '{text}'", says], *capture, "--strategy", text)
        self.assertFalse(out.exists())

    def test_a_sparse_policy_says_how_many_keys_it_reads(self):
        capture = ["capture", self.model, "--input-ids", "1,2,3", "-o", self.root / "sparse.h5"]
        for text, says in (("mage", "expected either k or density, got none"), ("mage,k=4,density=0.5", "got both"),
                           ("mage,k=0", "k: expected a whole number from 1, got '0'"),
                           ("mage,density=0", "density: expected a number above 0, up to 1, got '0'"),
                           ("mage,density=1.5", "density: expected a number above 0, up to 1, got '1.5'"),
                           ("mage,k=4,exact_layers=99", "exact_layers: expected 0 to the model's"),
                           ("quest,k=4,page=0", "page: expected a whole number from 1, got '0'"),
                           ("sparsed+flashblock,k=4", "expected per_block, got none"),
                           ("Mage,k=4", "expected exact, flashblock, ")):
            self.refused(USAGE, says, *capture, "--policy", text)
        self.assertFalse((self.root / "sparse.h5").exists())

    def test_verify_says_which_policies_it_compares(self):
        made, model = self.made, self.model
        verify = ["verify", model, "--input-ids", "1,2,3"]
        reuse = ["--policy", f"flashblock,reuse={made / 'reuse.json'}"]
        for given, says in (([], "expected --policy, got none"), (["--against", "mage,k=4"], "expected --policy, got none"),
                            (["--policy", "mage"], "got none"),
                            (["--policy", "mage,k=0"], "k: expected a whole number from 1"),
                            (["--policy", "Mage,k=4"], "expected exact, flashblock"),
                            (["--policy", "mage,k=4,reuse=x.json"], "expected k, density or exact_layers, got 'reuse'"),
                            (["--policy", "mage,k=4", "--sweep"], "--sweep: expected flashblock with a calibration file"),
                            (["--policy", "flashblock", "--sweep"], "--sweep: expected flashblock with a calibration file"),
                            (["--policy", "flashblock", "--taus", 2], "--taus: does nothing"),
                            (["--policy", "quest,k=4,reuse=x.json"], "got 'reuse'")):
            self.refused(USAGE, says, *verify, *given)
        for text, says in (("quest", "expected either k or density"), ("quest,k=0", "k: expected a whole number from 1"),
                           ("quest,keys=4", "got 'keys'"), ("mage,k=4,k=5", "expected k once, got it twice"),
                           ("none,k=4", "expected exact, flashblock"), ("mage,k=", "got nothing"),
                           ("sparsed+flashblock,k=4", "expected per_block")):
            self.refused(USAGE, ["policy '" + text, says], *verify, *reuse, "--against", text)
        self.refused(USAGE, "exact_layers: expected 0 to the model's", *verify, *reuse, "--against",
                     "mage,k=4,exact_layers=99")
        single = write_checkpoint(self.root / "single", model_type="qwen3", architectures=["Qwen3ForCausalLM"])
        self.refused(USAGE, "expected a block-diffusion model", "verify", single, *verify[2:], *SPARSE)
        nowhere = self.root / "nowhere.json"
        self.refused(FAILED, str(nowhere), *verify, *reuse, "--against", f"flashblock,reuse={nowhere}")
        self.refused(USAGE, "the command reads this file", *verify, *SPARSE, "--against",
                     f"flashblock,reuse={made / 'reuse.json'}", "--force", "-o", made / "reuse.json")

    def test_options_that_do_something_are_taken(self):
        """The other side of each condition: as idle as they look."""
        single = self.root / "single"
        write_checkpoint(single, model_type="qwen3", architectures=["Qwen3ForCausalLM"])
        half = self.root / "half.jsonl"
        half.write_text('{"input_ids": [1], "answer": "x", "metric": "f1", "gen_length": 2}\n'
                        '{"input_ids": [1], "answer": "x"}\n')
        capture = ["capture", self.model, "-q", "--force", "-o", self.root / "taken.h5"]
        reference = write_reference(self.root / "unnamed", mask="block_causal")
        for command in ([*capture, "--prompts", half, "--metric", "f1", "--gen-length", 4],
                        [*capture, "--input-ids", "1", "--temperature", 1, "--seed", 3, "--top-k", 3],
                        [*capture, "--input-ids", "1", "--policy", "recent,k=4,exact_layers=1", "--shadow"],
                        [*capture, "--input-ids", "1", "--policy", "quest,density=1,page=999"],
                        [*capture, "--input-ids", "1", "--policy", "random,k=9999,seed=3"],
                        [*capture, "--replay", self.made / "a.h5", "--strategy", "factor", "--gen-length", 4],
                        ["verify", self.model, "--input-ids", "1", "--policy", "flashblock,tau=3", "--against",
                         "quest,k=2,page=1", "-q"],
                        ["verify", self.model, "--input-ids", "1", "--policy",
                         f"flashblock,reuse={self.made / 'reuse.json'}", "--against", "exact", "-q"],
                        ["bench", self.model, "--context", 8, "--gen-length", 4, "--levels", "off", "--runs", 1,
                         "--seed", 3, "--stop-id", 5],
                        ["check", self.model, "--reference", reference, "--block-length", 1, "--tol", 1e9]):
            code, _, err = run(*command)
            self.assertEqual(code, 0, f"{command}: {err}")

    def test_canvases_draw_from_all_tokens(self):
        """No other option makes these do something, so no option is named."""
        canvases = write_canvases(self.root / "canvases")
        for command in (["capture", canvases, "-o", self.root / "canvases.h5"],
                        ["verify", canvases, "--policy", "flashblock"]):
            for options in DECODING:
                err = self.refused(USAGE, ["does nothing", "canvases", "HINT: leave the option out"], *command,
                                   "--input-ids", "1,2", "--gen-length", 4, *options)
                self.assertNotIn("--temperature", err)

    def test_canvases_are_no_target_of_a_draft(self):
        canvases = write_canvases(self.root / "canvas-target")
        train = ["train", "--stage", "draft", "--out", self.root / "no-draft", "--work", self.root / "no-work", "--target"]
        self.refused(USAGE, ["--target:", "token by token", "diffusion_gemma", "canvases", "HINT"], *train, canvases)
        self.refused(USAGE, [f"--target: {self.root / 'nowhere'}: no such folder", "HINT"], *train, self.root / "nowhere")
        self.assertFalse((self.root / "no-draft").exists())

    def test_thinking_is_switched_only_where_a_template_asks(self):
        for text, switches in ((TURNS, False), (TURNS + SWITCH, True)):
            model = write_checkpoint(self.root / f"chat{switches}")
            (model / "chat_template.jinja").write_text(text)
            command = ["capture", model, "--prompt", "hi", "--chat", "--gen-length", 4, "-q", "-o",
                       self.root / f"chat{switches}.h5"]
            if switches:
                self.must(*command, "--no-thinking")
            else:
                self.refused(USAGE, ["--no-thinking", "enable_thinking"], *command, "--no-thinking")

    def test_a_resumed_training_takes_no_init(self):
        train = ["train", *TINY_TRAINING, "--steps", 1, "--out", self.root / "t", "--work", self.root / "w"]
        self.must(*train)
        self.refused(USAGE, "--init: does nothing", *train, "--resume", "--init", self.root / "t" / "backbone")


if __name__ == "__main__":
    require_binary()
    unittest.main(argv=["test_command_line_idle.py"], verbosity=2)
