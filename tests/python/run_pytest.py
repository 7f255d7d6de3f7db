"""Runs tests of the Python package with pytest, out of a build tree:

run_pytest.py FILE PACKAGE_FOLDER TOOLS_FOLDER MAKE_TRACE TRACE_TOOL"""

import os
import pathlib
import sys
import tempfile

if __name__ == "__main__":
    name, package, tools, os.environ["MAKE_TRACE"], os.environ["TRACE_TOOL"] = sys.argv[1:]
    # Idle threads of OpenMP would take the other tests' cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # For programs that the tests start as well.
    os.environ["PYTHONPATH"] = os.pathsep.join([package, tools])
    sys.path[:0] = [package, tools]
    try:
        import pytest
    except ImportError:
        print(f"skipped: no pytest in {tools}; scripts/setup.sh --tests puts it there")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="blockscope-") as folder:  # pytest itself would keep a gigabyte
        options = ["-q", "-rs", "-p", "no:cacheprovider", f"--basetemp={folder}/traces"]
        code = pytest.main([*options, str(pathlib.Path(__file__).with_name(name))])
    sys.exit(77 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code)  # the file as a whole is skipped, and says why
