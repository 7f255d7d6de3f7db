"""Trace.view(): a live viewer in a frame, judged by what the server answers, and a picture, judged by the command's."""

import gc
import os
import pathlib
import subprocess
import time
import urllib.error
import urllib.request

import pytest

import blockscope
from conftest import FROZEN

BINARY = pathlib.Path(os.environ["BLOCKSCOPE_BINARY"])

pytestmark = pytest.mark.skipif(
    subprocess.run([BINARY, "view", "--help"], capture_output=True).returncode != 0, reason="no viewer in this build")


@pytest.fixture(autouse=True)
def command_on_path(monkeypatch):
    monkeypatch.setenv("PATH", f"{BINARY.parent}:{os.environ['PATH']}")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)


def page(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def gone(url):
    for _ in range(50):
        try:
            page(url)
        except (urllib.error.URLError, ConnectionError):
            return True
        time.sleep(0.1)
    return False


def test_a_cell_shows_the_live_viewer():
    trace = blockscope.open(FROZEN)
    with_link = trace.view(select="layer=4,step=2", panel="heads", height=500)
    shown = with_link._repr_html_()
    assert f'src="{with_link.url.replace("&", "&amp;")}"' in shown and "height:500px" in shown
    assert with_link.url.endswith("#layer=4&step=2") and "layer=4&amp;step=2" in shown
    assert "<title>Blockscope</title>" in page(with_link.url)
    other = trace.view()
    assert other.url != with_link.url
    with_link.close()
    assert gone(with_link.url) and "closed" in repr(with_link)
    with_link.close()
    address = other.url
    assert "<title>Blockscope</title>" in page(address)
    del other
    gc.collect()
    assert gone(address), "a viewer that nothing refers to goes on"


def test_a_picture_is_the_commands(tmp_path):
    trace = blockscope.open(FROZEN)
    picture = trace.view(static=True, select="layer=4,head=1", panel="heads", width=640, height=480, light=True)
    expected = tmp_path / "expected.png"
    subprocess.run([BINARY, "view", FROZEN, "--select", "layer=4,head=1", "--panel", "heads", "--width", "640",
                    "--height", "480", "--light", "--screenshot", expected], check=True, capture_output=True)
    assert picture.png == picture._repr_png_() == expected.read_bytes()
    picture.save(tmp_path / "saved.png")
    assert (tmp_path / "saved.png").read_bytes() == picture.png
    with pytest.raises(FileExistsError):
        picture.save(tmp_path / "saved.png")


def test_a_picture_survives_in_a_notebook_file():
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    cell = nbformat.v4.new_code_cell(
        f"import blockscope\nblockscope.open({str(FROZEN)!r}).view(static=True, panel='heads')")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    nbclient.NotebookClient(notebook, timeout=120).execute()
    assert len(notebook.cells[0].outputs[0]["data"]["image/png"]) > 5000


def test_what_the_command_refuses_is_an_error(monkeypatch, tmp_path):
    trace = blockscope.open(FROZEN)
    with pytest.raises(blockscope.Error, match="trajectory, attention, heads"):
        trace.view(static=True, panel="pancake")
    with pytest.raises(blockscope.Error, match="layer 99"):
        trace.view(static=True, select="layer=99")
    with pytest.raises(blockscope.Error, match="trajectory, attention, heads"):
        trace.view(panel="pancake")
    with pytest.raises(blockscope.Error, match="nonsense"):
        trace.view(nonsense=3)
    with pytest.raises(blockscope.UsageError, match="width"):
        trace.view(static=True, width=3)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(blockscope.Error, match="pip install"):
        trace.view()
