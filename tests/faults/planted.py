"""Plants the faults of product_faults.py in a copy of the tree, and says which tests catch them.

    planted.py check                            every fault still has its place in this tree (a test runs this)
    planted.py plant FOLDER                     a copy of the committed tree; build it like any other
    planted.py run FOLDER [--seconds S] [N...]  each fault, or faults N..., against the tests that reach it until one
                                                fails, the shortest first, up to S seconds of tests (600)

One build has all faults: BLOCKSCOPE_FAULT=N switches on number N when a program runs. The first `run` runs all tests
without a fault to learn which tests reach which faults. Results are kept in FOLDER/faults.json, and a second `run` goes
on where the first one stopped. Exit code 1 if a fault survives."""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from product_faults import FAULTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = r"^(kernels\.mutations|cli\.interrupts|python\.notebooks|source\..*)$"
GROUP_S = 30  # the reaching tests run in groups of at least this many seconds, the shortest tests first


def is_expression(text):
    """Whether the text may stand in (planted ? text : text), as far as brackets, operators and semicolons tell."""
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    binary = re.match(r"\s*([<>=/+|?:,.%]|!=|&&|[-*&] )", text) or re.search(r"[-+*/=<>&|?:,.;(]\s*$", text)
    return bool(text.strip()) and depth == 0 and not binary


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
        before, after = lines[at[0]].split(old)
        if not (is_expression(old) and is_expression(new)) or before.endswith(("::", ".", "->")) or after.startswith("("):
            lost.append(f"{number}: {file}: expected two whole expressions, found {old!r} and {new!r}")
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


def ctest(folder, *options, **variables):
    command = ["ctest", "--test-dir", folder / "build" / "release", "-E", SKIPPED, *options]
    environment = dict(os.environ, OMP_WAIT_POLICY="passive", **variables)
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def reaching_tests(folder):
    """{number of a fault: its tests [(seconds, name)], the shortest first}, by one run of all tests without a fault."""
    reached = folder / "reached"
    if not reached.exists():
        unfinished = folder / "reached.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        (folder / "without_fault.txt").write_text(ctest(folder, "-j2", BLOCKSCOPE_REACHED=str(unfinished)).stdout)
        unfinished.rename(reached)
    seconds = {}
    for line in (folder / "without_fault.txt").read_text().splitlines():
        passed = re.match(r"\s*\d+/\d+ Test\s+#\d+: (\S+) \.+\s+Passed\s+([\d.]+) sec", line)
        if passed:
            seconds[passed[1]] = float(passed[2])
    by_command = {}
    for test in json.loads(ctest(folder, "--show-only=json-v1").stdout)["tests"]:
        for first in range(len(test.get("command", ()))):  # a script ends up as the interpreter that it starts
            by_command.setdefault("\0".join(test["command"][first:]) + "\0", test["name"])
    found = {}
    for number in range(1, len(FAULTS) + 1):
        file = reached / str(number)
        commands = set(file.read_text().split("\n")) if file.exists() else set()
        names = {by_command[command] for command in commands if command in by_command}
        found[number] = sorted((seconds[name], name) for name in names if name in seconds)
    return found


def first_failure(folder, number, tests, most):
    """The first test that fails under a fault and passes without it right after, or None after all of them or `most`
    seconds of them."""
    while tests and most > 0:
        group, duration = [], 0.0
        while tests and duration < GROUP_S:
            duration += tests[0][0]
            group.append(tests.pop(0)[1])
        most -= duration
        pattern = "^(" + "|".join(map(re.escape, group)) + ")$"
        said = ctest(folder, "--stop-on-failure", "-j2", "-R", pattern, BLOCKSCOPE_FAULT=str(number)).stdout
        failed = re.search(r"^\s*\d+ - (\S+) \(.*\)", said, re.M)
        if failed and ctest(folder, "-R", f"^{re.escape(failed[1])}$").returncode == 0:
            return failed[1]
        if failed:  # it fails without the fault too: the rest of the group goes on without it
            tests[:0] = [(0.0, name) for name in group if name != failed[1]]
    return None


def run(folder, most, output, numbers):
    results = json.loads(output.read_text()) if output.exists() else {}
    tests = reaching_tests(folder)
    for number, (file, _, old, new) in enumerate(FAULTS, 1):
        before = results.get(str(number))
        if numbers and number not in numbers or before and (before["by"] or before["seconds"] >= most):
            continue
        reaching = len(tests[number])
        by = first_failure(folder, number, list(tests[number]), most)
        results[str(number)] = {"file": file, "old": old, "new": new, "by": by, "reaching": reaching, "seconds": most}
        output.write_text(json.dumps(results, indent=1))
        print(f"{number} {file}: {by or 'SURVIVED'} ({reaching} tests reach it)", flush=True)
    survived = [number for number, result in results.items() if not result["by"]]
    print(f"{len(results)} of {len(FAULTS)} faults run, {len(survived)} survived: {' '.join(survived)}")
    return 1 if survived else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("check", "plant", "run"))
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("numbers", nargs="*", type=int)
    parser.add_argument("--seconds", type=float, default=600)
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
    return run(given.folder, given.seconds, given.folder / "faults.json", given.numbers)


if __name__ == "__main__":
    sys.exit(main())
