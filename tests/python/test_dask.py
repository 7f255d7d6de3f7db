"""docs/examples/dask_traces.py on Dask's local cluster: results that workers computed and added, against the command's
one pass over all traces."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import blockscope
from conftest import FROZEN, command, make

distributed = pytest.importorskip("distributed", reason="the tests' Python has no Dask (scripts/setup.sh --tests)")

EXAMPLE = FROZEN.parents[2] / "docs" / "examples" / "dask_traces.py"
ARRAYS = ("similarity_external", "similarity_internal")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Ten traces, more than one task adds, of different numbers of sequences, blocks and steps: all weights differ."""
    folder = tmp_path_factory.mktemp("many")
    return [str(make(folder / f"run.r{i:04}.h5", "--seed", 20 + i, "--sequences", 1 + i % 3, "--blocks", 1 + i % 2,
                     "--steps", 2 + i % 4, "--nan", 0.1)) for i in range(10)]


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("dask_traces", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def client(example, tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None,
                                  local_directory=str(folder)) as cluster, distributed.Client(cluster) as found:
        # Workers are processes of their own, which can't import a file that no package has.
        found.upload_file(str(EXAMPLE))
        sys.modules["dask_traces"] = example
        yield found
        del sys.modules["dask_traces"]


def test_the_sum_is_one_pass_over_all(example, client, paths):
    workers = set(client.run(os.getpid).values())
    assert len(workers) == 2 and os.getpid() not in workers
    found = example.total(client, paths)
    metric, = json.loads(command("analyze", *paths, "--metric", "similarity", "--json", "-"))["metrics"]
    weights = set()
    for array in metric["arrays"]:
        name = array["name"]
        shape = array["shape"]
        want = np.array([np.nan if value is None else value for value in array["values"]]).reshape(shape)
        if array["terms"] is None:
            continue
        terms = np.array(array["terms"]).reshape(shape)
        assert np.array_equal(found[name + "_terms"].values, terms)
        np.testing.assert_allclose(found[name].values, want, rtol=1e-12, atol=0)
        weights |= set(terms.ravel().tolist())
    assert len(weights) > 3 and set(ARRAYS) <= {array["name"] for array in metric["arrays"]}
    # What a mean of means would give is something else, so the weights were there.
    plain = np.mean([example.similarity(path).by().similarity_external.item() for path in paths])
    assert abs(plain - found.by().similarity_external.item()) > 1e-4


def test_a_broken_trace_is_named(example, client, paths, tmp_path):
    with pytest.raises(blockscope.TraceNotFound, match="none.h5"):
        example.total(client, [paths[0], str(tmp_path / "none.h5")])
    broken = tmp_path / "broken.h5"
    broken.write_bytes(b"no trace")
    with pytest.raises(blockscope.NotATrace, match="broken.h5"):
        example.total(client, [paths[0], str(broken)])


def test_the_example_as_a_program(paths):
    done = subprocess.run([sys.executable, EXAMPLE, *paths], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    together = blockscope.analyze(paths, "similarity", by=["layer"], progress=False)
    printed = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in done.stdout.splitlines()
               if line.split() and line.split()[0].isdigit()}
    assert list(printed) == [str(layer) for layer in together.layer.values]
    for layer, values in printed.items():
        want = [together[name].sel(layer=int(layer)).item() for name in ARRAYS]
        np.testing.assert_allclose(values, want, atol=1e-6)
