"""The notebooks of docs/notebooks run from a clean kernel and say what they say in the repository; and the bar of a
long pass in a real kernel."""

import copy
import re
import subprocess
import xml.dom.minidom

import pytest

pytest.importorskip("nbclient", reason="the tests' Python has no nbclient (scripts/setup.sh --tests)")
pytest.importorskip("ipykernel", reason="the tests' Python has no ipykernel (scripts/setup.sh --tests)")

import nbformat  # noqa: E402

import notebooks  # noqa: E402
from conftest import BINARY, make  # noqa: E402

BOOKS = sorted(notebooks.BOOKS.glob("*.ipynb"))


def test_there_are_the_three():
    assert [book.stem for book in BOOKS] == ["calibration", "first_trace", "own_model"]


def check_picture(cell):
    """The cell's output is one drawing, and it draws something."""
    output, = cell.outputs
    kind, = (kind for kind in notebooks.PICTURES if kind in output["data"])
    assert kind == "image/svg+xml"
    drawing = xml.dom.minidom.parseString(output["data"][kind])
    shapes = [element for name in ("path", "use", "rect", "polygon") for element in drawing.getElementsByTagName(name)]
    assert len(shapes) > 20 and drawing.getElementsByTagName("text")


def command_without_model(folder):
    """What `blockscope capture` says, which is about the model where there is a runtime."""
    capture = [BINARY, "capture", folder / "none", "--prompt", "x", "-o", folder / "none.h5"]
    return subprocess.run(capture, capture_output=True, text=True).stderr


@pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.stem)
def test_a_notebook_runs_and_says_what_was_kept(book, tmp_path):
    if book.stem == "own_model":
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    elif "BLOCKSCOPE_PROBE" in command_without_model(tmp_path):
        pytest.skip("this build has no runtime to capture with")
    kept = nbformat.read(book, as_version=4)
    fresh = copy.deepcopy(kept)
    for cell in notebooks.code_cells(fresh):
        cell.outputs, cell.execution_count = [], None
    notebooks.execute(fresh, notebooks.clone_in(tmp_path))
    pairs = list(zip(notebooks.code_cells(kept), notebooks.code_cells(fresh)))
    for before, after in pairs:
        assert notebooks.same_text(notebooks.texts(before), notebooks.texts(after)), (
            f"{before.source}\nkept:\n{notebooks.texts(before)}\nnow:\n{notebooks.texts(after)}\n"
            "HINT: tests/python/notebooks.py keeps new outputs")
        assert all(output.get("name") != "stderr" for output in after.outputs)
    assert "".join(notebooks.texts(cell) for cell, _ in pairs[:-1]).strip()
    for cell in pairs[-1]:
        check_picture(cell)


@pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.stem)
def test_what_is_kept_is_small_and_of_no_machine(book):
    notebook = nbformat.read(book, as_version=4)
    nbformat.validate(notebook)
    assert len(notebook.cells) < 10 and notebook.cells[0].source.startswith("# ")
    assert notebook.cells[-1].cell_type == "code" and book.stat().st_size < 60_000
    assert [cell.execution_count for cell in notebooks.code_cells(notebook)] == list(
        range(1, len(notebooks.code_cells(notebook)) + 1))
    for cell in notebooks.code_cells(notebook):
        for output in cell.outputs:
            assert output.output_type != "error" and output.get("name") != "stderr"
            for shown in [output.get("text", ""), *output.get("data", {}).values()]:
                assert not re.search(r"/(root|home|tmp|work|usr|var|Users)\b|0x[0-9a-f]{6}", shown), shown[:200]
    assert all(len(line) <= 120 for cell in notebook.cells for line in cell.source.splitlines())


def test_numbers_may_move_and_words_may_not():
    same = notebooks.same_text
    assert same("layer 3 0.98", "layer 3 0.97") and same("a 120.4 b", "a 121.0 b")
    assert not same("layer 3 0.98", "layer 4 0.98") and not same("0.98", "0.93") and not same("x 1.0", "y 1.0")
    assert not same("1.5 2.5", "1.5") and not same("-0.5", "0.5")


LONG = """import blockscope
found = blockscope.analyze({path!r}, "similarity", threads=1)
print(sorted(found.dims))"""
STOPPED = """from blockscope import _progress

show = _progress._Notebook.show


def show_and_stop(bar, share, words):
    show(bar, share, words)
    raise KeyboardInterrupt


_progress._Notebook.show = show_and_stop
try:
    blockscope.analyze({path!r}, "similarity", threads=1)
except KeyboardInterrupt:
    print("stopped")"""


def test_the_bar_of_a_long_pass_in_a_kernel(tmp_path):
    path = make(tmp_path / "long.h5", "--vast", "--vast-sequences", 1, "--real-rows", 1)  # 5 GB, most of it holes
    cells = [nbformat.v4.new_code_cell(code.format(path=str(path))) for code in (LONG, STOPPED)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    messages = notebooks.execute(notebook, tmp_path)
    bars = {}
    for message in messages:
        if message["msg_type"] in ("display_data", "update_display_data"):
            bars.setdefault(message["content"]["transient"]["display_id"], []).append(message)
    assert len(bars) == 2  # one output for each cell, drawn over
    for bar in bars.values():
        shares = [re.fullmatch(r'<progress value="([\d.]+)" max="1"></progress> \d+ of 192 rows.*',
                               message["content"]["data"]["text/html"]) for message in bar[:-1]]
        assert shares and all(shares), [message["content"] for message in bar]
        done = [float(share[1]) for share in shares]
        assert done == sorted(done) and done[-1] <= 1
        assert [message["msg_type"] for message in bar] == ["display_data"] + ["update_display_data"] * len(shares)
    first, second = bars.values()
    assert len(first) > 2 and len(second) == 2
    # The stored output of a bar is empty, and the cell's output is below it.
    for cell, words in zip(notebook.cells, ("['head', ", "stopped")):
        kept, said = cell.outputs
        assert kept["data"] == {"text/html": "", "text/plain": ""} and said["text"].startswith(words)
