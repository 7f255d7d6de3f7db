"""Tests an installed wheel with nothing but what it depends on: check_wheel.py REPOSITORY [SITE_PACKAGES]

Reads the frozen trace of the tests, runs the README's lines, and compares the package with the command that
came with it. With a folder that holds the torch of the wheel's operators: loads and runs those, and nothing else."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import blockscope
import numpy as np

SECONDS = ("import time; begin = time.perf_counter(); import blockscope; t = blockscope.open({path!r}); "
           "print(time.perf_counter() - begin)")


def check_command(path):
    binary = pathlib.Path(sys.prefix) / "bin" / "blockscope"
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    assert version.split()[1] == blockscope.__version__, version
    out = subprocess.run([binary, "analyze", path, "--json", "-"], capture_output=True, check=True).stdout
    found, cells = blockscope.analyze(path, progress=False), 0
    for metric in json.loads(out)["metrics"]:
        for array in metric["arrays"]:
            want = np.array([np.nan if v is None else v for v in array["values"]], float)
            got = found[metric["metric"]][array["name"]].values.ravel()
            np.testing.assert_array_equal(np.where(np.isfinite(got), got, np.nan), want)
            cells += want.size
    assert cells > 100
    capture = subprocess.run([binary, "capture", "x", "-o", "y.h5"], capture_output=True, text=True)
    assert capture.returncode == 1 and "BLOCKSCOPE_PROBE" in capture.stderr, capture.stderr
    return cells


def check_package(path):
    trace = blockscope.open(path)
    assert trace.complete and trace.num_sequences == 2 and trace.text(0) == trace.sequences[0].text
    assert trace.frame(0, 0).masks_left == trace.sequences[0].gen_length
    assert trace.tree["attention/external"].sel(layer=4).values.dtype == np.float32
    try:
        blockscope.open(path + ".none")
    except FileNotFoundError as error:
        assert path in str(error)
    else:
        raise AssertionError("a file that is not there was opened")


def run_readme(root, path):
    blocks = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    block, = [block for block in blocks if "import blockscope" in block]
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(path, os.path.join(folder, "run.h5"))
        subprocess.run([sys.executable, "-I", "-c", block], check=True, cwd=folder, stdout=subprocess.DEVNULL)


def check_no_operators():
    """Without torch there are none, and the error says which one is missing."""
    try:
        blockscope.ops
    except blockscope.OperatorsUnavailable as error:
        assert "HINT: " in str(error), error
        library = pathlib.Path(blockscope.__file__).parent / "lib" / "libblockscope_kernels.so"
        assert ("found none in this Python" if library.exists() else "LibTorch wasn't found") in str(error), error
        return "with" if library.exists() else "without"
    raise AssertionError("operators without torch")


def check_operators(site_packages):
    sys.path.append(site_packages)
    from blockscope import ops

    import torch

    library = pathlib.Path(blockscope.__file__).parent / "lib" / "libblockscope_kernels.so"
    assert ops.library == str(library), ops.library
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    paths = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic)
    assert paths == ["$ORIGIN"], paths
    maps = pathlib.Path("/proc/self/maps").read_text()
    loaded = {os.path.realpath(path) for path in re.findall(r"\S*/libtorch_cpu\.so\S*", maps)}
    assert len(loaded) == 1, loaded
    q = torch.randn(2, 4, 3, 16, requires_grad=True)
    prefix, block = torch.randn(2, 2, 40, 16), torch.randn(2, 2, 3, 16)
    keys = torch.cat([prefix[:, :, :25], block], 2)
    grads = []
    for out in (ops.split_attention(q, prefix, -prefix, block, -block, ext_len=25).out,
                torch.nn.functional.scaled_dot_product_attention(q, keys, -keys, enable_gqa=True)):
        grads.append((out.detach(), *torch.autograd.grad(out.square().sum(), q)))
    errors = [(a - b).abs().max().item() for a, b in zip(*grads)]
    assert max(errors) < 1e-4, errors
    print(f"      operators of {library.name} in torch {torch.__version__}: attention and its gradient within "
          f"{max(errors):.1e}")


def main(root):
    assert not pathlib.Path(blockscope.__file__).is_relative_to(root), blockscope.__file__
    path = str(root / "tests" / "data" / "trace_schema_1.h5")
    check_package(path)
    cells = check_command(path)
    run_readme(root, path)
    operators = check_no_operators()
    assert "torch" not in sys.modules
    seconds = min(float(subprocess.run([sys.executable, "-I", "-c", SECONDS.format(path=path)],
                                       capture_output=True, text=True, check=True).stdout) for _ in range(5))
    assert seconds < 3, f"import and open took {seconds:.2f} s"
    print(f"      {cells} cells equal the command's; the README's lines run; import and open: {seconds:.3f} s "
          f"(least of 5); NumPy {np.__version__}, HDF5 {blockscope._core.hdf5_version()}; {operators} operators")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        check_operators(sys.argv[2])
    else:
        main(pathlib.Path(sys.argv[1]).resolve())
