"""analyze(): every number against `blockscope analyze --json`, bit for bit, and against NumPy."""

import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import xarray as xr

import blockscope
from conftest import FROZEN, analyze_json, check_equal, command, make

# What these metrics are about is in no trace of MAKE_TRACE.
ABSENT = ("selection", "router", "cache", "draft", "entropy", "distance", "regions", "heads")


def check_all(found, root):
    assert list(found) == [metric["metric"] for metric in root["metrics"]]
    for metric in root["metrics"]:
        check_equal(found[metric["metric"]], metric)
    assert set(found.unavailable) == {metric["metric"] for metric in root["unavailable"]}


def test_all_metrics_equal_the_command(odd):
    check_all(blockscope.open(odd).analyze(), analyze_json(odd))


def test_every_metric_by_name_equals_the_command(plain):
    from_list = [line.split()[0] for line in command("analyze", "--list").splitlines()[1:]]
    assert list(blockscope.metrics()) == from_list
    for name in from_list:
        if name in ABSENT:
            with pytest.raises(blockscope.TraceError, match="plain.h5"):
                blockscope.analyze(plain, name)
            continue
        check_equal(blockscope.analyze(plain, name), analyze_json(plain, "--metric", name)["metrics"][0])


@pytest.fixture(scope="module")
def drafted(tmp_path_factory):
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cli"))
    from drafted_trace import drafted_trace
    paths = [drafted_trace(tmp_path_factory.mktemp("drafted"), seed) for seed in range(2)]
    if None in paths:
        pytest.skip("this build can't decode")
    return paths


def test_a_drafted_trace_equals_the_command(drafted):
    check_all(blockscope.open(drafted[0]).analyze(), analyze_json(drafted[0]))
    found = blockscope.analyze(drafted[0], "draft")
    assert found.speedup.dims == ("block_length",) and float(found.speedup[0]) == 1.0
    assert {"draft-lengths", "draft-positions", "draft-reasons", "draft-speedup"} == set(found.figures())


def test_drafted_results_add_up_but_for_ratios(drafted):
    together, parts = blockscope.analyze(drafted, "draft"), [blockscope.analyze(path, "draft") for path in drafted]
    total = sum(parts)
    same(total, together)
    assert set(together.arrays()) - set(total.arrays()) == {"speedup", "length_by_sequence", "symptoms", "symptom_seen"}


def test_choices_equal_the_command(plain):
    trace = blockscope.open(plain)
    cases = [
        (dict(layers=[2, 0]), ["--layer", "0,2"]),
        (dict(layers=range(2), heads=[0, 3], steps=slice(2, 4)), ["--layer", "0-1", "--head", "0,3", "--step", "2-3"]),
        (dict(sequences=1, blocks=np.int64(0)), ["--sequence", "1", "--block", "0"]),
        (dict(from_summary=True), ["--from-summary"]),
        (dict(threads=1, memory_mib=64), ["--threads", "1"]),
    ]
    for choices, flags in cases:
        found = trace.analyze(["similarity", "external_mass", "recall"], **choices)
        check_all(found, analyze_json(plain, "--metric", "similarity,external_mass,recall", *flags))
    check_equal(trace.analyze("recall", set_sizes=[1, 3]),
                analyze_json(plain, "--metric", "recall", "--set-sizes", "1,3")["metrics"][0])
    found = trace.analyze("reuse_error", taus=[1, float("inf")])
    check_equal(found, analyze_json(plain, "--metric", "reuse_error", "--taus", "1,inf")["metrics"][0])


def test_by_is_the_mean_weighted_by_terms(plain):
    trace = blockscope.open(plain)
    for metric in ("similarity", "recall", "external_mass"):
        whole = trace.analyze(metric)
        for by in (["layer"], ["step", "layer"], ["head"], ["kv_head"]):
            arrays = [name for name in whole.arrays() if set(by) <= set(whole[name].dims)]
            if not arrays:
                with pytest.raises(blockscope.UsageError, match="axes are"):
                    trace.analyze(metric, by=by)
                with pytest.raises(blockscope.UsageError, match="axes are"):
                    whole.by(*by)
                continue
            found = trace.analyze(metric, by=by)
            assert found.arrays() == arrays
            for name in arrays:
                mean, terms = whole[name].fillna(0), whole[name + "_terms"]
                over = [dim for dim in mean.dims if dim not in (*by, "k")]
                want = (mean * terms).sum(over) / terms.sum(over)
                assert set(found[name].dims) == set(want.dims)
                xr.testing.assert_allclose(found[name].transpose(*want.dims), want, rtol=1e-12)
                xr.testing.assert_equal(found[name + "_terms"].transpose(*want.dims), terms.sum(over))
                xr.testing.assert_allclose(whole.by(*by)[name], want, rtol=1e-12)
    assert trace.analyze("similarity", by="layer").similarity_external.dims == ("layer",)


# --- adding ----------------------------------------------------------------------------------------


def same(found, together):
    for name in found.arrays():
        xr.testing.assert_allclose(found[name], together[name], rtol=1e-12)
        assert found[name].attrs == together[name].attrs
        if together.has_terms(name):
            xr.testing.assert_equal(found[name + "_terms"], together[name + "_terms"])


def test_results_of_traces_add_up(tmp_path):
    # Of unequal numbers of steps and sequences, so that neither axes nor weights are the same.
    paths = [make(tmp_path / f"{i}.h5", "--seed", 10 + i, "--sequences", i + 1, "--steps", 3 + i)
             for i in range(3)]
    traces = [blockscope.open(path) for path in paths]
    every = [name for name in blockscope.metrics() if name not in ABSENT]
    together = blockscope.analyze(paths, every)
    apart = [trace.analyze(every) for trace in traces]
    added = 0
    for name in every:
        results = [part[name] for part in apart]
        if name == "reuse_error":  # ratios of sums: only its mean adds up
            assert all(array.startswith("mean_l1") for array in sum(results).arrays())
        total = sum(results)
        same(total, together[name])
        same(results[0] + (results[2] + results[1]), together[name])
        left = set(together[name].arrays()) - set(total.arrays())
        assert set(filter(None, total.attrs.get("not added", "").split(", "))) == left
        assert {key: value for key, value in total.attrs.items() if key.startswith("left out")} == {
            key: value for key, value in together[name].attrs.items() if key.startswith("left out")}
        added += len(total.arrays())
    assert added > 25
    result = apart[0]["similarity"]
    assert isinstance(pickle.loads(pickle.dumps(result)), type(result))
    assert pickle.loads(pickle.dumps(apart[0])).unavailable == {}
    result += apart[1]["similarity"]
    same(result, apart[0]["similarity"] + apart[1]["similarity"])
    sums = result.sums()["similarity_external_sum"].sum() / result.similarity_external_terms.sum()
    assert abs(float(sums) - float(result.by().similarity_external)) < 1e-12


def test_what_does_not_belong_together_is_not_added(tmp_path, plain):
    one = blockscope.analyze(plain, "similarity")
    with pytest.raises(blockscope.UsageError, match="metric"):
        one + blockscope.analyze(plain, "recall")
    with pytest.raises(blockscope.UsageError, match="axes"):
        one + blockscope.analyze(plain, "similarity", by=["layer"])
    other = make(tmp_path / "other.h5", "--digest", "9999")
    with pytest.raises(blockscope.UsageError, match="model_digest"):
        one + blockscope.analyze(other, "similarity")
    with pytest.raises(blockscope.UsageError, match="digest"):
        blockscope.analyze([plain, other], "similarity")
    with pytest.raises(blockscope.UsageError):
        blockscope.analyze([plain, plain], "similarity")
    doubled = one * 2  # xarray's own arithmetic
    assert doubled.similarity_external_terms.sum() == 2 * one.similarity_external_terms.sum()


# --- what goes wrong -------------------------------------------------------------------------------


def test_mistakes_are_told(plain, tmp_path):
    trace = blockscope.open(plain)
    names = list(blockscope.metrics())
    with pytest.raises(blockscope.UsageError) as raised:
        trace.analyze("similarty")
    assert all(name in str(raised.value) for name in names)
    for choices, words in [
        (dict(layers=9), "layers: 9 was not recorded.*0,1,2"),
        (dict(heads=[0, 77]), "heads: 77 was not recorded"),
        (dict(steps=99), "steps: the selection matches nothing"),
        (dict(sequences=99), "the selection matches nothing"),
        (dict(blocks=[]), "blocks: expected indices"),
        (dict(steps=0), "steps: expected indices of at least 1"),
        (dict(layers="0-3"), "layers: expected an index"),
        (dict(layers=[0.5]), "layers: expected whole numbers"),
        (dict(layers=slice(None)), "both ends"),
        (dict(by=["nothing"]), "axes are"),
        (dict(by=[]), "by: expected a name"),
        (dict(threads=-1), "threads"),
        (dict(memory_mib=0), "memory_mib"),
    ]:
        with pytest.raises(blockscope.UsageError, match=words):
            trace.analyze("similarity", **choices)
    with pytest.raises(blockscope.UsageError, match="taus"):
        trace.analyze("reuse_error", taus=[0])
    with pytest.raises(blockscope.UsageError, match="no such axis"):
        trace.analyze("decoding", heads=0)
    with pytest.raises(TypeError):
        trace.analyze("similarity", layer=0)
    with pytest.raises(blockscope.TraceNotFound):
        blockscope.analyze([plain, tmp_path / "none.h5"], "similarity")
    low = make(tmp_path / "low.h5", "--level", "trajectory")
    with pytest.raises(blockscope.TraceError, match="low.h5"):
        blockscope.analyze(low, "similarity")
    everything = blockscope.analyze(low)
    assert list(everything) == ["decoding", "settling"] and "--record" in everything.unavailable["similarity"]


def test_a_trace_cut_while_it_is_open_is_told(plain):
    want = blockscope.analyze(plain, "similarity")
    trace, size = blockscope.open(plain), plain.stat().st_size
    told = 0
    for share in (0.95, 0.7, 0.5, 0.3, 0.1):
        os.truncate(plain, int(size * share))
        try:
            assert trace.analyze("similarity").equals(want)  # nothing that it needs is missing
        except blockscope.TraceError as error:
            assert "plain.h5" in str(error)
            told += 1
    assert told >= 2


@pytest.fixture(scope="module")
def vast(tmp_path_factory):
    """57 GB, a gigabyte of it on disk: a pass takes many seconds."""
    return make(tmp_path_factory.mktemp("vast") / "vast.h5", "--vast", "--real-rows", 1)


def test_progress_is_told_and_may_stop_a_pass(vast):
    seen = []

    def told(done, total):
        seen.append((done, total))
        blockscope.open(FROZEN).frame(0, 1)  # a trace may be used meanwhile
        if len(seen) == 3:
            raise KeyboardInterrupt

    ticks = []
    stop = threading.Event()

    def tick():
        while not stop.wait(0.001):
            ticks.append(time.monotonic())

    other = threading.Thread(target=tick)
    other.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        blockscope.analyze(vast, "similarity", progress=told)
    seconds = time.monotonic() - begin
    stop.set()
    other.join()
    assert len(seen) == 3 and seen[0][0] <= seen[2][0] < seen[2][1]
    assert len(ticks) > 20 * seconds, "other threads of Python stood still"
    with pytest.raises(ZeroDivisionError):
        blockscope.analyze(vast, "similarity", progress=lambda done, total: 1 / 0)
    assert blockscope.analyze(FROZEN, "similarity", progress=False) is not None


def test_control_c_ends_a_pass(vast):
    code = ("import sys, blockscope\nprint('begin', flush=True)\n"
            "try: blockscope.analyze(sys.argv[1], 'similarity')\n"
            "except KeyboardInterrupt: print('stopped', flush=True)\n"
            "print(blockscope.open(sys.argv[1]).num_rows)")
    process = subprocess.Popen([sys.executable, "-c", code, vast], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begin\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and out.split()[0] == "stopped"


def test_the_line_on_a_terminal():
    from blockscope._progress import Shown

    with Shown(True) as shown:
        shown(0, 10)  # nothing yet: what is quick shows nothing
    with Shown(None) as shown:
        assert shown is None or sys.stderr.isatty()
