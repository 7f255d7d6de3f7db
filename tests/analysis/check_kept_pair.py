"""/summary/kept_pair of captures, and the metric `kept_pair`, against float64 numpy over the arrays of the same trace: strategies
that decide one or several tokens a step or take them back, batches, both counts, both models, with and without a
policy. The kept pair, its age and the kinds of rows follow from docs/trace_format.md.
Usage: check_kept_pair.py MAKE_TRACE"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cli"))

import attention_math as am  # noqa: E402
import reuse_oracle  # noqa: E402
from capture_harness import MODELS, require_binary, run  # noqa: E402

MASKS, KNOWN, DECIDED = range(3)
SUMS = 5  # rows, cosine, change of L_out, e^2, reference^2
TAUS = (2, 3, 4, np.inf)
CASES = [("needle", ()),
         ("needle", ("--strategy", "threshold,threshold=0.6", "--batch-size", "3")),
         ("needle", ("--strategy", "low_confidence_dynamic", "--policy", "flashblock,tau=3", "--shadow")),
         ("needle", ("--temperature", "1.5", "--strategy", "klass", "--batch-size", "2")),
         ("needle", ("--steps", "1,2,4,5,6,9,10", "--layers", "1,4", "--heads", "0,3")),
         ("needle-bidirectional", ("--block-length", "8", "--strategy", "wino,threshold=0.3")),
         ("needle-bidirectional", ("--block-length", "8", "--cache", "prefix"))]
MADE = ["--unequal --interleaved --sequences 3 --steps 6 --blocks 3",
        "--layers 1 --heads 1 --kv-heads 1 --head-dim 1 --block-length 1 --steps 3 --set-size 1",
        "--steps 7 --blocks 4 --record-steps 1,2,4,5,6 --record-layers 0,2 --record-heads 1,3",
        "--prompt 0 --invalid 1 --steps 6 --head-dim 19 --array-type f32",
        "--nan 0.1 --inf 0.05 --zero 0.1 --steps 8",
        "--policy flashblock --tau 3 --shadow --steps 8"]


def cosine(a, b):
    """0 for a vector without a direction."""
    squares = (a * a).sum(-1) * (b * b).sum(-1)
    return np.where(squares == 0.0, 0.0, (a * b).sum(-1) / np.sqrt(squares))


class Trace(reuse_oracle.Trace):
    def inputs(self):
        """{row: the block's input [B]} from the trajectory: -1 in the prompt."""
        frames, mask = self.file["/frames"], int(self.file["/model"].attrs["mask_token_id"])
        ends = self.file["/frames/delta_end"][:]
        starts, lengths = self.file["/steps/block_start"][:], self.file["/sequences/prompt_length"][:]
        size, state, found = self.valid.shape[1], {}, {}
        for row in range(len(self.kind)):
            sequence = self.sequence[row]
            now = state.setdefault(sequence, np.full(int(self.file["/sequences/gen_length"][sequence]), mask))
            places = starts[row] - lengths[sequence] + np.arange(size)
            inside = np.clip(places, 0, len(now) - 1)
            found[row] = np.where(places < 0, -1, np.where(places < len(now), now[inside], mask))
            part = slice(int(ends[row - 1]) if row else 0, int(ends[row]))
            now[frames["position"][part]] = frames["token"][part]
        return found, mask

    def kept(self, tau, count):
        """-> [(row, row of the kept pair or None, age, kinds [B])] of the steps that reuse."""
        (inputs, mask), result = self.inputs(), []
        for rows in self.blocks():
            since, last = None, None
            for row in rows:
                changed = np.zeros(len(inputs[row]), bool) if last is None else inputs[row] != inputs[last]
                last = row
                if not self.reuses(row, tau, count):
                    source, since = row, np.zeros(len(changed), bool)
                    continue
                since = since | changed
                kinds = np.where(inputs[row] == mask, MASKS, np.where(since, DECIDED, KNOWN))
                result.append((row, source, int(self.step[row] - self.step[source]), kinds))
        return result

    def sums(self, row, source, kinds):
        """-> [layer, head, kind, SUMS]"""
        with np.errstate(all="ignore"):
            return self._sums(row, source, kinds)

    def _sums(self, row, source, kinds):
        external, lse_external, internal, lse_internal = self.attention(row)
        old, old_lse = self.attention(source)[:2]
        true = am.merge([(external, lse_external), (internal, lse_internal)])[0]
        got = am.merge([(old, old_lse), (internal, lse_internal)])[0]
        values = np.stack([np.ones_like(lse_external), cosine(external, old), np.abs(lse_external - old_lse),
                           ((got - true) ** 2).sum(-1), (true**2).sum(-1)], -1)  # [layer, head, B, SUMS]
        there = (lse_external != -np.inf) & (old_lse != -np.inf) & self.valid[row] & self.valid[source]
        if "/cache" in self.file:  # layers may compute other rows
            there &= ~np.isnan(lse_external) & ~np.isnan(old_lse)
        values = np.where(there[..., None], values, 0.0)
        return np.stack([values[:, :, kinds == kind].sum(2) for kind in range(3)], 2)


def near(name, got, wanted, rtol, scale=None):
    """scale: of the terms, where sums of near-equal numbers are small."""
    scale = np.maximum(np.abs(wanted) if scale is None else scale, 1e-3)
    worst = np.nanmax(np.abs(got - wanted) / scale, initial=0.0)
    assert worst < rtol and (np.isnan(got) == np.isnan(wanted)).all(), (name, worst)
    return int(np.isfinite(wanted).sum())


def check_summaries(trace):
    """Every sum of the dataset; NaN where the rule reads."""
    count = 0
    stored = trace.file["/summary/kept_pair"][: len(trace.kind)]
    reused = np.zeros(stored.shape[:2], bool)
    seen = np.zeros(3)
    for t, tau in enumerate(TAUS):
        for row, source, _, kinds in trace.kept(tau, "since_read"):
            if not trace.recorded[row] or trace.N[row] == 0:
                continue
            reused[row, t] = True
            assert np.isfinite(stored[row, t]).all()
            if trace.recorded[source]:
                wanted = trace.sums(row, source, kinds)
                scale = np.maximum(wanted, wanted[..., [0, 0, 0, 4, 4]])
                count += near("/summary/kept_pair", stored[row, t], wanted, 3e-6, scale)
                seen += wanted[..., 0].sum((0, 1))
    assert np.isnan(stored[~reused]).all()
    # All rows together are those of the reuse error.
    errors = trace.file["/summary/reuse_error"][: len(trace.kind)]
    near("sum e^2", stored[reused][..., 3].sum(-1), errors[reused][..., 0], 1e-6, errors[reused][..., 2])
    near("sum ref^2", stored[reused][..., 4].sum(-1), errors[reused][..., 2], 1e-5)
    return count, seen


def means_of(sums):
    """[..., SUMS] -> similarity, change of L_out, relative L2; rows."""
    with np.errstate(all="ignore"):
        return (sums[..., 1] / sums[..., 0], sums[..., 2] / sums[..., 0], np.sqrt(sums[..., 3] / sums[..., 4])), \
            sums[..., 0]


def check_metric(trace, path, count, from_summary):
    taus = [1, 2, 3, 4, 7, np.inf]
    flags = ["--count", count] + (["--from-summary"] if from_summary else [])
    code, out, err = run("analyze", path, "--metric", "kept_pair", "--taus", "1,2,3,4,7,inf", "--json", "-", "--quiet", *flags)
    assert code == 0, err
    result = json.loads(out)["metrics"][0]
    arrays = {array["name"]: array for array in result["arrays"]}
    known = {2, 3, 4, np.inf} if count == "since_read" else set()
    hidden, cells = dict.fromkeys(taus, 0), []
    for t, tau in enumerate(taus):
        for row, source, age, kinds in trace.kept(tau, count):
            if not trace.recorded[row] or trace.N[row] == 0:
                continue
            if from_summary:
                if tau in known:
                    cells.append((t, trace.step[row], age, trace.file["/summary/kept_pair"][row][TAUS.index(tau)]))
            elif trace.recorded[source]:
                cells.append((t, trace.step[row], age, trace.sums(row, source, kinds)))
            else:
                hidden[tau] += 1
    total = 0
    shape = len(taus), 4, len(trace.layers), len(trace.heads)
    for suffix, axis in (("", "step"), ("_age", "age"), ("_head", None), ("_layer", None), ("_rows", None)):
        size = len(arrays["lse_change" + suffix]["axes"][-1]["index"]) if axis else 1
        wanted = np.zeros((*shape, size, SUMS))
        for t, step, age, sums in cells:
            at = {"step": step - 1, "age": age - 1, None: 0}[axis]
            finite = np.isfinite(sums).all(-1, keepdims=True)  # others are left out, and counted
            by_rows = np.moveaxis(np.where(finite, sums, 0.0), 2, 0)  # kind first
            wanted[t, 1:, :, :, at] += by_rows
            wanted[t, 0, :, :, at] += by_rows.sum(0)
        if suffix in ("_layer", "_age"):
            wanted = wanted.sum(3)
        if suffix == "_rows":
            wanted = wanted.sum((2, 3))
        means, rows = means_of(wanted)
        for name, mean in zip(("similarity_kept", "lse_change", "kept_error"), means):
            array = arrays[name + suffix]
            got = np.array([np.nan if v in ("nan", None) else v for v in array["values"]], float).reshape(mean.shape)
            total += near(name + suffix, got, np.where(rows > 0, mean, np.nan), 3e-5)
            assert (np.array(array.get("terms") or []).reshape(rows.shape) == rows).all(), name
    for tau, number in hidden.items():
        name = f"steps whose source for tau {tau} is hidden by a gap"
        assert result["left_out"].get(name, 0) == number, (name, number, result["left_out"])
    return total


def check_made(folder, make_trace):
    """Traces of odd shapes with values that are NaN, infinite or zero."""
    for i, flags in enumerate(MADE):
        path = folder / f"made{i}.h5"
        subprocess.run([make_trace, path, *flags.split()], check=True)
        count = sum(check_metric(Trace(path), path, rule, False) for rule in ("since_read", "step"))
        print(f"{count:6} values of the metric: {flags}", flush=True)


def check_old(folder, path):
    """A trace from before /summary/kept_pair: the arrays give the same, and summaries an error that says what to do."""
    import h5py
    old = folder / "old.h5"
    old.write_bytes(path.read_bytes())
    with h5py.File(old, "r+") as file:
        del file["/summary/kept_pair"]
        del file["/row_kind"]
        del file["/kept_sum"]
        del file.attrs["has_kept_pair"]
    arrays = ("analyze", "--metric", "kept_pair", "--json", "-", "--quiet")
    (code, new, err), (old_code, from_old, old_err) = run(*arrays, path), run(*arrays, old)
    assert code == old_code == 0, err + old_err
    assert json.loads(new)["metrics"][0]["arrays"] == json.loads(from_old)["metrics"][0]["arrays"]
    code, _, err = run(*arrays, old, "--from-summary")
    assert code != 0 and "/summary/kept_pair" in err and "HINT" in err, err


def main():
    require_binary()
    with tempfile.TemporaryDirectory(prefix="blockscope-kept-") as name:
        folder, seen = pathlib.Path(name), np.zeros(3)
        for i, (model, flags) in enumerate(CASES):
            path = folder / f"{i}.h5"
            code, _, err = run("capture", MODELS / model, "--prompts", MODELS / "needle" / "demo.jsonl", "--limit", "4",
                               "--gen-length", "40", "--record", "outputs", "--array-type", "f32", "-q", "-o", path,
                               *flags)
            assert code == 0, err
            trace = Trace(path)
            count, kinds = check_summaries(trace)
            seen += kinds
            values = sum(check_metric(trace, path, rule, from_summary)
                         for rule in ("since_read", "step") for from_summary in (False, True))
            assert count > 0 and values > 0, flags
            print(f"{count:7} sums, {values:6} values of the metric, rows {kinds}: {model} {' '.join(flags)}", flush=True)
        assert (seen > 0).all(), seen
        check_old(folder, folder / "0.h5")
        check_made(folder, sys.argv[1])


if __name__ == "__main__":
    main()
