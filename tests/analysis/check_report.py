"""Judges `blockscope report`: the page with html.parser, its drawings as XML, its numbers with h5py
and numpy alone: check_report.py MAKE_TRACE."""

import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

import h5py
import numpy as np
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


def cosine(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))


def denoising_pairs(file):
    """(row, next row) of adjacent recorded denoising steps of one block."""
    steps = {name: file["steps"][name][()] for name in
             ("sequence", "kind", "block", "step", "recorded", "context_length")}
    aborted = file["sequences/aborted"][()]
    last = {}
    for row in range(int(file["steps/committed"][0])):
        if steps["kind"][row] != 1 or aborted[steps["sequence"][row]]:
            continue
        key = steps["sequence"][row], steps["block"][row]
        before = last.get(key)
        if (before is not None and steps["recorded"][before] and steps["recorded"][row]
                and steps["step"][row] == steps["step"][before] + 1):
            yield before, row, steps["context_length"][row]
        last[key] = row


def head_means(file):
    """{(layer, head): (mean A_in, mean A_out, terms of A_out)} from the arrays."""
    sums = {}
    layers, heads = file["layer"][()], file["head"][()]
    for before, row, prefix in denoising_pairs(file):
        valid = (file["steps/valid"][before] & file["steps/valid"][row]).astype(bool)
        for slot, layer in enumerate(layers):
            of = [cosine(file[f"attention/{name}"][before, slot], file[f"attention/{name}"][row, slot])
                  for name in ("internal", "external")]
            for place, head in enumerate(heads):
                total = sums.setdefault((int(layer), int(head)), [0.0, 0.0, 0, 0])
                total[0] += of[0][place][valid].sum()
                total[2] += valid.sum()
                if prefix > 0:
                    total[1] += of[1][place][valid].sum()
                    total[3] += valid.sum()
    return {key: (t[0] / t[2], t[1] / t[3] if t[3] else np.nan, t[3]) for key, t in sums.items()}


def number(text):
    return np.nan if text == "\u2013" else float(text.replace(",", ""))


def check_head_numbers(page, file):
    rows = page.figures["head-similarity"]["rows"]
    assert rows[0] == ["layer", "head", "A_in", "A_out", "terms"]
    expected = head_means(file)
    assert len(rows) - 1 == len(expected)
    for layer, head, internal, external, terms in rows[1:]:
        truth = expected[int(layer), int(head)]
        # Four decimals are shown.
        assert abs(number(internal) - truth[0]) < 6e-5, (layer, head, internal, truth)
        assert number(terms) == truth[2], (layer, head, terms, truth)
        if truth[2]:
            assert abs(number(external) - truth[1]) < 6e-5, (layer, head, external, truth)


def external_mass(file):
    total = terms = 0
    kind, recorded = file["steps/kind"][()], file["steps/recorded"][()]
    for row in range(int(file["steps/committed"][0])):
        if kind[row] != 1 or not recorded[row] or file["steps/context_length"][row] == 0:
            continue
        valid = file["steps/valid"][row].astype(bool)
        out = file["attention/lse_external"][row][..., valid].astype(np.float64)
        inside = file["attention/lse_internal"][row][..., valid].astype(np.float64)
        total += (1.0 / (1.0 + np.exp(inside - out))).sum()
        terms += out.size
    return total / terms, terms


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
    with h5py.File(trace) as file:
        check_head_numbers(page, file)
        mass, terms = external_mass(file)
        rows = page.figures["external-mass"]["rows"][1:]
        shown = sum(number(r[2]) * number(r[3]) for r in rows) / sum(number(r[3]) for r in rows)
        assert abs(shown - mass) < 6e-5 and sum(number(r[3]) for r in rows) == terms
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
