"""Caches, strategies, policies and lengths that a family's attention forbids: refused with what it is, what would do, and
the documented exit code, before anything is written. Options that would do nothing: test_command_line_idle.py."""

import unittest

from capture_harness import MASK, VOCAB, require_binary
from capture_refusal import FAILED, USAGE
from family_case import BIDIRECTIONAL, BLOCK_CAUSAL, TOKEN_BY_TOKEN, FamilyCase

OF_DLLM = {"prompt_interval": "=2", "answer_interval": "=2", "transfer_ratio": "=0.5"}
OF_D2 = {"current_k": "=2", "certainty_sigma": "=2", "rollout_p": "=0.5", "inflate_window": "=2", "as_released": ""}
# cache: (option, value, expected)
RANGES = {
    "dllm-cache": (("prompt_interval", 0, "a whole number from 1"), ("answer_interval", -1, "a whole number from 1"),
                   ("answer_interval", 10**30, "a whole number from 1"), ("transfer_ratio", 1.01, "a number from 0 to 1"),
                   ("transfer_ratio", "nan", "a number from 0 to 1")),
    "d2cache": (("current_k", 0, "a whole number from 1"), ("certainty_sigma", 0, "a number above 0"),
                ("certainty_sigma", "inf", "a number above 0"), ("rollout_p", -0.5, "a number from 0 to 1"),
                ("inflate_window", 1.5, "a whole number from 0")),
}


class FamilyOptions(FamilyCase):
    def usage(self, *cases):
        """cases: (words, family, arguments)."""
        return self.all_refused([(USAGE, words, self.models[family], arguments) for words, family, arguments in cases])

    def test_a_cache_that_the_attention_forbids(self):
        kept = ("a bidirectional model's keys change", "HINT: use none, prefix, dual, dllm-cache or d2cache")
        behind = ("is for models whose keys outside the block change; those of a block-causal model don't",
                  "HINT: leave the option out")
        cases = [([f"cache {cache}: keeps finished blocks", *kept], family, ("--cache", cache))
                 for family in BIDIRECTIONAL for cache in ("commit", "block")]
        for number, family in enumerate(BLOCK_CAUSAL):  # every cache and every family, not all pairs
            for cache in (("none", "d2cache"), ("prefix", "dllm-cache"), ("dual",), ("dual", "d2cache"))[number]:
                cases.append(([f"cache {cache}: ", *behind], family, ("--cache", cache)))
        cases += [(["cache block:", "only Fast_dLLM_Qwen has sub-blocks", "HINT: leave"], family, ("--cache", "block"))
                  for family in ("sdar", "sdar_moe", "llada2_moe")]
        cases += [([f"{named}: does nothing", "token by token", "HINT"], family, ("--cache", cache))
                  for family, cache, named in (("qwen2", "commit", "--cache"), ("qwen2", "dual", "cache dual"),
                                               ("qwen3_moe", "block", "cache block"), ("qwen3_moe", "none", "cache none"))]
        cases.append((["cache 'Dual': expected commit, blockd, block, none, prefix, dual, dllm-cache or d2cache, got 'Dual'"],
                      "llada", ("--cache", "Dual")))
        self.usage(*cases)

    def test_an_option_of_another_cache(self):
        cases = []
        for given, own, options in (("d2cache", OF_D2, OF_DLLM), ("dllm-cache", OF_DLLM, OF_D2)):
            first, last = ", ".join(list(own)[:-1]), list(own)[-1]
            cases += [([f"cache '{given},{option}{value}': expected {first} or {last}, got '{option}'"], "llada",
                       ("--cache", f"{given},{option}{value}")) for option, value in options.items()]
        cases.append((["cache 'none,current_k=2': none has no options, got 'current_k'"], "Dream",
                      ("--cache", "none,current_k=2")))
        self.usage(*cases)

    def test_a_value_outside_the_range_of_a_cache(self):
        self.usage(*[([f"cache '{cache},{option}={value}': {option}: expected {expected}, got '{value}'"], "llada",
                      ("--cache", f"{cache},{option}={value}"))
                     for cache, ranges in RANGES.items() for option, value, expected in ranges])

    def test_wino_where_it_is_not_defined(self):
        wino = ("--strategy", "wino")
        cases = [(["strategy wino:", f"no key may be kept, got the cache {cache}", "HINT: use the cache none"], "llada",
                  (*wino, "--cache", cache)) for cache in ("prefix", "dual", "dllm-cache", "d2cache")]
        cases += [(["strategy wino:", "defined for bidirectional models", "HINT: klass"], family, wino)
                  for family in BLOCK_CAUSAL]
        cases.append((["strategy wino:", "not defined for a model with a token shift (Dream)", "HINT: klass"], "Dream", wino))
        cases.append((["--strategy: does nothing", "token by token"], "qwen3_moe", wino))
        self.usage(*cases)

    def test_edits_where_they_are_not_defined(self):
        cases = []
        for strategy in ("joint_threshold", "joint_threshold_indel"):
            flags = ("--strategy", strategy)
            cases.append(([f"strategy {strategy}:", "defined for block-causal models", "HINT: wino"], "llada", flags))
            cases.append(([f"strategy {strategy}:", "defined for block-causal models", "HINT: wino"], "Dream", flags))
            cases.append(([f"strategy {strategy}:", "a token shift (Fast-dLLM v2)", "HINT: low_confidence_dynamic"],
                          "Fast_dLLM_Qwen", flags))
            cases.append((["--strategy: does nothing", "token by token"], "qwen3_moe", flags))
        cases.append((["strategy joint_threshold_indel:", "delete_token_id and split_token_id", "HINT: joint_threshold"],
                      "llada2_moe", ("--strategy", "joint_threshold_indel")))
        cases.append((["max_post_steps: expected editing_threshold above 0", "HINT: leave max_post_steps out"], "llada2_moe",
                      ("--strategy", "joint_threshold,editing_threshold=0,max_post_steps=2")))
        self.usage(*cases)

    def test_policies_that_do_not_go_with_a_cache(self):
        single = "computes single rows of them. HINT: use another cache"
        cases = [([f"--policy {policy}: needs whole blocks, but the cache {cache} {single}"], family,
                  ("--cache", cache, "--policy", policy))
                 for family, cache, policy in (("llada", "dllm-cache", "flashblock"), ("Dream", "dllm-cache", "mage,k=2"),
                                               ("llada", "d2cache", "recent,k=2"),
                                               ("Dream", "d2cache", "sparsed,k=2,per_block"),
                                               ("Fast_dLLM_Qwen", "block", "recent,k=2"))]
        for family, cache in (("llada", "prefix"), ("Dream", "dual")):
            cases.append((["--policy quest,k=2", "a bidirectional model's keys change", "HINT"], family,
                          ("--cache", cache, "--policy", "quest,k=2")))
        cases.append((["--policy sparsed,k=2", "HINT: add per_block"], "llada", ("--policy", "sparsed,k=2")))
        cases.append((["--shadow: does nothing without", "a --cache that keeps entries"], "llada",
                      ("--cache", "none", "--shadow")))
        self.usage(*cases)

    def test_a_length_of_sub_blocks_that_does_not_fit(self):
        expected = "sub-block length: expected"
        cases = [([f"{expected} a divisor of the block length {block}, got {sub}", "HINT"], "Fast_dLLM_Qwen",
                  ("--block-length", block, "--sub-block-length", sub)) for block, sub in ((8, 3), (8, 16), (12, 8))]
        cases.append((["--sub-block-length: expected a whole number of at least 0, got '-1'"], "Fast_dLLM_Qwen",
                      ("--sub-block-length", -1)))
        cases += [(["--sub-block-length: does nothing", "Fast_dLLM_Qwen"], family, ("--sub-block-length", 4))
                  for family in ("llada", "llada2_moe", "qwen2")]
        self.usage(*cases)

    def test_a_gen_length_that_is_no_whole_number_of_blocks(self):
        """A line's own number is the file's fault, --gen-length the command line's."""
        prompts = self.prompts_file('{"input_ids": [1, 2]}\n{"input_ids": [3], "gen_length": 6}\n')
        several, whole = "expected a multiple of the block length 4, got 6", "expected at least the block length 8, got 6"
        rules = [(family, several, "a bidirectional model", "HINT: use 8") for family in BIDIRECTIONAL]
        rules.append(("Fast_dLLM_Qwen", whole, "whole blocks only", "HINT: use 8"))
        self.all_refused([(FAILED, ["prompts.jsonl:2: prompt 1: gen length: ", *words], self.models[family], (), prompts)
                          for family, *words in rules])
        self.usage(*[(["error: gen length: ", *words], family, ("--gen-length", 6)) for family, *words in rules])

    def test_ids_and_lengths_that_the_checkpoint_refuses(self):
        cases = []
        for family in ("Dream", "Fast_dLLM_Qwen", "llada2_moe"):
            cases.append(([f"stop id: expected another token than the mask token, got {MASK}: every block would stop", "HINT"], family,
                          ("--stop-id", MASK)))
        for family in ("llada", "qwen3_moe"):
            cases.append(([f"stop id: expected one in [0, {VOCAB}), got {VOCAB}", "HINT"], family,
                          ("--stop-id", VOCAB)))
        cases += [(["--block-length: expected 1 to 512, got 513", "HINT"], family, ("--block-length", 513))
                  for family in ("Dream", "llada2_moe")]
        cases += [(["both --mask-token-id and --block-length are needed, got only one"], family, ("--block-length", 8))
                  for family in TOKEN_BY_TOKEN if family != "nemotron_labs_diffusion"]
        cases += [(["runs token by token only", "HINT: leave both out"], "nemotron_labs_diffusion", flags)
                  for flags in (("--block-length", 8), ("--mask-token-id", MASK, "--block-length", 8))]
        self.usage(*cases)


if __name__ == "__main__":
    require_binary()
    unittest.main(verbosity=2)
