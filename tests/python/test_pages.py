"""calibrate(), compare() and report(), against the commands of these names."""

import json
import re
import shutil
import subprocess
import sys
import xml.dom.minidom

import h5py
import numpy as np
import pytest

import blockscope
from conftest import FROZEN, command, make


@pytest.fixture
def trace(tmp_path):
    return blockscope.open(make(tmp_path / "run.h5", "--sequences", 2, "--blocks", 3, "--steps", 5,
                                "--digest", "0123456789abcdef" * 4))


def test_calibrate_writes_what_the_command_writes(trace, tmp_path):
    cases = [
        (dict(gamma=0.9), ["--gamma", 0.9]),
        (dict(saving=0.3, granularity="kv-group", tau=3), ["--saving", 0.3, "--granularity", "kv-group", "--tau", 3]),
        (dict(max_error=0.5, from_summary=True), ["--max-error", 0.5, "--from-summary"]),
        (dict(gamma=0.1, reference="kept", lse_bound=0.9, by_step="2-3,4"),
         ["--gamma", 0.1, "--reference", "kept", "--lse-bound", 0.9, "--by-step=2-3,4"]),
        (dict(gamma=0.1, reference="kept", by_step=True, provisional=True),
         ["--gamma", 0.1, "--reference", "kept", "--by-step", "--provisional"]),
    ]
    for choices, flags in cases:
        found = trace.calibrate(**choices)
        written = tmp_path / "reuse.json"
        command("calibrate", trace.path, *flags, "-o", written, "--force", "--quiet")
        assert found.text == written.read_text()
        content = json.loads(found.text)
        assert found.gamma == content["gamma"] and found.tau == content["tau"]
        np.testing.assert_array_equal(found.reuse, content["reuse"])
        heads = found.heads
        np.testing.assert_array_equal(heads.similarity.values, np.array(content["similarity"], float))
        ranges = content.get("step_ranges")
        assert heads.reuse.dims == (("step_range",) if ranges else ()) + ("layer", "head")
        assert heads["count"].dtype == np.int64 and ("lse_drift" in heads) == ("lse_bound" in choices)
        assert ranges is None or heads.step_range.values.tolist() == [first for first, _ in ranges]
        assert found.step_ranges == (ranges and [tuple(pair) for pair in ranges])
        assert found.predicted == content["predictions"]["chosen"] and repr(found)
    found.save(tmp_path / "mine.json")
    with pytest.raises(FileExistsError):
        found.save(tmp_path / "mine.json")
    found.save(tmp_path / "mine.json", force=True)
    assert (tmp_path / "mine.json").read_text() == found.text


def test_a_calibration_needs_one_choice_that_is_in_reach(trace, tmp_path):
    for choices, words in [(dict(), "exactly one"), (dict(gamma=0.5, saving=0.5), "exactly one"),
                           (dict(gamma=3.0), "gamma"), (dict(gamma=0.5, tau=0), "tau"),
                           (dict(gamma=0.5, granularity="layer"), "granularity"),
                           (dict(gamma=0.5, reference="first"), "reference"),
                           (dict(gamma=0.5, by_step="2-4,6"), "by_step: expected ranges without a gap"),
                           (dict(gamma=0.5, provisional=True), "provisional"),
                           (dict(saving=0.1, reference="kept", provisional=True), "provisional")]:
        with pytest.raises(blockscope.UsageError, match=words):
            trace.calibrate(**choices)
    unnamed = blockscope.open(make(tmp_path / "unnamed.h5"))
    with pytest.raises(blockscope.CalibrationError, match="64 hexadecimal"):
        unnamed.calibrate(gamma=0.5)
    low = blockscope.open(make(tmp_path / "low.h5", "--level", "trajectory"))
    with pytest.raises(blockscope.TraceError, match="low.h5"):
        low.calibrate(gamma=0.5)


def test_compare_finds_what_was_changed(trace, tmp_path):
    other = tmp_path / "other.h5"
    shutil.copy(trace.path, other)
    assert trace.compare(other).equal and "equal" in repr(trace.compare(other))
    with h5py.File(other, "r+") as file:
        file["/summary/external_mass"][3, 1, 2] = 0.75
        file["/steps/pass_time_ns"][0] += 1
        before = h5py.File(trace.path)["/summary/external_mass"][3, 1, 2]
    found = blockscope.compare(trace, other)
    changed = {d["path"]: d for d in found.datasets if not d["equal"]}
    assert not found.equal and changed.keys() == {"/summary/external_mass", "/steps/pass_time_ns"}
    assert changed["/summary/external_mass"]["at"] == [3, 1, 2]
    assert abs(changed["/summary/external_mass"]["largest"] - abs(0.75 - before)) < 1e-6
    assert "/summary/external_mass: 1 of" in repr(found)
    assert trace.compare(other, absolute=1.0, ignore_timing=True).equal
    with pytest.raises(blockscope.TraceNotFound):
        trace.compare(tmp_path / "none.h5")
    with pytest.raises(blockscope.UsageError):
        trace.compare(other, absolute=-1)


def test_the_report_is_that_of_the_command(trace, tmp_path):
    report = trace.report(title="A <run>", layer=1)
    page = tmp_path / "page.html"
    command("report", trace.path, "-o", page, "--title", "A <run>", "--layer", 1, "--figures", tmp_path / "figures")
    assert report.html == page.read_text()
    files = {path.stem: path.read_text() for path in (tmp_path / "figures").glob("*.svg")}
    assert {name: figure.svg for name, figure in report.figures.items()} == files
    assert len(files) > 5 and report.findings and report.title == "A <run>"
    for figure in report.figures.values():
        xml.dom.minidom.parseString(figure._repr_svg_())
        assert figure.title and re.search(r"\d", figure.caption) and figure.name in repr(figure)
    shown = report._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and "<script" not in shown and "A &lt;run&gt;" not in shown
    report.save(tmp_path / "mine.html")
    assert (tmp_path / "mine.html").read_text() == report.html
    with pytest.raises(FileExistsError):
        report.save(tmp_path / "mine.html")


def test_the_figures_of_a_result_are_those_of_the_report(trace):
    of_page = trace.report().figures
    drawn = {}
    for name, result in trace.analyze().items():
        figures = result.figures()
        for figure in figures.values():
            xml.dom.minidom.parseString(figure._repr_svg_())
        drawn.update(figures)
        if name == "query_statistics":
            assert not figures  # a table
        else:
            assert figures, name
    assert len(drawn) > 5
    drawn.pop("kept-pair")  # the report's has the metric similarity, too
    for name, figure in drawn.items():
        assert figure.svg == of_page[name].svg, name
    both = trace.analyze("similarity")
    assert (both + both).figures().keys() == both.figures().keys()
    with pytest.raises(blockscope.Error, match="axis"):
        both.by("layer").figures()


def test_a_report_that_can_not_be_made(trace, tmp_path, monkeypatch):
    with pytest.raises(blockscope.UsageError, match="layer 9"):
        trace.report(layer=9)
    with pytest.raises(blockscope.UsageError, match="head"):
        trace.report(head=-1)
    monkeypatch.setenv("BLOCKSCOPE_GNUPLOT", str(tmp_path / "none"))
    with pytest.raises(blockscope.Error, match="gnuplot"):
        trace.report()


def test_what_a_notebook_shows():
    trace = blockscope.open(FROZEN)
    shown = trace._repr_html_()
    xml.dom.minidom.parseString(shown)
    assert "complete" in shown and "trace_schema_1.h5" in shown
    assert "similarity_external" in trace.analyze("similarity")._repr_html_()


RUNTIME = ("blockscope.Model", "blockscope.policy", "blockscope.strategy", "blockscope.cache")


def test_the_lines_of_the_documents(tmp_path):
    """README.md and docs/python.md, as a person pastes them in a folder with run.h5."""
    root = FROZEN.parents[2]
    shutil.copy(FROZEN, tmp_path / "run.h5")
    for i in range(2):
        make(tmp_path / f"run.r000{i}.h5", "--seed", i)
    for document in (root / "README.md", root / "docs" / "python.md"):
        blocks = re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)
        # Lines that need torch are those of test_ops.py, test_recording_stated.py, test_runtime.py and
        # test_compare_loops.py.
        needs = ("import h5py", "import torch", *RUNTIME)
        blocks = [block for block in blocks if not any(word in block for word in needs)]
        scripts = [block for block in blocks if "__main__" in block]
        pasted = "\n".join(block for block in blocks if block not in scripts)
        assert pasted, document
        for script in (pasted, *scripts):
            file = tmp_path / "lines.py"
            file.write_text(script)
            subprocess.run([sys.executable, file], check=True, cwd=tmp_path)
