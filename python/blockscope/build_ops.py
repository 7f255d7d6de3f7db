"""Builds the operators' library for the torch of this Python: ``blockscope build-ops``.

A wheel has no operators, because they are compiled against one release of torch. It has their sources instead, and this
module compiles them into the package, or into a folder that ``BLOCKSCOPE_KERNELS`` then names."""

from __future__ import annotations

import argparse
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from . import _core
from .errors import Error, OperatorsUnavailable

_PACKAGE = pathlib.Path(_core.__file__).resolve().parent
_LIBRARIES = ("libblockscope_kernels.so", "libblockscope_kernels_cuda.so")


def build(output: str | os.PathLike[str] | None = None, *, jobs: int | None = None, cuda: bool = True) -> pathlib.Path:
    """Compiles the operators against the torch that this Python imports; takes two to ten minutes.

    output: the folder that receives the library; default: the package's own ``lib``, where ``blockscope.ops`` looks.
    jobs: compilers at a time; default: one for each core. cuda: also build the kernels for GPUs where torch has CUDA
    and an nvcc of the same CUDA release is found. Returns the path of ``libblockscope_kernels.so``.

    Raises OperatorsUnavailable without torch, a compiler, CMake or Ninja, or where compiling fails."""
    torch_root, version = _torch()
    folder = pathlib.Path(output) if output is not None else _PACKAGE / "lib"
    source = _source()
    cmake, ninja = _program("cmake"), _program("ninja")
    _check_writable(folder)
    print(f"compiling the operators for torch {version} with {os.environ.get('CXX', 'c++')}", flush=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="blockscope-build-") as work:
        _run([cmake, "-S", str(source / "kernels"), "-B", work, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}",
              "-DCMAKE_BUILD_TYPE=Release", f"-DLIBTORCH_ROOT={torch_root}", f"-DWITH_CUDA={'AUTO' if cuda else 'OFF'}"])
        _run([cmake, "--build", work, "--parallel", str(jobs or os.cpu_count() or 1)])
        for name in _LIBRARIES:
            built = pathlib.Path(work, "lib", name)
            if built.is_file():
                part = folder / f"{name}.part"
                shutil.copy2(built, part)
                part.replace(folder / name)
    library = folder / _LIBRARIES[0]
    print(f"built {library} in {time.monotonic() - begun:.0f} s")
    if output is not None:
        print(f"HINT: BLOCKSCOPE_KERNELS={library} makes blockscope use it")
    return library


def _torch() -> tuple[pathlib.Path, str]:
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise OperatorsUnavailable(f"build-ops: expected torch in {sys.executable}, found none. HINT: pip install torch")
    import torch
    return pathlib.Path(found.origin).parent, str(torch.__version__)


def _source() -> pathlib.Path:
    """The folder that holds kernels/ and cmake/: of the wheel, or the clone that the package was built from."""
    for folder in (_PACKAGE / "source", pathlib.Path(__file__).resolve().parents[2]):
        if (folder / "kernels" / "CMakeLists.txt").is_file():
            return folder
    raise OperatorsUnavailable(f"build-ops: expected the sources of the operators in {_PACKAGE / 'source'}, found none. "
                               "HINT: this package was built with its operators; install it again with pip install .")


def _program(name: str) -> str:
    """The path of cmake or ninja: of PATH, or of PyPI's package of that name."""
    beside_python = pathlib.Path(sys.executable).parent / name
    found = str(beside_python) if beside_python.is_file() else shutil.which(name)
    if found is None:
        raise OperatorsUnavailable(f"build-ops: expected {name} on PATH, found none. HINT: pip install cmake ninja")
    return found


def _check_writable(folder: pathlib.Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OperatorsUnavailable(f"build-ops: {folder}: can't be written to ({error.strerror}). HINT: -o FOLDER, and "
                                   "BLOCKSCOPE_KERNELS naming the library in it") from error


def _run(command: list[str]) -> None:
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        raise OperatorsUnavailable(f"build-ops: {' '.join(command[:2])} failed with exit code {code}; its output is "
                                   "above. HINT: it needs g++ 11 or newer; CXX names another one")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="blockscope build-ops", description="Compiles the recorder's and operators' library for the torch of this "
        "Python environment. Without it, recording works more slowly through torch's own operators.",
        epilog="Example: blockscope build-ops")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="write the library here instead of into the package")
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="compilers at a time (default: one for each core)")
    parser.add_argument("--no-cuda", action="store_true", help="leave out the kernels for GPUs")
    given = parser.parse_args()
    if given.jobs is not None and given.jobs < 1:
        parser.error(f"--jobs: expected 1 or more, got {given.jobs}")
    try:
        build(given.output, jobs=given.jobs, cuda=not given.no_cuda)
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
