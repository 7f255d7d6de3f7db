"""What a policy in Python costs: plugin_cost.py [--model FOLDER] [--turns N]

Times the denoising steps of a capture with exact attention, with an empty `choose`, with the built-in MAGE and with
MAGE as a plugin, in turns. Run it with the package's folder in PYTHONPATH, or installed."""

import argparse
import pathlib
import tempfile

import blockscope
import numpy as np

ROOT = pathlib.Path(__file__).parents[2]
POLICIES = ("exact", "empty", "mage,k=16", "my_mage,k=16")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=ROOT / "models" / "needle")
    parser.add_argument("--turns", type=int, default=7)
    flags = parser.parse_args()
    blockscope.plugins.load(ROOT / "tests" / "python" / "plugin_methods.py")
    model = blockscope.Model(flags.model)
    prompts = ROOT / "models" / "needle" / "demo.jsonl"

    def step_us(policy, folder):
        """Median time of a denoising step, in microseconds."""
        trace = model.capture(prompts, output=f"{folder}/run.h5", force=True, gen_length=64, record="trajectory",
                              policy=policy, progress=False)
        steps = trace.tree["steps"].to_dataset()
        return float(np.median(steps.pass_time_ns.values[steps.kind.values == 1])) / 1e3

    with tempfile.TemporaryDirectory(prefix="blockscope-") as folder:
        turns = np.array([[step_us(policy, folder) for policy in POLICIES] for _ in range(flags.turns)])
    empty = (turns[:, 1] - turns[:, 0]) / model.facts["layers"]
    ratio = turns[:, 3] / turns[:, 2]
    print("median step, us: " + ", ".join(f"{name} {value:.0f}" for name, value in zip(POLICIES, np.median(turns, axis=0))))
    for name, values in (("empty choose, us a layer and step", empty), ("MAGE as a plugin / built in", ratio)):
        print(f"{name}: {np.median(values):.2f} [{values.min():.2f}, {values.max():.2f}] over {flags.turns} turns")


if __name__ == "__main__":
    main()
