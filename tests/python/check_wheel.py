"""Tests an installed wheel with nothing but what it depends on: check_wheel.py REPOSITORY [SITE_PACKAGES]

Reads the frozen trace of the tests, runs the README's lines, and compares the package with the command that came with
it. The command makes a report, a calibration and, under xvfb-run, a picture of its window. With a folder that holds
torch: records a model without the library of the operators, and nothing else."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import blockscope
import numpy as np

SECONDS = ("import time; begin = time.perf_counter(); import blockscope; t = blockscope.open({path!r}); "
           "print(time.perf_counter() - begin)")


BINARY = pathlib.Path(sys.prefix) / "bin" / "blockscope"


def run(*arguments):
    done = subprocess.run([BINARY, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_analysis(path):
    """Cells of `analyze` that are the package's."""
    assert run("--version").split()[1] == blockscope.__version__
    assert f"trace            {path}" in run("info", path)
    out = run("analyze", path, "--json", "-")
    found, cells = blockscope.analyze(path, progress=False), 0
    for metric in json.loads(out)["metrics"]:
        for array in metric["arrays"]:
            want = np.array([np.nan if v is None else v for v in array["values"]], float)
            got = found[metric["metric"]][array["name"]].values.ravel()
            np.testing.assert_array_equal(np.where(np.isfinite(got), got, np.nan), want)
            cells += want.size
    assert cells > 100
    return cells


def check_capture():
    """The wheel has no runtime: one line says how to get one."""
    for command in ("capture", "verify"):
        done = subprocess.run([BINARY, command, "x", "-o", "y.h5"], capture_output=True, text=True)
        assert done.returncode == 1 and not done.stdout and done.stderr.count("\n") == 1, done
        assert "lacks the runtime" in done.stderr and "HINT: pip install ." in done.stderr, done.stderr


def check_outputs(path, folder):
    """What was made: report, calibration and a picture of the viewer."""
    page, reuse, picture = folder / "report.html", folder / "reuse.json", folder / "view.png"
    if made_figures := shutil.which("gnuplot") is not None:
        run("report", path, "-o", page)
        assert page.read_text().count("<svg") > 3
    run("calibrate", path, "--max-error", "0.3", "--tau", "2", "-o", reuse)
    assert json.loads(reuse.read_text())
    run("view", path, "--screenshot", picture)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 20000
    return f"{'report' if made_figures else 'no report, as there is no gnuplot'}, calibration, picture"


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
    """The error of a Python without torch says what is missing."""
    assert not list(pathlib.Path(blockscope.__file__).parent.glob("lib/libblockscope_kernels*"))
    try:
        blockscope.ops
    except blockscope.OperatorsUnavailable as error:
        assert "expected" in str(error) and "HINT: " in str(error), error
    else:
        raise AssertionError("operators without torch")


def check_recording(root, site_packages):
    sys.path += [site_packages, str(root / "tests" / "python")]
    import recorded_models as models
    import torch
    from blockscope.recording import kernels

    assert not kernels.loaded()
    model = models.PlainModel("needle")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "own.h5")
        prompt = [5 * i % 90 for i in range(40)]
        plain = models.decode_blocks(model, prompt, 24, 8)
        with blockscope.record(model, path, block_length=8, mask_token_id=model.config.mask_token_id):
            assert torch.equal(models.decode_blocks(model, prompt, 24, 8), plain)
        trace = blockscope.open(path)
        assert trace.complete and trace.num_sequences == 1 and trace.num_rows > 6, trace
        similarity = blockscope.analyze(path, "similarity", progress=False).by("layer")
        assert 0.5 < float(similarity.similarity_external.mean()) <= 1.0
        print(f"      recorded {trace.num_rows} steps with the operators of torch {torch.__version__}")


def main(root):
    assert not pathlib.Path(blockscope.__file__).is_relative_to(root), blockscope.__file__
    path = str(root / "tests" / "data" / "trace_schema_1.h5")
    check_package(path)
    cells = check_analysis(path)
    check_capture()
    run_readme(root, path)
    check_no_operators()
    with tempfile.TemporaryDirectory() as folder:
        made = check_outputs(path, pathlib.Path(folder))
    assert "torch" not in sys.modules
    seconds = min(float(subprocess.run([sys.executable, "-I", "-c", SECONDS.format(path=path)],
                                       capture_output=True, text=True, check=True).stdout) for _ in range(5))
    assert seconds < 3, f"import and open took {seconds:.2f} s"
    print(f"      {cells} cells equal the command's; the README's lines run; import and open: {seconds:.3f} s "
          f"(least of 5); {made}; NumPy {np.__version__}, HDF5 {blockscope._core.hdf5_version()}")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        check_recording(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2])
    else:
        main(pathlib.Path(sys.argv[1]).resolve())
