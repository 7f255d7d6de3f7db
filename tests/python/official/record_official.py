"""blockscope.record() over official decoding loops, which are not dependencies: their code runs as it is, on tiny
random configurations, with a recording and without, and everything in the trace is compared with what an observer saw.

python record_official.py FAMILY CHECKOUT    FAMILY: llada, dream (both of NVlabs/Fast-dLLM), d2cache, sdar

test_recording_loops.py covers the loops of transformers. docs/parity.md has the commands and the results.
Replacements of missing dependencies are described where they are made."""

import argparse
import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), *(str(HERE.parents[1] / x) for x in ("support", "probe/parity/official"))]

import recording_observer as observer  # noqa: E402
import torch  # noqa: E402
from official_models import FAMILIES  # noqa: E402

import blockscope  # noqa: E402


def run(case, folder, largest):
    """case: name, model, layers, generate() -> [S, L], options of record(), of the observer and of the comparison."""
    torch.manual_seed(5)
    with contextlib.redirect_stdout(io.StringIO()):  # official code prints its times
        plain = case.generate(None)
    path = folder / "run.h5"
    torch.manual_seed(5)
    sees = observer.Observer(case.model, case.layers, **case.observer)
    with contextlib.redirect_stdout(io.StringIO()), sees, blockscope.record(
            case.model, path, level="outputs", array_type="f32", set_size=8, force=True, **case.options) as recording:
        ids = case.generate(recording)
        recording.end_sequence(ids)
    assert torch.equal(plain, ids), "the recorded loop gave other tokens"
    observer.compare(path, sees, ids.numpy(), largest=largest, **case.comparison)
    assert blockscope.open(path).complete
    return len(sees.passes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("checkout", type=pathlib.Path, help="work tree of the repository")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    totals = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in FAMILIES[arguments.family](arguments.checkout):
            largest, counts = totals.setdefault(case.loop, (observer.Largest(), [0, 0]))
            try:
                counts[1] += run(case, pathlib.Path(folder), largest)
            except (AssertionError, blockscope.Error) as error:
                print(f"{case.loop}: {case.name}: {error}")
                raise
            counts[0] += 1
    for loop, (largest, (runs, passes)) in totals.items():
        print(json.dumps(dict(loop=loop, runs=runs, passes=passes, rows=largest.rows, sets=largest.sets,
                              values=largest.values, largest={k: float(f"{v:.2g}") for k, v in largest.of.items()})))


if __name__ == "__main__":
    main()
