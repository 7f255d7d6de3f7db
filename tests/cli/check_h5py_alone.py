"""Runs the h5py block of docs/recipes/h5py_alone.md against a trace of the shipped model: a reader must be
able to paste it. Usage: check_h5py_alone.py BLOCKSCOPE REPOSITORY"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile


def main() -> None:
    blockscope, root = sys.argv[1], pathlib.Path(sys.argv[2])
    page = root / "docs" / "recipes" / "h5py_alone.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) == 1, f"expected one Python block in {page.name}, got {len(blocks)}"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        subprocess.run(
            [blockscope, "capture", root / "models/needle", "--prompts",
             root / "models/needle/demo.jsonl", "--limit", "2", "--record", "outputs", "-q", "-o",
             "run.h5"], check=True)
        names: dict = {}
        exec(compile(blocks[0], page.name, "exec"), names)  # noqa: S102

        import numpy as np

        # The page's own cosine must be what the recorder measured while it ran.
        recorded = names["similarity"][names["later"][0]]
        assert np.allclose(names["cosine"].mean(-1), recorded, atol=2e-3), f"{page.name}: cosine differs"

        import xarray

        attention = xarray.open_dataset("run.h5", group="attention", engine="h5netcdf",
                                        phony_dims="sort")
        assert attention["external"].dims == ("row", "layer", "head", "block_position", "channel"), (
            attention["external"].dims)
    print(f"the Python block of {page.name} works")


if __name__ == "__main__":
    main()
