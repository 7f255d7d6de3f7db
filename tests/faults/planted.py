"""Plants the faults of product_faults.py in a copy of the tree, and says which tests catch them.

    planted.py check                            every fault still has its place in this tree (a test runs this)
    planted.py plant FOLDER                     a copy of the committed tree; build it like any other
    planted.py run FOLDER [--all] [-o FILE] [N...]
                                                each fault, or faults N..., against the tests of its room until one
                                                fails; --all: then against every other test

One build has all faults: BLOCKSCOPE_FAULT=N switches on number N when a program runs. Results are kept in FILE
(FOLDER/faults.json), and a second `run` goes on where the first one stopped. Exit code 1 if a fault survives."""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

from product_faults import FAULTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLOW = "^(kernels.mutations|cli.interrupts|python.notebooks|source\\..*)$"
# The tests that judge a room, by the beginning of a file's path; the first that fits counts.
NEAR = (
    ("analysis/metrics/draft", "draft|round"),
    ("analysis/metrics/router", "router|Results|SetMetric"),
    ("analysis/calibration", "alibrat|reuse"),
    ("analysis", "^(sets_oracle|analysis|report_page|cli.analyze|cli.backbone|python.analysis)|Metric|Recall|Result|Step|Set|Trace"
                 "Comparison|Round|Trajectory|Decoding|Similarity"),
    ("decode_record/interchange", "mport|round|reuse|interchange|klass"),
    ("decode_record", "race|Frame|Index|Json|OutputFile|epack|ound|hostile|diff"),
    ("command_line", "cli|ommand|ption"),
    ("python", "^python"),
    ("kernels", "kernel|perator|ttention|Merge|TopK|Page|Rows|Similarity|Statistic|Packed|Tile"),
    ("viewer", "view|View|Calibration"),
    ("probe/policies", "olic|selection|flashblock|verify|estimators"),
    ("probe/caches", "ache|canvas|sub_blocks|Decode"),
    ("probe/strategies", "trateg|Decode|trajector|wino|canvas|frequenc"),
    ("probe/checkpoint", "heckpoint|Config|ope|afetensor|Hub|Family|family|logits"),
    ("probe/text", "okeniz|emplate|rompt|metric"),
    ("probe", "probe|Decode|ecord|erify|tud|rain|raft|anks|lan|ask|cli"),
)


def places(root):
    """{file: [(number, index of its line, expression, wrong one)]}; raises where a fault has no place."""
    found, lost = {}, []
    for number, (file, marker, old, new) in enumerate(FAULTS, 1):
        path = root / file
        lines = path.read_text().split("\n") if path.exists() else []
        at = [i for i, line in enumerate(lines) if marker in line and line.count(old) == 1]
        if len(at) != 1:
            lost.append(f"{number}: {file}: expected one line with {marker!r} and {old!r}, found {len(at)}")
            continue
        found.setdefault(file, []).append((number, at[0], old, new))
    if lost:
        sys.exit("\n".join(lost) + "\nHINT: the code was changed: change the fault with it (tests/faults/product_faults.py)")
    return found


def plant(folder):
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    for file, faults in places(folder).items():
        lines = (folder / file).read_text().split("\n")
        for number, at, old, new in faults:
            lines[at] = lines[at].replace(old, f"(::planted({number}) ? ({new}) : ({old}))")
        first = next(i for i, line in enumerate(lines) if line.startswith("#include"))
        lines.insert(first, '#include "tests/faults/planted.h"')
        (folder / file).write_text("\n".join(lines))
    print(f"{len(FAULTS)} faults in {folder}")


def first_failure(folder, number, chosen):
    """The first test of those chosen that fails under a fault and not without it, or None."""
    build = folder / "build" / "release"
    command = ["ctest", "--test-dir", build, "--stop-on-failure", "-j2", "-E", SLOW, *chosen]
    passed_over = []
    while True:
        # What fails without any fault is left out of the next try.
        left_out = [SLOW, *(f"^{re.escape(name)}$" for name in passed_over)]
        command[command.index("-E") + 1] = "|".join(left_out)
        environment = dict(os.environ, BLOCKSCOPE_FAULT=str(number), OMP_WAIT_POLICY="passive")
        said = subprocess.run(command, env=environment, capture_output=True, text=True).stdout
        failed = re.search(r"^\s*\d+ - (\S+) \(.*\)", said, re.M)
        if not failed:
            return None
        name = failed[1]
        alone = subprocess.run(["ctest", "--test-dir", build, "-R", f"^{re.escape(name)}$"], capture_output=True)
        if alone.returncode == 0:
            return name
        passed_over.append(name)


def run(folder, everything, output, numbers):
    results = json.loads(output.read_text()) if output.exists() else {}
    for number, (file, _, old, new) in enumerate(FAULTS, 1):
        before = results.get(str(number))
        if numbers and number not in numbers or before and (before["by"] or before["all"] or not everything):
            continue
        near = next(pattern for start, pattern in NEAR if file.startswith(start))
        by = first_failure(folder, number, ["-R", near])
        if by is None and everything:
            by = first_failure(folder, number, [])
        results[str(number)] = {"file": file, "old": old, "new": new, "by": by, "all": everything}
        output.write_text(json.dumps(results, indent=1))
        print(f"{number} {file}: {by or 'SURVIVED'}", flush=True)
    survived = [number for number, result in results.items() if not result["by"]]
    print(f"{len(results)} of {len(FAULTS)} faults run, {len(survived)} survived: {' '.join(survived)}")
    return 1 if survived else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("check", "plant", "run"))
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("numbers", nargs="*", type=int)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("-o", "--output", type=pathlib.Path)
    given = parser.parse_args()
    if given.action == "check":
        places(ROOT)
        print(f"{len(FAULTS)} faults have their places")
        return 0
    if given.folder is None:
        parser.error(f"{given.action}: expected a folder")
    if given.action == "plant":
        plant(given.folder)
        return 0
    return run(given.folder, given.all, given.output or given.folder / "faults.json", given.numbers)


if __name__ == "__main__":
    sys.exit(main())
