"""Calibration by the kept pair and by ranges of steps in float64, with h5py and numpy alone: every
head follows its own last read (FlashBlock's released code, video/wan/modules/causal_model.py)."""

import numpy as np
from attention_math import merge
from reuse_oracle import Sums, step_sums


def range_of(starts, step):
    """The range of this step: ranges begin with the steps `starts`, the first with 1."""
    return int(np.searchsorted(starts, step, side="right")) - 1


def change(trace, row, source):
    """-> mean cosine of A_out and its positions, mean |difference of L_out| and its positions, each
    [layer, head], between two rows."""
    both = trace.valid[row] & trace.valid[source]
    (x, now), (y, old) = ((a[:, :, both], b[:, :, both]) for a, b, *_ in
                          (trace.attention(row), trace.attention(source)))
    with np.errstate(all="ignore"):
        values = ((x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1)), np.abs(now - old))
    result = []
    for value in values:
        good = np.isfinite(value)
        terms = good.sum(-1)
        with np.errstate(all="ignore"):
            result += [np.where(good, value, 0).sum(-1) / np.where(terms, terms, np.nan), terms]
    return result


def changes_of(trace, starts, reference, tau=2, count="since_read", provisional=None):
    """-> {(range, layer slot, head slot): ([(mean cosine, positions)], [(mean |dL|, positions)])}.
    reference: adjacent; kept: by tau and count, or by `provisional` = (gamma, bound or inf): a head
    keeps its pair until a step whose own cosine and change say that it recomputes."""
    found = {}
    shape = (len(trace.layers), len(trace.heads))
    for rows in trace.blocks():
        sources = np.full(shape, -1)  # row of each head's pair; -1: not known
        for i, row in enumerate(rows):
            recorded, first = trace.recorded[row], trace.step[row] == 1
            after_gap = i > 0 and not trace.recorded[rows[i - 1]]
            compared = recorded and not first and trace.N[row] > 0
            if reference == "adjacent":
                sources[:] = rows[i - 1] if i > 0 and not after_gap else -1
            elif provisional is None:
                compared = compared and trace.reuses(row, tau, count)
            elif after_gap:
                sources[:] = -1
            refreshed = np.full(shape, first)
            if compared:
                for source in set(sources[sources >= 0].tolist()):
                    cosine, terms, drift, drift_terms = change(trace, row, source)
                    here = sources == source
                    for layer, head in zip(*np.nonzero(here)):
                        at = (layer, head)
                        cell = found.setdefault((range_of(starts, trace.step[row]), *map(int, at)),
                                                ([], []))
                        if terms[at]:
                            cell[0].append((cosine[at], terms[at]))
                        if drift_terms[at]:
                            cell[1].append((drift[at], drift_terms[at]))
                    if provisional is not None:
                        with np.errstate(all="ignore"):
                            near = np.isinf(provisional[1]) | (drift <= provisional[1])
                            stays = (cosine > provisional[0]) & near
                        refreshed |= here & ~stays
            if provisional is not None:
                sources[refreshed] = row if recorded else -1
            elif reference == "kept" and not trace.reuses(row, tau, count):
                sources[:] = row if recorded else -1
    return found


def masked_errors(trace, tau, starts, masks, count="since_read"):
    """-> Sums where heads reuse, at all steps that the rule lets reuse, at the others. masks [range,
    layer of the model, head]. Each head follows its own last read."""
    where, steps, fresh = Sums(), Sums(), Sums()
    sums = {}
    for rows in trace.blocks():
        rule = None
        own = {}
        for row in rows:
            reuses = trace.reuses(row, tau, count)
            mask = masks[range_of(starts, trace.step[row])]
            if not reuses:
                rule = row if trace.recorded[row] else None
            for layer, layer_of_model in enumerate(trace.layers):
                for head, head_of_model in enumerate(trace.heads):
                    at = layer, head
                    takes = reuses and mask[layer_of_model, head_of_model]
                    if not takes:
                        own[at] = row if trace.recorded[row] else None
                    if not trace.recorded[row] or trace.N[row] == 0 or rule is None:
                        continue
                    source = own.get(at) if takes else rule
                    if source is None:
                        continue
                    if (row, source) not in sums:
                        sums[row, source] = step_sums(trace, row, source)
                    values = sums[row, source][:, layer, head]
                    if not np.isfinite(values).all():
                        continue
                    n = int(trace.valid[row].sum())
                    for into in ([where, steps] if takes else [steps] if reuses else [fresh]):
                        into.add(values, n)
    return where, steps, fresh


def row_errors(traces, tau, starts, masks, count="since_read"):
    """-> [range, kind] squared relative error of the rows of the attention output: masks, rows that
    the rule's pair knew, rows decided since. masks [range, layer, head]: the heads that reuse."""
    squared, reference = np.zeros((2, len(starts), 3))
    for trace in traces:
        mask_id = int(trace.file["/model"].attrs["mask_token_id"])
        prompts, ends = trace.file["/sequences/prompt_length"][:], trace.file["/frames/delta_end"][:]
        positions, tokens = (trace.file[f"/frames/{name}"][:] for name in ("position", "token"))
        block_start = trace.file["/steps/block_start"][:]
        for rows in trace.blocks():
            origin = int(block_start[rows[0]]) - int(prompts[trace.sequence[rows[0]]])
            absolute = origin + np.arange(trace.valid.shape[1])
            state = np.where(absolute < 0, -1, mask_id)  # the block's input
            source = at_source = None
            for row in rows:
                reuses = trace.reuses(row, tau, count)
                if not reuses:
                    source, at_source = (row if trace.recorded[row] else None), state.copy()
                elif source is not None and trace.recorded[row] and trace.N[row] > 0:
                    kinds = np.where(state == mask_id, 0, np.where(state == at_source, 1, 2))
                    add_rows(trace, row, source, kinds, masks[range_of(starts, trace.step[row])],
                             squared[range_of(starts, trace.step[row])],
                             reference[range_of(starts, trace.step[row])])
                for i in range(int(ends[row - 1]) if row else 0, int(ends[row])):
                    if 0 <= positions[i] - origin < len(state):
                        state[positions[i] - origin] = tokens[i]
    with np.errstate(all="ignore"):
        return squared / reference


def add_rows(trace, row, source, kinds, mask, squared, reference):
    external, lse_external, internal, lse_internal = trace.attention(row)
    old = trace.attention(source)
    with np.errstate(all="ignore"):
        true, got = (merge([tuple(pair), (internal, lse_internal)])[0]
                     for pair in ((external, lse_external), old[:2]))
        error, size = ((x**2).sum(-1) for x in (got - true, true))
    reusing = mask[np.ix_(trace.layers, trace.heads)]
    for kind in range(3):
        rows = trace.valid[row] & trace.valid[source] & (kinds == kind)
        e, s = error[:, :, rows].sum(-1), size[:, :, rows].sum(-1)
        good = np.isfinite(e) & np.isfinite(s)
        squared[kind] += e[good & reusing].sum()
        reference[kind] += s[good].sum()


def masked_savings(traces, tau, starts, masks, count="since_read"):
    """-> (share of bytes, share of FLOPs, keys, keys read) with masks [range, layer, head]."""
    layers, heads, kv_heads = traces[0].shape
    whole = masks.reshape(len(masks), layers, kv_heads, -1).all(-1).sum((1, 2))
    keys = flops = spared_keys = spared_flops = 0
    for trace in traces:
        for row in (row for rows in trace.blocks() for row in rows if trace.N[row] > 0):
            n, products = int(trace.N[row]), int(trace.N[row]) * int(trace.valid[row].sum())
            keys += n * layers * kv_heads
            flops += products * layers * heads
            if trace.reuses(row, tau, count):
                at = range_of(starts, trace.step[row])
                spared_keys += n * int(whole[at])
                spared_flops += products * int(masks[at].sum())
    return spared_keys / keys, spared_flops / flops, keys, keys - spared_keys
