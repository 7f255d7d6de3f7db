"""Executes the notebooks of docs/notebooks, each in a kernel of its own and in an empty folder that lies in a clone as
docs/notebooks does. As a program it keeps the outputs:

    export BLOCKSCOPE_BINARY=build/release/bin/blockscope PYTHONPATH=build/release/python:TOOLS
    python tests/python/notebooks.py [NAME...]

with TOOLS the folder of python/requirements.txt's packages (python-tools-* in the third-party cache). Keeping needs
`pip install scour==0.38.2` too, which takes out of a drawing what draws nothing."""

import os
import pathlib
import re
import sys
import tempfile

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

ROOT = pathlib.Path(__file__).parents[2]
BOOKS = ROOT / "docs" / "notebooks"
PICTURES = ("image/svg+xml", "image/png")


class ThisPython(KernelSpecManager):
    """Whatever kernels the machine knows, the notebooks run in the Python of the tests."""

    def get_kernel_spec(self, kernel_name):
        launch = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=ERROR"]
        return KernelSpec(argv=launch, display_name="Python 3", language="python")


class Client(NotebookClient):
    """Keeps the kernel's messages: outputs that were changed don't show in the notebook."""

    def process_message(self, msg, cell, cell_index):
        self.messages = [*getattr(self, "messages", []), msg]
        return super().process_message(msg, cell, cell_index)


def execute(notebook, folder):
    """Executes it in `folder` and returns the kernel's messages. An error in a cell is an error here."""
    # One thread: sums in one order, and no idle threads that spin during other tests.
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm's wish for a package that none of them needs
    with tempfile.TemporaryDirectory(prefix="blockscope-") as home:  # nothing is left in the person's own
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            os.environ[name] = home
        manager = AsyncKernelManager(kernel_spec_manager=ThisPython())
        client = Client(notebook, km=manager, timeout=600, record_timing=False,
                        resources={"metadata": {"path": str(folder)}})
        client.execute()
    return client.messages


def clone_in(folder):
    """What the notebooks need of a clone with a build, as links; returns its docs/notebooks."""
    books = pathlib.Path(folder) / "docs" / "notebooks"
    binaries = pathlib.Path(folder) / "build" / "release" / "bin"
    books.mkdir(parents=True)
    binaries.mkdir(parents=True)
    (pathlib.Path(folder) / "models").symlink_to(ROOT / "models")
    (binaries / "blockscope").symlink_to(pathlib.Path(os.environ["BLOCKSCOPE_BINARY"]).resolve())
    return books


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(cell):
    """What a cell says: its streams, and the plain text of what it shows."""
    said = [output["text"] if output.output_type == "stream" else output["data"].get("text/plain", "")
            for output in cell.outputs]
    return "".join(said)


def same_text(kept, fresh):
    """Words and whole numbers alike; what has a decimal point within one of the last of two places, or 2 %."""
    decimal = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
    pairs = zip(decimal.findall(kept), decimal.findall(fresh))
    return decimal.sub("#", kept) == decimal.sub("#", fresh) and all(
        abs(float(a) - float(b)) <= max(0.0101, 0.02 * abs(float(a))) for a, b in pairs)


def lean(svg):
    """The same drawing in half the bytes, on one line."""
    from scour import scour  # here, as the tests only compare and don't need it
    options = scour.parse_args(["--set-precision=5", "--enable-id-stripping", "--shorten-ids", "--create-groups",
                                "--indent=none", "--no-line-breaks", "--quiet"])
    return scour.scourString(svg, options)


def keep(path):
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="blockscope-") as folder:
        execute(notebook, clone_in(folder))
    # Nothing of the machine stays: neither the version of its Python nor what a kernel adds to cells.
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", []):
            if "image/svg+xml" in output.get("data", {}):
                output["data"]["image/svg+xml"] = lean(output["data"]["image/svg+xml"])
    nbformat.validate(notebook)
    path.write_text(nbformat.writes(notebook, indent=1) + "\n", encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {len(notebook.cells)} cells, {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    for book in sorted(BOOKS.glob("*.ipynb")):
        if len(sys.argv) == 1 or book.stem in sys.argv[1:]:
            keep(book)
