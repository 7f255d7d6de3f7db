"""Compares `blockscope capture` with what official decoders did, as `official/*.py` dumped it:

    python compare_official.py ORACLE.json...

Every pass: its input, which positions it decided and with which tokens; best token and probability of
the block's masked positions; at the end all tokens and the number of passes. Cases that the official
code itself did not finish are left out and counted. Needs BLOCKSCOPE_BINARY, h5py and numpy.
"""

import json
import math
import pathlib
import shutil
import subprocess
import sys

import harness
from trace_file import Trace

ALGS = {"maskgit_plus": "confidence", "topk_margin": "margin", "entropy": "negative_entropy"}


def choice(name, parameters, **options):
    """The text of a choice whose options are parameters of theirs."""
    return ",".join([name, *(f"{option}={parameters[theirs]}" for option, theirs in options.items())])


def klass_flags(parameters, steps):
    """The authors' entropy takes the highest, which ours does not offer."""
    if parameters["alg"] == "klass":
        return ["--strategy", choice("klass", parameters, threshold="conf_threshold", kl_threshold="kl_threshold",
                                     kl_history="kl_history_length", klass_choose="unmask_strategy"),
                "--denoising-steps", steps]
    rank = {"default": "confidence", "topk_margin": "margin"}.get(parameters["alg"])
    return rank and ["--strategy", f"low_confidence_static,rank_by={rank}", "--denoising-steps", steps]


def pc_sampler_flags(parameters, steps):
    """The authors' other functions: EB stops elsewhere than entropy_bounded, linear_position ours does not offer,
    entropy and margin rank the whole answer, which is the block where there is one only."""
    function = parameters["function"].removeprefix("generate_with_")
    if function == "pc_sampler":
        return ["--strategy", choice("pc_sampler", parameters, pc_lambda="lambd", pc_alpha="alpha"),
                "--denoising-steps", steps]
    rank = {"entropy": "negative_entropy", "margin": "margin"}.get(function)
    if rank is None or parameters["block_length"] < parameters["gen_length"]:
        return None
    return ["--strategy", f"low_confidence_static,rank_by={rank}", "--denoising-steps", steps]


def strategy_flags(family, method, parameters):
    """-> flags of our command for the parameters of an official call, or None: not run by us."""
    blocks = parameters["gen_length"] // parameters.get("block_length", parameters["gen_length"])
    steps = parameters["steps"] // blocks if "steps" in parameters else 0
    if method == "wino" and "variant" not in parameters:
        return ["--strategy", choice("wino", parameters, threshold="threshold", threshold_back="threshold_back")]
    if method == "klass" and "variant" not in parameters:
        return klass_flags(parameters, steps)
    if method == "pc-sampler":
        return pc_sampler_flags(parameters, steps)
    if "factor" in parameters and "variant" not in parameters:
        return ["--strategy", choice("factor", parameters, factor="factor")]
    if "variant" in parameters:  # d2Cache: one token a step, or all above a threshold
        if set(parameters) & {"gamma", "sigma", "frequencies", "alg", "debias", "temperature"} and method == "vanilla":
            return None
        due, size = parameters.get("num_transfer_tokens", 1), parameters["block_length"]
        if "factor" in parameters or (due > 1 and ("threshold" in parameters or size % due)):
            return None
        if "threshold" in parameters:
            return ["--strategy", choice("threshold", parameters, threshold="threshold")]
        return ["--strategy", "low_confidence_static", "--denoising-steps", size // due]
    if family == "dream":
        if parameters["alg"] == "confidence_threshold":
            threshold = choice("threshold", parameters, threshold="threshold")
            if method != "none":
                return ["--strategy", threshold]
            return ["--strategy", threshold + ",quota=carry", "--denoising-steps", steps]
        # With a cache every other alg ranks by negative entropy, whatever its name.
        rank = ALGS[parameters["alg"]] if method == "none" else "negative_entropy"
        return ["--strategy", f"low_confidence_static,quota=linear,rank_by={rank}", "--denoising-steps", steps]
    if "threshold" in parameters:
        return ["--strategy", choice("threshold", parameters, threshold="threshold")]
    return ["--strategy", "low_confidence_static", "--denoising-steps", steps]


CACHES = {"none": "none", "wino": "none", "klass": "none", "pc-sampler": "none", "vanilla": "none", "gsai": "none",
          "prefix-cache": "prefix", "dual-cache": "dual"}


def cache_flags(method, parameters):
    variant = parameters.get("variant")
    if method == "dllm-cache":
        return ["--cache", choice("dllm-cache", parameters, prompt_interval="kp", answer_interval="kr",
                                  transfer_ratio="rou")]
    if method == "d2cache":
        if variant == "published":  # decides positions that it did not compute
            return None
        text = choice("d2cache", parameters, current_k="current_k", certainty_sigma="sigma", rollout_p="rollout_p",
                      inflate_window="inflate_w")
        return ["--cache", text + (",as_released" if variant == "corrected" else "")]
    return ["--cache", CACHES[method]] if method in CACHES else None


def overwrites(case):
    """Whether a step changed a decided position: KLASS's fallback does when it is due more than there are masks."""
    mask = case["parameters"]["mask_id"]
    return any(step["input"][position] != mask for step in case["passes"] for position, _ in step["changed"])


def ties_at_the_cap(case):
    """Whether a step of PC-Sampler's took one of several scores that are all alpha, among which topk picks any."""
    parameters, counts = case["parameters"], case["token_counts"]
    if parameters.get("lambd") != 0:
        return False
    for step in case["passes"]:
        taken = {position for position, _ in step["changed"]}
        start = min(taken) - (min(taken) - parameters["prompt_length"]) % parameters["block_length"]
        capped = {position for position, token, p in zip(step["positions"], step["top1"], step["probability"])
                  if start <= position < start + parameters["block_length"]
                  and step["input"][position] == parameters["mask_id"]
                  and -p * math.log(max(counts[token], 1) / sum(counts) + 1e-9) > parameters["alpha"]}
        if capped & taken and capped - taken:
            return True
    return False


def goes_back(case):
    """Whether a step of ML-GSAI's decided a mask that an earlier block left, which ours leaves."""
    parameters = case["parameters"]
    blocks = parameters["gen_length"] // parameters["block_length"]
    steps, start = parameters["steps"] // blocks, parameters["prompt_length"]
    return any(position < start + i // steps * parameters["block_length"]
               for i, step in enumerate(case["passes"]) for position, _ in step["changed"])


class Comparison:
    def __init__(self):
        self.cases = self.passes = self.rows = self.skipped = 0
        self.largest = 0.0
        self.refused = set()

    def case(self, folder, family, method, case):
        parameters = case["parameters"]
        flags = strategy_flags(family, method, parameters)
        cache = cache_flags(method, parameters)
        if (flags is None or cache is None or case.get("error") or (method == "klass" and overwrites(case)) or
                (method == "gsai" and goes_back(case)) or (method == "pc-sampler" and ties_at_the_cap(case))):
            self.skipped += 1
            return
        block = parameters.get("block_length", parameters["gen_length"])
        prompt = case["prompt"]
        with harness.temporary_folder() as work:
            path, model = pathlib.Path(work) / "run.h5", folder / case["checkpoint"]
            if "token_counts" in case:  # a table belongs to a tokenizer, and these checkpoints have none
                model = shutil.copytree(model, pathlib.Path(work) / "model")
                table = harness.write_frequencies(model, case["token_counts"])
                flags = [f"{flag},frequencies={table}" if str(flag).startswith("pc_sampler") else flag for flag in flags]
            command = [harness.BINARY, "capture", model, "--input-ids",
                       ",".join(map(str, prompt)), "--gen-length", parameters["gen_length"],
                       "--block-length", block, *cache, "--no-stop", "--dtype", "float32",
                       "--record", "trajectory", "--threads", 1, "--quiet", "-o", path, *flags]
            result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
            if result.returncode == 1 and "config.json: key" in result.stderr:
                self.refused.add(case["checkpoint"])
                return
            harness.require(result.returncode == 0, f"{command}: {result.stderr}")
            self.compare(case, Trace(path), block, 1 if family == "dream" else 0, method)
        self.cases += 1

    def compare(self, case, trace, block, shift, method):
        name = f"{case['checkpoint']} seed {case['seed']} {case['parameters']}"
        prompt, mask = case["prompt"], case["parameters"]["mask_id"]
        canvas = prompt + [mask] * case["parameters"]["gen_length"]
        rows = [r for r in trace.rows_of(0) if trace.rows("/steps/kind")[r] == 1]
        # Some official loops run on, or pass once more, when a block is full: nothing changes then.
        official = [p for p in case["passes"] if p["changed"] or (method == "none" and mask in p["input"])]
        if method == "gsai":
            official = [p for p in case["passes"] if p["changed"]]
            rows = [r for r in rows if trace.delta(r)[0]]
        ours = [r for r in rows if trace.delta(r)[0] or method == "none"]
        harness.require(len(ours) == len(official), f"{name}: {len(ours)} passes, official {len(official)}")
        for row, step in zip(ours, official):
            where = f"{name}, row {row}"
            harness.require(step["input"] == canvas, f"{where}: another input")
            positions, tokens, _ = trace.delta(row)
            mine = sorted([len(prompt) + p, t] for p, t in zip(positions, tokens))
            harness.require(mine == sorted(step["changed"]), f"{where}: decided {mine}, official {step['changed']}")
            self.predictions(trace, row, step, canvas, mask, block, shift, where)
            for position, token in mine:
                canvas[position] = token
            self.passes += 1
        harness.require(canvas == case["tokens"], f"{name}: other tokens at the end")

    def predictions(self, trace, row, step, canvas, mask, block, shift, where):
        start = int(trace.rows("/steps/block_start")[row])
        computed = {p: i for i, p in enumerate(step["positions"])}
        for i in range(block):
            if canvas[start + i] != mask or start + i - shift not in computed:
                continue
            at = computed[start + i - shift]
            if step["gap"][at] > 1e-4:
                harness.require(int(trace.rows("/prediction/token")[row][i]) == step["top1"][at],
                                f"{where}: best token of position {start + i}")
            difference = abs(float(trace.rows("/prediction/confidence")[row][i]) - step["probability"][at])
            self.largest = max(self.largest, difference)
            harness.require(difference < 1e-4, f"{where}: probability of {start + i} differs by {difference}")
            self.rows += 1


def main():
    for path in map(pathlib.Path, sys.argv[1:]):
        oracle = json.loads(path.read_text())
        comparison = Comparison()
        for case in oracle["cases"]:
            comparison.case(path.parent, oracle["family"], oracle["method"], case)
        print(f"{path.name}: {comparison.cases} cases, {comparison.passes} passes, {comparison.rows} "
              f"predictions equal; largest difference of a probability {comparison.largest:.1e}; "
              f"{comparison.skipped} left out" + (f"; refused: {', '.join(sorted(comparison.refused))}"
                                           if comparison.refused else ""))


if __name__ == "__main__":
    main()
