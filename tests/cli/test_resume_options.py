"""`capture --resume` and every option of `capture`: each one either decides something of what is written, and then a run
with another value is refused by name, or stands in a list with the reason why it decides nothing. A new option that is in
neither table fails the test."""

import json
import re
import unittest

import h5py
import numpy as np
from capture_harness import CheckpointCase, require_binary, run, write_checkpoint, write_prompts
from family_case import side_by_side, write_family
from test_draft import draft_tensors, write_draft, write_target, zlab_config

USAGE = 2
# Options that a resumed run may be given otherwise.
DECIDES_NOTHING = {
    "--help": "runs nothing",
    "--revision": "names a snapshot; the digest of what is in it is compared",
    "--threads": "results do not depend on it",
    "--no-graphs": "a graph launches the same kernels",
    "--no-draft-cost": "what a draft costs was measured once, and stays",
    "--output": "names the trace that is resumed",
    "--force": "contradicts --resume",
    "--resume": "is what is tested",
    "--dry-run": "writes nothing",
    "--no-space-check": "decides whether a run starts, not what it writes",
    "--quiet": "decides what is printed",
}
THRESHOLD, FACTOR = ["--strategy", "threshold"], ["--strategy", "factor"]
KLASS, PC = ["--strategy", "klass"], ["--strategy", "pc_sampler", "--frequencies", "@table"]
DLLM, D2 = ["--cache", "dllm-cache"], ["--cache", "d2cache"]
SAMPLED, QUEST = ["--temperature", 1], ["--policy", "quest", "--k", 4]
TEXT, CHAT = ["--prompt", "ab"], ["--prompt", "ab", "--chat"]
REUSE = ["--policy", "flashblock", "--reuse", "@reuse"]
# Option: (checkpoint, what both runs have, what the second one has too, or what the first and the second one have, the
# setting that the refusal names).
DECIDES = {
    "--dtype": ("sdar", [], ["--dtype", "bfloat16"], "compute_dtype"),
    "--ranks": ("sdar", [], (["--ranks", "0/2"], ["--ranks", "0/3"]), "world_size"),
    "--mask-token-id": ("sdar", [], ["--mask-token-id", 258], "mask_token_id"),
    "--block-length": ("sdar", [], ["--block-length", 8], "block_length"),
    "--draft": ("target", [], (["--draft", "@draft"], ["--draft", "@other_draft"]), "digest"),
    "--recorded-model": ("target", ["--draft", "@draft"], ["--recorded-model", "target"], "digest"),
    "--prompt": ("sdar", [], (TEXT, ["--prompt", "cd"]), "prompts_digest"),
    "--prompts": ("sdar", [], (["--prompts", "@prompts"], ["--prompts", "@other_prompts"]), "prompts_digest"),
    "--input-ids": ("sdar", [], (["--input-ids", "1,2"], ["--input-ids", "1,3"]), "prompts_digest"),
    "--metric": ("sdar", [], ["--metric", "f1"], "prompts_digest"),
    "--limit": ("sdar", [], ["--limit", 1], "num_prompts"),
    "--chat": ("chat", TEXT, ["--chat"], "prompts_digest"),
    "--no-thinking": ("chat", CHAT, ["--no-thinking"], "prompts_digest"),
    "--replay": ("sdar", [], (["--replay", "@trace"], ["--replay", "@other_trace"]), "prompts_digest"),
    "--gen-length": ("sdar", TEXT, ["--gen-length", 12], "gen_length"),
    "--strategy": ("sdar", [], ["--strategy", "sequential"], "strategy"),
    "--remasking": ("sdar", [], ["--remasking", "sequential"], "strategy"),
    "--denoising-steps": ("sdar", [], ["--denoising-steps", 2], "denoising_steps"),
    "--rank-by": ("sdar", [], ["--rank-by", "margin"], "rank_by"),
    "--threshold": ("sdar", THRESHOLD, ["--threshold", 0.5], "threshold"),
    "--quota": ("sdar", [], ["--quota", "linear"], "quota"),
    "--density-sigma": ("sdar", [], ["--density-sigma", 2], "density_sigma"),
    "--eb-threshold": ("sdar", ["--strategy", "entropy_bounded"], ["--eb-threshold", 0.1], "eb_threshold"),
    "--factor": ("sdar", FACTOR, ["--factor", 2], "factor"),
    "--kl-threshold": ("sdar", KLASS, ["--kl-threshold", 0.5], "kl_threshold"),
    "--kl-history": ("sdar", KLASS, ["--kl-history", 3], "kl_history"),
    "--klass-choose": ("sdar", KLASS, ["--klass-choose", "min_kl"], "klass_choose"),
    "--threshold-back": ("llada", ["--strategy", "wino"], ["--threshold-back", 0.5], "threshold_back"),
    "--pc-lambda": ("sdar", PC, ["--pc-lambda", 1], "pc_lambda"),
    "--pc-alpha": ("sdar", PC, ["--pc-alpha", 1], "pc_alpha"),
    "--frequencies": ("sdar", PC[:2], (["--frequencies", "@table"], ["--frequencies", "@other_table"]), "frequencies_digest"),
    "--cache": ("llada", [], ["--cache", "prefix"], "cache"),
    "--prompt-interval": ("llada", DLLM, ["--prompt-interval", 7], "prompt_interval"),
    "--answer-interval": ("llada", DLLM, ["--answer-interval", 7], "answer_interval"),
    "--transfer-ratio": ("llada", DLLM, ["--transfer-ratio", 0.5], "transfer_ratio"),
    "--current-k": ("llada", D2, ["--current-k", 3], "current_k"),
    "--certainty-sigma": ("llada", D2, ["--certainty-sigma", 3], "certainty_sigma"),
    "--rollout-p": ("llada", D2, ["--rollout-p", 0.5], "rollout_p"),
    "--inflate-window": ("llada", D2, ["--inflate-window", 1], "inflate_window"),
    "--as-released": ("llada", D2, ["--as-released"], "as_released"),
    "--sub-block-length": ("fast", [], ["--sub-block-length", 2], "sub_block_length"),
    "--temperature": ("sdar", [], (SAMPLED, ["--temperature", 2]), "temperature"),
    "--top-k": ("sdar", SAMPLED, ["--top-k", 5], "top_k"),
    "--top-p": ("sdar", SAMPLED, ["--top-p", 0.5], "top_p"),
    "--seed": ("sdar", SAMPLED, ["--seed", 5], "seed"),
    "--stop-id": ("sdar", [], ["--stop-id", 7], "stop_ids"),
    "--no-stop": ("sdar", [], ["--no-stop"], "stop_ids"),
    "--batch-size": ("sdar", [], ["--batch-size", 2], "batch_size"),
    "--policy": ("sdar", ["--k", 4], (["--policy", "oracle"], ["--policy", "recent"]), "policy"),
    "--k": ("sdar", ["--policy", "quest"], (["--k", 4], ["--k", 5]), "k"),
    "--density": ("sdar", ["--policy", "quest"], (["--density", 0.5], ["--density", 0.7]), "density"),
    "--exact-layers": ("sdar", QUEST, ["--exact-layers", 1], "exact_layers"),
    "--page": ("sdar", QUEST, ["--page", 8], "page"),
    "--per-block": ("sdar", ["--policy", "sparsed", "--k", 4], ["--per-block"], "per_block"),
    "--policy-seed": ("sdar", ["--policy", "random", "--k", 4], ["--policy-seed", 3], "policy_seed"),
    "--tau": ("sdar", REUSE, ["--tau", 3], "tau"),
    "--reuse": ("sdar", REUSE[:2], (["--reuse", "@reuse"], ["--reuse", "@other_reuse"]), "reuse_digest"),
    "--shadow": ("sdar", QUEST, ["--shadow"], "shadow"),
    "--record": ("sdar", [], ["--record", "sets"], "level"),
    "--layers": ("sdar", [], ["--layers", 0], "layers"),
    "--heads": ("sdar", [], ["--heads", "0-1"], "heads"),
    "--steps": ("sdar", [], ["--steps", 1], "recorded_steps"),
    "--blocks": ("sdar", [], ["--blocks", "5-8"], "recorded_blocks"),
    "--sequences": ("sdar", [], ["--sequences", 1], "recorded_sequences"),
    "--set-size": ("sdar", ["--record", "sets"], ["--set-size", 3], "set_size"),
    "--set-normaliser": ("sdar", ["--record", "sets"], ["--set-normaliser", "prefix+block"], "set_normaliser"),
    "--array-type": ("sdar", ["--record", "outputs"], ["--array-type", "f32"], "array_type"),
    "--predictions": ("sdar", [], ["--predictions", "masked"], "predictions"),
    "--record-router": ("moe", [], ["--record-router"], "experts_per_token"),
}
OF_TESTS = {"--device", "--ranks"}  # compared, and each has a test of its own
PROMPTS = {"--prompt", "--input-ids", "--replay", "--prompts", "--chat"}
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
            "'\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
            "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}"
            "{% endif %}{% endif %}")


class EveryOption(CheckpointCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        chat = write_checkpoint(cls.root / "chat")
        (chat / "chat_template.jinja").write_text(TEMPLATE)
        cls.models = {"sdar": cls.model, "chat": chat, "target": write_target(cls.root / "target"),
                      "llada": write_family(cls.root / "llada", "llada"),
                      "fast": write_family(cls.root / "fast", "Fast_dLLM_Qwen"),
                      "moe": write_family(cls.root / "moe", "sdar_moe")}
        cls.files = {"draft": write_draft(cls.root / "draft", zlab_config(), draft_tensors()),
                     "other_draft": write_draft(cls.root / "other_draft", zlab_config(), draft_tensors(seed=2))}
        for name, seed in (("prompts", 1), ("other_prompts", 2)):
            path = write_prompts(cls.root / f"{name}.jsonl", 2, seed, 20, 30, gen_length=8)
            lines = [json.dumps(json.loads(line) | {"answer": "x"}) for line in path.read_text().splitlines()]
            path.write_text("\n".join(lines) + "\n")
            cls.files[name] = path
        for name, text in (("table", "one text"), ("other_table", "another text")):
            source = cls.root / f"{name}.txt"
            source.write_text(text)
            cls.files[name] = cls.root / f"{name}.json"
            cls.must("frequencies", cls.model, source, "-o", cls.files[name], "-q")
        for name, prompts in (("trace", "prompts"), ("other_trace", "other_prompts")):
            cls.files[name] = cls.root / f"{name}.h5"
            cls.must("capture", cls.model, "--prompts", cls.files[prompts], "--record", "full", "-q", "-o", cls.files[name])
        for name, gamma in (("reuse", -1), ("other_reuse", 0.9)):
            cls.files[name] = cls.root / f"{name}.json"
            cls.must("calibrate", cls.files["trace"], "--gamma", gamma, "-o", cls.files[name], "--quiet")

    @classmethod
    def must(cls, *arguments):
        code, _, err = run(*arguments)
        assert code == 0, (arguments, err)

    def command(self, model, arguments):
        """A capture of `arguments`, in which "@name" is a file; the prompts are there unless others are named."""
        words = [self.files[word[1:]] if str(word).startswith("@") else word for word in arguments]
        prompts = [] if PROMPTS & set(map(str, words)) else ["--prompts", self.files["prompts"]]
        return ["capture", self.models[model], *words, *prompts, "-q", "--threads", 1]

    def check(self, option, case):
        """-> what is wrong with an option; empty: it is refused by the name of its setting."""
        model, common, changed, setting = case
        first, second = changed if isinstance(changed, tuple) else ([], changed)
        output = self.root / f"of{option}.h5"
        trace = output.with_suffix(".r0000.h5") if option == "--ranks" else output
        code, _, err = run(*self.command(model, [*common, *first]), "-o", output)
        if code != 0:
            return f"{option}: the first run failed: {err}"
        code, out, err = run(*self.command(model, [*common, *first]), "-o", output, "--resume")
        if code != 0 or "nothing to resume" not in out:
            return f"{option}: the same run is not taken for itself: {out}{err}"
        before = trace.read_bytes()
        code, _, err = run(*self.command(model, [*common, *second]), "-o", output, "--resume")
        named = any(f"{trace}: {setting}{words}" in err for words in (" was", ": the trace to resume has"))
        if code != USAGE or not named:
            return f"{option}: expected a refusal that names {setting}, got {code}: {err}"
        return "" if trace.read_bytes() == before else f"{option}: the trace was changed"

    def test_every_option_is_compared_or_decides_nothing(self):
        code, text, _ = run("capture", "--help")
        self.assertEqual(code, 0)
        options = {name for line in re.findall(r"^ +(-[-\w,]+)", text, re.M) for name in line.split(",")
                   if name.startswith("--")}
        self.assertGreater(len(options), 70)
        known = DECIDES.keys() | DECIDES_NOTHING.keys() | OF_TESTS
        self.assertEqual(options - known, set(), "say in test_resume_options.py what these decide")
        self.assertEqual(known - options, set(), "no options of capture any more")

    def test_another_value_of_an_option_is_refused_by_name(self):
        problems = side_by_side(self.check, DECIDES.items())
        self.assertEqual([problem for problem in problems if problem], [])

    def test_another_number_of_ranks_is_refused(self):
        trace = self.root / "ranks.r0000.h5"
        self.must(*self.command("sdar", ["--ranks", "0/2"]), "-o", self.root / "ranks.h5")
        code, _, err = run(*self.command("sdar", ["--ranks", "0/3"]), "-o", self.root / "ranks.h5", "--resume")
        self.assertEqual(code, USAGE, err)
        self.assertIn(f"{trace}: world_size was 2, and is 3 now", err)

    def test_another_kind_of_device_is_refused(self):
        trace = self.root / "device.h5"
        self.must(*self.command("sdar", []), "-o", trace)
        with h5py.File(trace, "r+") as file:
            there = file["/model/json"]
            model = json.loads(there[:].tobytes())
            model = {key: model[key] for key in model if key != "resolved"} | {"device": "cuda:0"}
            there[:] = np.frombuffer(json.dumps(model).encode().ljust(there.shape[0]), np.uint8)
        code, _, err = run(*self.command("sdar", []), "-o", trace, "--resume")
        self.assertEqual(code, USAGE, err)
        self.assertIn('device was "cuda", and is "cpu" now', err)


if __name__ == "__main__":
    require_binary()
    unittest.main(argv=["test_resume_options.py"], verbosity=2)
