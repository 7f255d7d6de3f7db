"""`capture --resume` and every option of `capture`: each one either decides something of what is written, and then a run
with another value is refused by name, or is in a list with the reason why it affects nothing. A new option that is in
neither table fails the test. The same holds for every option of every policy, strategy and cache that `blockscope help`
lists."""

import json
import re
import unittest

import h5py
import numpy as np
from capture_harness import CheckpointCase, require_binary, run, write_checkpoint, write_prompts
from family_case import side_by_side, write_canvases, write_family
from test_adapter import tensors as adapter_tensors, write_adapter
from test_draft import draft_tensors, write_draft, write_target, zlab_config

USAGE = 2
# Options that may have other values in a resumed run.
DECIDES_NOTHING = {
    "--help": "runs nothing",
    "--help-all": "runs nothing",
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
    "--plugin": "offers choices; the digest of a chosen one's file is compared",
}
SAMPLED, QUEST = ["--temperature", 1], ["--policy", "quest,k=4"]
TEXT, CHAT = ["--prompt", "ab"], ["--prompt", "ab", "--chat"]
# Option: (checkpoint, what both runs have, what the second one has too, or what the first and the second one have, the
# setting that the refusal names).
DECIDES = {
    "--dtype": ("sdar", [], ["--dtype", "bfloat16"], "compute_dtype"),
    "--adapter": ("sdar", [], (["--adapter", "@adapter"], ["--adapter", "@other_adapter"]), "digest"),
    "--ranks": ("sdar", [], (["--ranks", "0/2"], ["--ranks", "0/3"]), "world_size"),
    "--mask-token-id": ("sdar", [], ["--mask-token-id", 258], "mask_token_id"),
    "--block-length": ("sdar", [], ["--block-length", 8], "block_length"),
    "--draft": ("target", [], (["--draft", "@draft"], ["--draft", "@other_draft"]), "digest"),
    "--recorded-model": ("target", ["--draft", "@draft"], ["--recorded-model", "target"], "digest"),
    "--prompt": ("sdar", [], (TEXT, ["--prompt", "cd"]), "prompts_digest"),
    "--prompts": ("sdar", [], (["--prompts", "@prompts"], ["--prompts", "@other_prompts"]), "prompts_digest"),
    "--regions": ("sdar", [], (["--regions", "@regions"], ["--regions", "@other_regions"]), "prompts_digest"),
    "--input-ids": ("sdar", [], (["--input-ids", "1,2"], ["--input-ids", "1,3"]), "prompts_digest"),
    "--metric": ("sdar", [], ["--metric", "f1"], "prompts_digest"),
    "--limit": ("sdar", [], ["--limit", 1], "num_prompts"),
    "--chat": ("chat", TEXT, ["--chat"], "prompts_digest"),
    "--no-thinking": ("chat", CHAT, ["--no-thinking"], "prompts_digest"),
    "--replay": ("sdar", [], (["--replay", "@trace"], ["--replay", "@other_trace"]), "prompts_digest"),
    "--gen-length": ("sdar", TEXT, ["--gen-length", 12], "gen_length"),
    "--strategy": ("sdar", [], ["--strategy", "sequential"], "strategy"),
    "--denoising-steps": ("sdar", [], ["--denoising-steps", 2], "denoising_steps"),
    "--cache": ("llada", [], ["--cache", "prefix"], "cache"),
    "--sub-block-length": ("fast", [], ["--sub-block-length", 2], "sub_block_length"),
    "--temperature": ("sdar", [], (SAMPLED, ["--temperature", 2]), "temperature"),
    "--top-k": ("sdar", SAMPLED, ["--top-k", 5], "top_k"),
    "--top-p": ("sdar", SAMPLED, ["--top-p", 0.5], "top_p"),
    "--seed": ("sdar", SAMPLED, ["--seed", 5], "seed"),
    "--stop-id": ("sdar", [], ["--stop-id", 7], "stop_ids"),
    "--no-stop": ("sdar", [], ["--no-stop"], "stop_ids"),
    "--batch-size": ("sdar", [], ["--batch-size", 2], "batch_size"),
    "--policy": ("sdar", [], (["--policy", "oracle,k=4"], ["--policy", "recent,k=4"]), "policy"),
    "--intervene": ("sdar", [], ["--intervene", "drop_head,layers=0"], "interventions"),
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
    "--predictions": ("sdar", [], ["--predictions", "all"], "predictions"),
    "--record-maps": ("sdar", [], (["--record-maps", "heads=0"], ["--record-maps", "heads=1"]), "map_heads"),
    "--record-router": ("moe", [], ["--record-router"], "experts_per_token"),
}
# What a choice needs besides its name, and the checkpoint of those that sdar can't decode with.
NEEDED = {"sparsed+flashblock": ",k=4,per_block", "pc_sampler": ",frequencies=@table", "flashblock": "", "exact": "",
          **{name: ",k=4" for name in ("mage", "mage+flashblock", "sparsed", "quest", "oracle", "random", "recent")}}
MODELS = {name: "llada" for name in ("wino", "none", "prefix", "dual", "dllm-cache", "d2cache")}
MODELS |= {"joint_threshold_indel": "indel", "canvas": "canvases"}
# Option of a choice: what the second run adds to the choice, or the end of both runs' texts; the setting that the refusal
# names, where it is not called as the option.
CHOICES = {
    "policy": {
        "tau": ",tau=3", "count": ",count=step", "refresh": ",refresh=near",
        "reuse": (",reuse=@reuse", ",reuse=@other_reuse", "reuse_digest"),
        "bound": (",bound=0.1,reuse=@reuse", ",bound=0.2,reuse=@reuse", "bound"),
        "sure": (",sure=0.1", ",sure=0.2", "sure"), "k": (",k=4", ",k=5", "k"),
        "density": (",density=0.5", ",density=0.7", "density"), "exact_layers": ",exact_layers=1", "page": ",page=8",
        "per_block": ",per_block", "seed": ("", ",seed=3", "policy_seed")},
    "strategy": {
        "rank_by": ",rank_by=margin", "threshold": ",threshold=0.45", "quota": ",quota=linear",
        "density_sigma": ",density_sigma=2", "eb_threshold": ",eb_threshold=0.1", "factor": ",factor=2",
        "kl_threshold": ",kl_threshold=0.5", "kl_history": ",kl_history=3", "klass_choose": ",klass_choose=min_kl",
        "threshold_back": ",threshold_back=0.5", "editing_threshold": ",editing_threshold=0.25",
        "max_post_steps": ",max_post_steps=3", "pc_lambda": ",pc_lambda=1", "pc_alpha": ",pc_alpha=1",
        "entropy_bound": ",entropy_bound=0.2", "t_max": ",t_max=0.9", "t_min": ",t_min=0.5",
        "stable_steps": ",stable_steps=2", "stop_entropy": ",stop_entropy=0.5",
        "frequencies": (",frequencies=@table", ",frequencies=@other_table", "frequencies_digest")},
    "cache": {
        "prompt_interval": ",prompt_interval=7", "answer_interval": ",answer_interval=7",
        "transfer_ratio": ",transfer_ratio=0.5", "current_k": ",current_k=3", "certainty_sigma": ",certainty_sigma=3",
        "rollout_p": ",rollout_p=0.5", "inflate_window": ",inflate_window=1", "as_released": ",as_released"},
}
REPLACES = {"k", "density", "reuse", "frequencies"}  # instead of what the choice needs
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
                      "canvases": write_canvases(cls.root / "canvases"),
                      "moe": write_family(cls.root / "moe", "sdar_moe"),
                      "indel": write_family(cls.root / "indel", "llada2_moe", delete_token_id=1, split_token_id=2)}
        cls.files = {"draft": write_draft(cls.root / "draft", zlab_config(), draft_tensors()),
                     "other_draft": write_draft(cls.root / "other_draft", zlab_config(), draft_tensors(seed=2))}
        for name, seed in (("adapter", 1), ("other_adapter", 2)):
            cls.files[name] = write_adapter(cls.root / name, adapter_tensors(seed=seed))
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
        for name, positions in (("regions", "4-6"), ("other_regions", "4-7")):
            cls.files[name] = cls.root / f"{name}.json"
            cls.files[name].write_text(json.dumps([{"region": "part", "positions": positions}]))
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
        words = [re.sub(r"@(\w+)", lambda name: str(self.files[name.group(1)]), str(word)) for word in arguments]
        prompts = [] if PROMPTS & set(words) else ["--prompts", self.files["prompts"]]
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
        code, text, _ = run("capture", "--help-all")
        self.assertEqual(code, 0)
        options = {name for line in re.findall(r"^ +(-[-\w,]+)", text, re.M) for name in line.split(",")
                   if name.startswith("--")}
        self.assertGreater(len(options), 45)
        known = DECIDES.keys() | DECIDES_NOTHING.keys() | OF_TESTS
        self.assertEqual(options - known, set(), "say in test_resume_options.py what these decide")
        self.assertEqual(known - options, set(), "no options of capture any more")

    def of_choices(self):
        """(name of the case, case) for every option of every choice."""
        for kind, options in CHOICES.items():
            code, text, err = run("help", kind, "--json")
            self.assertEqual(code, 0, err)
            choices = json.loads(text)
            offered = {option["name"] for choice in choices for option in choice["options"]}
            self.assertEqual(offered, options.keys(), f"say in test_resume_options.py what these options of a {kind} decide")
            for choice in choices:
                name = choice["name"]
                for option in (one["name"] for one in choice["options"]):
                    if (name, option) == ("sparsed+flashblock", "per_block"):
                        continue  # can't be left out
                    change, needed = options[option], NEEDED.get(name, "")
                    if (name, option) == ("threshold", "quota"):
                        change = ",quota=carry"
                    first, second, setting = change if isinstance(change, tuple) else ("", change, option)
                    if option in REPLACES:
                        needed = ",per_block" if name == "sparsed+flashblock" else ""
                    texts = ([f"--{kind}", name + needed + end] for end in (first, second))
                    yield f"-{kind}-{name}-{option}", (MODELS.get(name, "sdar"), [], tuple(texts), setting)

    def test_another_value_of_an_option_of_a_choice_is_refused_by_name(self):
        cases = list(self.of_choices())
        self.assertGreater(len(cases), 60)
        problems = side_by_side(self.check, cases)
        self.assertEqual([problem for problem in problems if problem], [])

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
