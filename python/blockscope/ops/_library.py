"""Finds and loads the shared library with the operators, ``libblockscope_kernels.so``, once per process.

The library is compiled against one version of torch, which is written in the file. A torch of another version must
never load it, because that ends in undefined symbols or worse."""

from __future__ import annotations

import mmap
import os
import pathlib
import re
import sys
import warnings
from typing import Any

from .. import _core
from ..errors import OperatorsUnavailable

# Operators of recordings: recording/kernels.py calls them, recording/torch_operators.py can replace them.
_RECORDING = ("recorded_attention", "step_statistics", "step_gaps", "row_log_sum_exp", "row_divergence",
              "best_token_rows")
_FILE = "libblockscope_kernels.so"
_CUDA_FILE = "libblockscope_kernels_cuda.so"
_MARKER = re.compile(rb"blockscope-kernels torch=([0-9A-Za-z.+]+);")
_VARIABLE = "BLOCKSCOPE_KERNELS"


def find() -> pathlib.Path:
    """The library of ``BLOCKSCOPE_KERNELS``, else the one of the package (a wheel or a build tree)."""
    named = os.environ.get(_VARIABLE)
    if named:
        path = pathlib.Path(named)
        if not path.is_file():
            raise OperatorsUnavailable(
                f"blockscope.ops: {_VARIABLE}={named}: expected a file, found none. HINT: name the {_FILE} of a build "
                "tree (build/release/lib), or unset the variable")
        return path.resolve()
    path = pathlib.Path(_core.__file__).parent / "lib" / _FILE
    if not path.is_file():
        raise OperatorsUnavailable(
            f"blockscope.ops: expected the operators in {path}, found none: this package was built without "
            f"torch. HINT: blockscope build-ops compiles them for your torch; or set {_VARIABLE} to the {_FILE} of a build "
            "tree. Everything else of blockscope works without them")
    return path


def built_with(path: pathlib.Path) -> str:
    """The version of torch that the library was compiled against, such as ``2.11.0``, read from the file."""
    with open(path, "rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                found = _MARKER.search(data)
                version = found[1].decode() if found else ""
        except ValueError:  # an empty file
            version = ""
    if not version:
        raise OperatorsUnavailable(
            f"blockscope.ops: {path}: expected Blockscope's operators, found no mark of the torch they were built "
            f"with. HINT: name a {_FILE} of this version of blockscope")
    return version


def load() -> str | None:
    """Loads the library unless its operators are already registered (``torch.ops.load_library``). Returns its path, or
    None if other code loaded it."""
    if "torch" in sys.modules and _registered(sys.modules["torch"]):
        return None
    path = find()
    built = built_with(path)
    release = ".".join(built.split(".")[:2])
    try:
        import torch
    except ImportError as error:
        raise OperatorsUnavailable(
            f"blockscope.ops: expected torch {release}, which the operators were built with, found none in this "
            f"Python ({error}). HINT: pip install 'torch=={release}.*'; everything else of blockscope needs no torch"
        ) from error
    if _registered(torch):
        return None
    running = str(torch.__version__)
    if running.split("+")[0].split(".")[:2] != release.split("."):
        raise OperatorsUnavailable(
            f"blockscope.ops: {path}: expected torch {release}, which the operators were built with, found torch "
            f"{running}. HINT: blockscope build-ops compiles them for yours; or pip install 'torch=={release}.*'. Everything "
            "else of blockscope works as it is")
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise OperatorsUnavailable(
            f"blockscope.ops: {path}: can't be loaded ({error}). HINT: it was built with torch {built}, this is "
            f"{running}; build it again against this one") from error
    _load_cuda(torch, path.with_name(_CUDA_FILE))
    for name in _RECORDING:
        operator(torch, name, str(path))
    return str(path)


def operator(torch: Any, name: str, path: str = "torch.ops.blockscope") -> Any:
    """``torch.ops.blockscope.<name>``, which the library must have."""
    found = getattr(torch.ops.blockscope, name, None)
    if found is None:
        raise OperatorsUnavailable(
            f"blockscope.ops: {path}: expected the operators of this version of blockscope, found none named {name}. "
            "HINT: build the library and the package from one checkout")
    return found


def _registered(torch: Any) -> bool:
    ops = getattr(torch, "ops", None)
    return ops is not None and hasattr(ops.blockscope, "split_attention")


def _load_cuda(torch: Any, path: pathlib.Path) -> None:
    """Loads the kernels for GPUs, if there is a GPU. Without them, torch operators replace them on the GPU."""
    if not path.is_file() or not torch.cuda.is_available():
        return
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        warnings.warn(f"blockscope.ops: {path}: can't be loaded ({error}); on a GPU the operators are made of "
                      "torch's own. HINT: docs/cuda.md says what it needs", RuntimeWarning, stacklevel=2)
