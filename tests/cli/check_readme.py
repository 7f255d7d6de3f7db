"""Runs the README's h5py block against a trace captured with the README's model: a reader must be
able to paste it. Usage: check_readme.py BLOCKSCOPE REPOSITORY"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile


def main() -> None:
    blockscope, root = sys.argv[1], pathlib.Path(sys.argv[2])
    blocks = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    # The other one is of the Python package: tests/python/test_pages.py and check_wheel.py run it.
    blocks = [block for block in blocks if "import h5py" in block]
    assert len(blocks) == 1, f"expected one Python block with h5py in README.md, got {len(blocks)}"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        subprocess.run(
            [blockscope, "capture", root / "models/needle", "--prompts",
             root / "models/needle/demo.jsonl", "--limit", "2", "--record", "outputs", "-q", "-o",
             "run.h5"], check=True)
        names: dict = {}
        exec(compile(blocks[0], "README.md", "exec"), names)  # noqa: S102

        import numpy as np

        # The snippet's own cosine must be what the recorder measured while it ran.
        recorded = names["similarity"][names["later"][0]]
        assert np.allclose(names["cosine"].mean(-1), recorded, atol=2e-3), "README: cosine differs"

        import xarray

        attention = xarray.open_dataset("run.h5", group="attention", engine="h5netcdf",
                                        phony_dims="sort")
        assert attention["external"].dims == ("row", "layer", "head", "block_position", "channel"), (
            attention["external"].dims)
    print("the README's Python block works")


if __name__ == "__main__":
    main()
