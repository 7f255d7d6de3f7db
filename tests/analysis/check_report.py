"""Checks `blockscope report`: the page with html.parser, its drawings as XML, its numbers and heatmaps
with h5py and numpy alone: check_report.py MAKE_TRACE."""

import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

import h5py

from report_numbers import check_numbers
from report_page import Page, check_captions, check_self_contained

BLOCKSCOPE = os.environ["BLOCKSCOPE_BINARY"]
MAKE_TRACE = sys.argv[1]
FROZEN = pathlib.Path(__file__).parents[1] / "data" / "trace_schema_1.h5"


def report(*arguments, **environment):
    return subprocess.run([BLOCKSCOPE, "report", *map(str, arguments)], capture_output=True,
                          text=True, env=os.environ | environment, timeout=120)


def page_of(output, *arguments):
    done = report(*arguments, "-o", output)
    assert done.returncode == 0, done.stderr
    page = Page(output.read_text(encoding="utf-8"))
    check_self_contained(page)
    check_captions(page)
    return page


def make_trace(path, *flags):
    subprocess.run([MAKE_TRACE, str(path), *map(str, flags)], check=True)
    return path


def check_figures(folder, page):
    drawn = {name for name, figure in page.figures.items() if figure["svg"]}
    assert {p.stem for p in folder.glob("*.svg")} == drawn == {p.stem for p in folder.glob("*.pdf")}
    for name in drawn:
        root = ElementTree.parse(folder / f"{name}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.find("{http://www.w3.org/2000/svg}title").text
        assert not [e for e in root.iter() if e.tag.endswith(("script", "image"))], name
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF-")


def test_full_trace(folder):
    trace = make_trace(folder / "run.h5", "--layers", 3, "--steps", 4, "--unequal")
    page = page_of(folder / "run.html", trace, "--figures", folder / "figures",
                   "--title", "</title><script>alert('t')</script> `id` \u202Eend")
    check_figures(folder / "figures", page)
    assert "</title><script>alert('t')</script> `id` \ufffdend" in page.text
    for name in ("token-similarity", "step-similarity", "external-mass", "recall", "union-size",
                 "reuse-error", "gamma-curve", "query-stages", "settled", "decoding-steps"):
        assert name in page.figures, (name, list(page.figures))
    check_numbers(page, folder / "figures", trace)
    again = page_of(folder / "again.html", trace, "--title", "x", "--threads", 1)
    once_more = page_of(folder / "more.html", trace, "--title", "x", "--threads", 3)
    assert again.source == once_more.source


def test_levels_and_shapes(folder):
    for level, missing in (("summary", "--record outputs"), ("trajectory", "--record summary")):
        trace = make_trace(folder / f"{level}.h5", "--level", level)
        page = page_of(folder / f"{level}.html", trace)
        assert "token-similarity" not in page.figures
        assert missing in page.text, level
    shapes = {
        "tiny": ["--layers", 1, "--heads", 1, "--kv-heads", 1, "--steps", 1, "--sequences", 1,
                 "--blocks", 1],
        "one-position": ["--block-length", 1],
        "no-prefix": ["--prompt", 0, "--blocks", 1],
        "gaps": ["--record-steps", "1,3", "--record-layers", "0,2"],
        "bad-values": ["--nan", 0.2, "--inf", 0.1, "--zero", 0.1],
        "many-layers": ["--layers", 14, "--heads", 18, "--kv-heads", 2],
    }
    for name, flags in shapes.items():
        page = page_of(folder / f"{name}.html", make_trace(folder / f"{name}.h5", *flags))
        shown = [cell for figure in page.figures.values() for row in figure["rows"] for cell in row]
        assert not {"nan", "-nan", "inf", "-inf"} & {cell.lower() for cell in shown}, name
    assert "head-similarity-2" in page.figures  # 14 layers: twelve to a figure
    make_trace(folder / "cut.h5", "--partial")
    page = page_of(folder / "cut.html", folder / "cut.h5")
    assert "unfinished" in page.text
    page_of(folder / "frozen.html", FROZEN)
    two = page_of(folder / "two.html", make_trace(folder / "a.h5", "--seed", 1),
                  make_trace(folder / "b.h5", "--seed", 2))
    assert "a.h5" in two.text and "b.h5" in two.text


def test_choices(folder):
    trace = make_trace(folder / "choice.h5")
    page = page_of(folder / "choice.html", trace, "--layer", 2, "--head", 3, "--sequence", 1,
                   "--block", 1)
    caption = page.figures["token-similarity"]["caption"]
    assert "Sequence 1, block 1, layer 2, head 3" in caption, caption
    for flag, value in (("--layer", 9), ("--head", 4), ("--sequence", 7), ("--block", 5)):
        done = report(trace, "-o", folder / "never.html", flag, value)
        assert done.returncode == 2 and flag in done.stderr, (flag, done)
        assert not (folder / "never.html").exists()


def test_refusals(folder):
    trace = make_trace(folder / "again.h5")
    output = folder / "there.html"
    output.write_text("precious")
    done = report(trace, "-o", output)
    assert done.returncode == 2 and "--force" in done.stderr, done
    assert output.read_text() == "precious"
    page_of(output, trace, "--force")
    (folder / "there").mkdir()
    (folder / "there" / "head-similarity.pdf").write_text("precious")
    done = report(trace, "-o", folder / "other.html", "--figures", folder / "there")
    assert done.returncode == 2 and "head-similarity.pdf" in done.stderr, done
    assert not (folder / "other.html").exists()
    assert (folder / "there" / "head-similarity.pdf").read_text() == "precious"
    done = report(trace, "-o", folder / "none.html", BLOCKSCOPE_GNUPLOT="/nowhere/gnuplot")
    assert done.returncode == 1 and "gnuplot-nox" in done.stderr, done
    done = report(folder / "none.h5", "-o", folder / "none.html")
    assert done.returncode == 1 and "none.h5" in done.stderr, done
    done = report(__file__, "-o", folder / "none.html")
    assert done.returncode == 1, done
    bare = make_trace(folder / "bare.h5")
    with h5py.File(bare, "r+") as file:
        file["/steps/committed"][0] = 0
    done = report(bare, "-o", folder / "none.html")
    assert done.returncode == 1 and "0 rows committed, no denoising step" in done.stderr, done
    flash = make_trace(folder / "flash.h5", "--policy", "flashblock")
    page = page_of(folder / "flash.html", flash)
    assert "--shadow" in page.text and "head-similarity" not in page.figures
    assert not list(folder.glob("*.tmp*")) and not (folder / "none.html").exists()


def main():
    for test in (test_full_trace, test_levels_and_shapes, test_choices, test_refusals):
        with tempfile.TemporaryDirectory() as folder:
            test(pathlib.Path(folder))
            print(f"{test.__name__}: ok", flush=True)


if __name__ == "__main__":
    main()
