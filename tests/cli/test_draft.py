"""`blockscope capture TARGET --draft DRAFT`: drafts that are damaged or another target's, options that mean nothing
there, a run that is cut off and resumed, and a draft that is never right. What right ones compute: probe.parity.dflash."""

import json
import pathlib
import signal
import struct
import time
import unittest

import h5py
import numpy as np
from capture_harness import (CONFIG, MODELS, assert_same_trajectories, capture, require_binary, run,
                             start, tensor_shapes, trajectories, write_checkpoint, write_prompts)
from capture_refusal import FAILED, USAGE, RefusalCase

VOCAB, HIDDEN, LAYERS, DRAFT_LAYERS, BLOCK, TAPS = CONFIG["vocab_size"], CONFIG["hidden_size"], 4, 2, 4, 2
ABSENT = object()
CODES = {"float32": "F32", "int64": "I64", "int32": "I32", "bool": "BOOL"}


def target_config(**changes):
    config = CONFIG | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
                       "num_hidden_layers": LAYERS} | changes
    return {key: value for key, value in config.items() if key not in ("mask_token_id", "block_size")}


def write_target(folder, seed=0, **changes):
    config = target_config(**changes)
    write_checkpoint(folder, seed, **config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def zlab_config(**changes):
    config = target_config(num_hidden_layers=DRAFT_LAYERS) | {
        "architectures": ["DFlashDraftModel"], "block_size": BLOCK, "num_target_layers": LAYERS,
        "dflash_config": {"mask_token_id": VOCAB - 1, "target_layer_ids": [0, 2]}} | changes
    return {key: value for key, value in config.items() if value is not ABSENT}


def speculators_config(**changes):
    config = {"architectures": ["DFlashDraftModel"], "speculators_model_type": "dflash", "block_size": BLOCK,
              "mask_token_id": VOCAB - 1, "draft_vocab_size": 100, "aux_hidden_state_layer_ids": [1, 3],
              "sample_from_anchor": False,
              "transformer_layer_config": target_config(num_hidden_layers=DRAFT_LAYERS)} | changes
    return {key: value for key, value in config.items() if value is not ABSENT}


def draft_tensors(own_vocabulary=False, seed=1):
    random, tensors = np.random.default_rng(seed), {}
    shapes = tensor_shapes(target_config(num_hidden_layers=DRAFT_LAYERS))
    shapes = {name.removeprefix("model."): shape for name, shape in shapes.items()}
    if own_vocabulary:
        shapes["lm_head.weight"] = (100, HIDDEN)
    else:
        del shapes["embed_tokens.weight"], shapes["lm_head.weight"]
    shapes |= {"fc.weight": (HIDDEN, TAPS * HIDDEN), "hidden_norm.weight": (HIDDEN,)}
    for name, shape in sorted(shapes.items()):
        noise = random.standard_normal(shape)
        tensors[name] = (1 + 0.2 * noise if "norm" in name else 0.4 * noise).astype(np.float32)
    if own_vocabulary:
        tensors["d2t"] = np.arange(100, dtype=np.int64)  # token i is the target's 2 i
    return tensors


def write_draft(folder, config, tensors):
    folder.mkdir()
    header, data = {}, b""
    for name, values in tensors.items():
        header[name] = {"dtype": CODES[str(values.dtype)], "shape": list(values.shape),
                        "data_offsets": [len(data), len(data) + values.nbytes]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Drafts(RefusalCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.sdar, cls.model = cls.model, write_target(cls.root / "target")
        cls.draft = write_draft(cls.root / "draft", zlab_config(), draft_tensors())
        cls.own = write_draft(cls.root / "own", speculators_config(), draft_tensors(True))

    def made(self, config=None, **tensors):
        """A z-lab draft with another config or other tensors (ABSENT: without)."""
        whole = {k: v for k, v in (draft_tensors() | tensors).items() if v is not ABSENT}
        return write_draft(self.root / f"draft-{len(list(self.root.iterdir()))}", config or zlab_config(), whole)

    def made_own(self, config=None, **tensors):
        whole = {k: v for k, v in (draft_tensors(True) | tensors).items() if v is not ABSENT}
        return write_draft(self.root / f"draft-{len(list(self.root.iterdir()))}", config or speculators_config(), whole)

    def refuses(self, words, draft, *arguments, code=FAILED, **given):
        return self.refused(code, words, "--draft", draft, *arguments, **given)

    def test_a_draft_of_another_target(self):
        for name, words, changes in (("wide", ["the draft", "hidden_size 32", "64"], {"hidden_size": 64}),
                                     ("words", ["the draft", f"vocab_size {VOCAB}", "270"], {"vocab_size": 270}),
                                     ("deep", ["the draft", "num_hidden_layers 4", "6"], {"num_hidden_layers": 6})):
            self.refuses(words, self.draft, model=write_target(self.root / name, **changes))
        shallow = write_target(self.root / "shallow", num_hidden_layers=2)
        self.refuses(["the draft", "layer 2", "the target's last is 1"], self.own, model=shallow)

    def test_tensors(self):
        for name in ("fc.weight", "hidden_norm.weight", "norm.weight", "layers.1.self_attn.k_norm.weight"):
            self.refuses([name, "missing (1)"], self.made(**{name: ABSENT}), lines=4)
        self.refuses(["fc.weight", "[32, 64]", "[32, 96]"], self.made(**{"fc.weight": np.zeros((32, 96), np.float32)}),
                     lines=4)
        extra = "layers.0.extra.weight"
        self.refuses([extra], self.made(**{extra: np.zeros((4,), np.float32)}), lines=4)
        d2t = np.arange(100)
        self.refuses(['expected tensor "d2t"', "none"], self.made_own(d2t=ABSENT))
        self.refuses(["d2t", "I64 [100]", "I32 [100]"], self.made_own(d2t=d2t.astype(np.int32)))
        self.refuses(["d2t", "I64 [100]", "I64 [99]"], self.made_own(d2t=d2t[:99]))
        for at, value in ((7, VOCAB - 7), (7, -8), (3, -(2**40))):
            wrong = d2t.copy()
            wrong[at] = value
            self.refuses(["d2t", f"entry {at}", f"below {VOCAB}", str(value)], self.made_own(d2t=wrong))
        wrong = d2t.copy()
        wrong[5] -= 2  # to token 8, where entry 4 leads
        self.refuses(["d2t", "entry 5", "no other entry"], self.made_own(d2t=wrong))

    def test_configs(self):
        inner = zlab_config()["dflash_config"]
        for key, value, words in (
                ("architectures", ["LlamaForCausalLMEagle3"], ["architectures", '["DFlashDraftModel"]', "Eagle3"]),
                ("model_type", "llama", ["model_type", '"qwen3"', '"llama"']),
                ("block_size", 1, ["block_size", "from 2", "1"]), ("block_size", ABSENT, ["block_size", "nothing"]),
                ("dflash_config", inner | {"target_layer_ids": [2, 0, 2]}, ["target_layer_ids", "every layer once"]),
                ("dflash_config", inner | {"projector_type": "domino"}, ["projector_type", "no such key"]),
                ("dflash_config", inner | {"selector_top_k": 4}, ["selector_top_k", "DFlash2DraftModel"]),
                ("dflash_config", inner | {"attention_sink_bias": True}, ["attention_sink_bias", "no such key"]),
                ("conv_group_size", 4, ["conv_group_size", "DFlash2DraftModel"]),
                ("speculators_model_type", "dflash", ["speculators_model_type", "two layouts"]),
                ("layer_types", ["sliding_attention"] * DRAFT_LAYERS, ["layer_types", "use_sliding_window"]),
                ("num_target_layers", 0, ["num_target_layers", "from 1"]),
                ("dflash_config", inner | {"target_layer_ids": [0, 4]}, ["target_layer_ids", "num_target_layers = 4"]),
                ("dflash_config", inner | {"target_layer_ids": [-1, 2]}, ["target_layer_ids", "from 0"]),
                ("dflash_config", inner | {"target_layer_ids": []}, ["target_layer_ids", "a list"]),
                ("dflash_config", inner | {"target_layer_ids": 2}, ["target_layer_ids", "a list"]),
                ("dflash_config", inner | {"target_layer_ids": ["2"]}, ["target_layer_ids", "a list"]),
                ("dflash_config", {"target_layer_ids": [0, 2]}, ["mask_token_id", "nothing"]),
                ("dflash_config", inner | {"mask_token_id": VOCAB}, ["mask_token_id", str(VOCAB)]),
                ("dflash_config", 3, ["dflash_config", "object"])):
            self.refuses(words, self.made(zlab_config(**{key: value})))
        for key, value, words in (
                ("block_size", 1, ["block_size", "from 2", "1"]),
                ("speculators_model_type", "eagle3", ["speculators_model_type", '"dflash"']),
                ("selector_rank", 4, ["selector_rank", "DFlash2DraftModel"]),
                ("projector_type", "domino", ["projector_type", '"dflash"']),
                ("draft_vocab_size", VOCAB + 1, ["draft_vocab_size", str(VOCAB)]),
                ("mask_token_id", ABSENT, ["mask_token_id", "nothing"]), ("mask_token_id", None, ["mask_token_id"]),
                ("aux_hidden_state_layer_ids", ABSENT, ["aux_hidden_state_layer_ids", "nothing"]),
                ("aux_hidden_state_layer_ids", [0, 2], ["aux_hidden_state_layer_ids", "from 1"]),
                ("transformer_layer_config", ABSENT, ["transformer_layer_config", "nothing"])):
            self.refuses(words, self.made_own(speculators_config(**{key: value})))

    def test_a_second_draft(self):
        keys = {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 3, "selector_top_k": 4}
        inner = zlab_config()["dflash_config"] | keys
        second = lambda **changes: zlab_config(architectures=["DFlash2DraftModel"], dflash_config=inner | changes)
        ones = lambda *shape: np.full(shape, 0.1, np.float32)
        tensors = {f"candidate_selector.{side}_codebook": ones(VOCAB, 3) for side in ("predecessor", "successor")}
        tensors["candidate_selector.hidden_projection.weight"] = ones(3, HIDDEN)
        for layer in range(DRAFT_LAYERS):
            for part in ("attention_conv", "mlp_conv"):
                tensors[f"layers.{layer}.{part}.base_kernel"] = ones(2, 2, HIDDEN)
                tensors[f"layers.{layer}.{part}.kernel_projection.weight"] = ones(4 * HIDDEN // 8, HIDDEN)
        out = self.root / "second.h5"
        code, _, err = capture(self.model, "--draft", self.made(second(), **tensors), "--prompt", "a", "--gen-length", 6,
                               "--no-stop", "-o", out)
        self.assertEqual(code, 0, err)
        for name in ("candidate_selector.successor_codebook", "layers.1.mlp_conv.base_kernel"):
            self.refuses([name, "missing (1)"], self.made(second(), **tensors | {name: ABSENT}), lines=4)
        name = "candidate_selector.predecessor_codebook"
        self.refuses([name, f"[{VOCAB}, 3]", f"[{VOCAB}, 4]"], self.made(second(), **tensors | {name: ones(VOCAB, 4)}), lines=4)
        # Made for a draft of another kind, in both directions.
        self.refuses(["attention_conv", "unknown"], self.made(**tensors), lines=None)
        self.refuses(["attention_conv", "missing"], self.made(second()), lines=None)
        for key, value, words in (("selector_top_k", VOCAB + 1, [f"from 1 to {VOCAB}"]), ("selector_rank", 0, ["from 1"]),
                                  ("conv_kernel_size", BLOCK + 1, [f"from 1 to {BLOCK}"]),
                                  ("conv_group_size", 5, ["a divisor of hidden_size"]),
                                  ("output_multiplier", -1, []), ("selector_rank", None, ["an integer"])):
            self.refuses([key, *words], self.made(second(**{key: value}), **tensors))

    def test_models_in_the_wrong_place(self):
        self.refuses(["--draft", "expected a DFlash draft", '"qwen3"'], self.model)
        self.refused(FAILED, ["DFlash draft", "--draft"], model=self.draft)
        self.refuses(["--draft", "token by token", '"sdar"', "mask token"], self.draft, code=USAGE, model=self.sdar)
        self.refuses(["nowhere"], self.root / "nowhere")

    def test_options_that_mean_nothing(self):
        for option in (("--strategy", "sequential"), ("--denoising-steps", 2), ("--strategy", "factor,rank_by=margin"),
                       ("--strategy", "sequential,quota=linear"), ("--strategy", "threshold,threshold=0.5"),
                       ("--strategy", "factor,density_sigma=1"), ("--cache", "commit"), ("--policy", "mage,k=4"), ("--intervene", "drop_head"),
                       ("--shadow",), ("--mask-token-id", 3), ("--no-graphs",),
                       ("--predictions", "masked"), ("--steps", "1")):
            self.refuses([option[0]], self.draft, *option, code=USAGE)
        self.refuses(["--block-length", "at most the draft's 4", "got 5"], self.draft, "--block-length", 5, code=USAGE)

    def test_positions_are_counted_as_without_a_draft(self):
        small = write_target(self.root / "small", max_position_embeddings=16)
        ids = ",".join(map(str, range(1, 11)))
        said = [self.refused(FAILED, ["10 prompt tokens", "need 17 positions", "16"], *draft, model=small,
                             prompt=("--input-ids", ids), gen_length=("--gen-length", 7))
                for draft in ((), ("--draft", self.draft))]
        self.assertEqual(*said)
        out = self.root / "fits.h5"
        code, _, err = capture(small, "--draft", self.draft, "--input-ids", ids, "--gen-length", 6, "--no-stop",
                               "-o", out)
        self.assertEqual(code, 0, err)  # the last block reaches beyond, as a draft's blocks do

    def test_keys_of_tokens_past_the_answers_end_are_not_recorded(self):
        text = (MODELS / "needle" / "demo.jsonl").read_text().splitlines()[:4]
        prompts = self.root / "short.jsonl"
        prompts.write_text("".join(json.dumps(json.loads(line) | {"gen_length": length}) + "\n"
                                   for line, length in zip(text, (12, 24, 5, 16))))
        for which in ("draft", "target"):
            out = self.root / f"past-{which}.h5"
            code, _, err = capture(MODELS / "needle" / "backbone", "--draft", MODELS / "needle" / "dflash", "--no-draft-cost",
                                   "--recorded-model", which, "--prompts", prompts, "--record", "full", "-o", out)
            self.assertEqual(code, 0, err)
            code, _, err = run("info", out)
            self.assertEqual(code, 0, err)
            with h5py.File(out) as file:
                sequence, position = file["/prefix/sequence"][:], file["/prefix/position"][:]
                rows = int(file["/steps/committed"][0])
                accepted, start = file["/draft/accepted"][:rows], file["/steps/block_start"][:rows]
                of = file["/steps/sequence"][:rows]
                end = file["/sequences/prompt_length"][:] + np.array([12, 24, 5, 16])
            self.assertTrue((position < end[sequence]).all())
            self.assertTrue((start + accepted >= end[of]).any(), "no round went past an end: the test shows nothing")

    def test_a_draft_that_is_never_right_changes_no_token(self):
        wrong = self.made(**{"norm.weight": np.zeros(HIDDEN, np.float32)})  # every token is as likely: the first
        prompts = write_prompts(self.root / "few.jsonl", 5, gen_length=20)
        runs = {}
        for name, flags in (("alone", ()), ("drafted", ("--draft", wrong))):
            out = self.root / f"{name}.h5"
            code, _, err = capture(self.model, "--prompts", prompts, "--no-stop", *flags, "-o", out)
            self.assertEqual(code, 0, err)
            runs[name] = trajectories(out)
        self.assertEqual(len(runs["alone"]), 5)
        for name, alone in runs["alone"].items():
            self.assertEqual(alone["token"].tolist(), runs["drafted"][name]["token"].tolist())
            self.assertNotIn(0, alone["token"])
        with h5py.File(self.root / "drafted.h5") as file:
            rows = int(file["/steps/committed"][0])
            accepted = file["/draft/accepted"][:rows][file["/steps/kind"][:rows] == 1]
        self.assertEqual((len(accepted), accepted.max()), (5 * 19 + 5, 0))
        code, out, err = run("info", self.root / "drafted.h5", "--json")
        self.assertEqual((code, json.loads(out)["tokens_per_round"]), (0, 1.0), err)
        code, out, err = run("info", self.root / "drafted.h5")
        self.assertIn("100 rounds, 1.00 tokens a round", out)

    def test_a_run_that_was_cut_goes_on_to_the_same_trace(self):
        prompts = write_prompts(self.root / "many.jsonl", 12, gen_length=200)
        for draft in (self.draft, self.own):
            whole, cut = self.root / "whole.h5", self.root / "cut.h5"
            flags = (self.model, "--draft", draft, "--prompts", prompts, "--record", "full", "--set-size", 4,
                     "--temperature", 0.7, "--seed", 5, "--no-stop")
            code, _, err = capture(*flags, "-o", whole, "--force")
            self.assertEqual(code, 0, err)
            process = start("capture", *flags, "-o", cut, "--quiet", "--threads", "1", "--force")
            self.wait_for_sequences(process, pathlib.Path(f"{cut}.partial"), 2)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 128 + signal.SIGINT, err)
            self.assertIn("--resume", err)
            self.assertFalse(cut.exists())
            self.refuses_other_runs(flags, cut)
            code, out, err = capture(*flags, "-o", cut, "--resume")
            self.assertEqual(code, 0, err)
            self.assertIn("resumed: ", out)
            assert_same_trajectories(trajectories(cut), trajectories(whole))
            self.compare_rounds(cut, whole)
            cut.unlink()

    def refuses_other_runs(self, flags, cut):
        before = pathlib.Path(f"{cut}.partial").read_bytes()
        other_target = self.root / "other-target"
        if not other_target.exists():
            write_target(other_target, seed=9)
        other_draft = self.own if flags[2] == self.draft else self.draft
        for words, changed in ((["target_digest"], (other_target, *flags[1:])),
                               (["digest"], (*flags[:2], other_draft, *flags[3:])),
                               (["block_length"], (*flags, "--block-length", 2)), (["seed"], (*flags, "--seed", 6))):
            code, _, err = capture(*changed, "-o", cut, "--resume")
            with self.subTest(words=words):
                self.assertEqual(code, USAGE, err)
                for word in words:
                    self.assertIn(word, err)
            self.assertEqual(pathlib.Path(f"{cut}.partial").read_bytes(), before)

    def wait_for_sequences(self, process, partial, count):
        while process.poll() is None:
            try:
                with h5py.File(partial, "r", swmr=True, locking=False) as file:
                    if int(file["/sequences/committed"][0]) > count:
                        return
            except (OSError, KeyError):
                pass  # the datasets are still being created
            time.sleep(0.002)
        self.fail(f"the run ended before {count} sequences: {process.communicate()}")

    def compare_rounds(self, cut, whole):
        """Every dataset of /draft and the attention's, sequence by sequence."""
        with h5py.File(cut) as a, h5py.File(whole) as b:
            def rows_of(file):
                rows = int(file["/steps/committed"][0])
                owner, aborted = file["/steps/sequence"][:rows], file["/sequences/aborted"][:]
                keys = {bytes(file["/sequences/prompt_hash"][i]): np.flatnonzero(owner == i)
                        for i in range(int(file["/sequences/committed"][0])) if not aborted[i]}
                return keys

            mine, theirs = rows_of(a), rows_of(b)
            self.assertEqual(len(theirs), 12)
            self.assertEqual(mine.keys(), theirs.keys())
            for name in [*(f"/draft/{n}" for n in b["/draft"]), "/attention/external", "/sets/topk", "/query/query"]:
                if isinstance(b[name], h5py.Group):
                    continue  # /draft/cost, which is of the run
                for key, rows in theirs.items():
                    np.testing.assert_array_equal(a[name][mine[key]], b[name][rows], err_msg=name)


if __name__ == "__main__":
    require_binary()
    unittest.main()
