"""What an official loop did, seen on ways of our own: queries, keys and values where the model hands them to torch,
tokens and blocks in the local variables of the loop's functions. And the comparison of a trace with it, with h5py and
float64. Nothing of blockscope is used here."""

import dataclasses
import sys

import attention_math as am
import h5py
import numpy as np
import recording_reference as reference
import torch

PREFILL, DENOISE, COMMIT = 0, 1, 2


@dataclasses.dataclass
class Pass:
    kind: int
    tokens: np.ndarray  # [S, L] as the loop has them before the pass
    block_start: int = 0
    computed: list | None = None  # [S][R] positions whose rows the model computes; None: those of `span`
    span: tuple = (0, 0)  # positions of the input
    hidden: dict = dataclasses.field(default_factory=dict)  # layer: [S, R or T, C], what goes into it
    calls: dict = dataclasses.field(default_factory=dict)  # layer: q [S, H, R, D], k, v [S, K, N, D], float64
    rows: dict = dataclasses.field(default_factory=dict)  # layer: positions, where each chooses its own
    logits: np.ndarray | None = None  # [S, R, V]
    noise: np.ndarray | None = None  # [S, B] of a canvas without masks: positions that aren't accepted

    def positions(self, slot, layer=None):
        if layer in self.rows:
            return self.rows[layer][slot]
        return list(range(*self.span)) if self.computed is None else self.computed[slot]


class Observer:
    """look(module, args, kwargs, variables): a Pass, from the local variables (by name of the function) of the
    functions named in `loop` that are running. late(one, variables): at its end; each(one, layer, variables): at each
    attention."""

    def __init__(self, model, layers, loop, look, eager=False, entrances=None, late=None, each=None):
        self.passes, self._loop, self._look, self._eager, self._late, self._each = [], loop, look, eager, late, each
        self._variables = {}
        self._layer, self._scores = None, None
        self._hooks = []
        for module in entrances or [model]:
            self._hooks += [module.register_forward_pre_hook(self._begin, with_kwargs=True, prepend=True),
                            module.register_forward_hook(self._end)]
        for index, layer in enumerate(layers):
            def enter(_, args, kwargs, index=index):
                self._enter(index, args, kwargs)

            self._hooks += [layer.register_forward_pre_hook(enter, with_kwargs=True),
                            layer.register_forward_hook(lambda *_: self._enter(None))]

    def __enter__(self):
        self._own = torch.nn.functional.scaled_dot_product_attention, torch.matmul
        torch.nn.functional.scaled_dot_product_attention = self._attend
        if self._eager:
            torch.matmul = self._matmul
        return self

    def __exit__(self, *error):
        torch.nn.functional.scaled_dot_product_attention, torch.matmul = self._own
        for hook in self._hooks:
            hook.remove()

    def _begin(self, module, args, kwargs):
        variables, frame = {}, sys._getframe()
        while frame is not None:
            if frame.f_code.co_name in self._loop:
                variables.setdefault(frame.f_code.co_name, frame.f_locals)
            frame = frame.f_back
        self._variables = variables
        self.passes.append(self._look(module, args, kwargs, variables))

    def _end(self, module, args, output):
        if self._late is not None:
            self._late(self.passes[-1], self._variables)
        if getattr(output, "logits", None) is not None:
            self.passes[-1].logits = output.logits.detach().double().numpy().copy()

    def _enter(self, layer, args=(), kwargs=None):
        self._layer, self._scores = layer, None
        if layer is not None:
            hidden = args[0] if args else kwargs["hidden_states"]
            self.passes[-1].hidden[layer] = hidden.detach().double().numpy().copy()

    def _keep(self, q, k, v):
        if self._layer is not None:
            if self._each is not None:
                self._each(self.passes[-1], self._layer, self._variables)
            self.passes[-1].calls[self._layer] = tuple(x.detach().double().numpy().copy() for x in (q, k, v))

    def _attend(self, *args, **kwargs):
        q, k, v = (args[i] if len(args) > i else kwargs[n] for i, n in enumerate(("query", "key", "value")))
        self._keep(q, k, v)
        return self._own[0](*args, **kwargs)

    def _matmul(self, a, b):
        if self._layer is not None and a.dim() == b.dim() == 4:
            if self._scores is None:
                self._scores = a, b.transpose(2, 3)
            else:
                self._keep(*self._scores, b)
                self._scores = None
        return self._own[1](a, b)


class Largest:
    """The largest differences that were seen, each of its array's largest value."""

    def __init__(self):
        self.of = {}
        self.rows = self.sets = self.values = 0

    def check(self, name, got, expected, allowed):
        got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
        assert got.shape == expected.shape, (name, got.shape, expected.shape)
        assert np.array_equal(np.isnan(got), np.isnan(expected)), f"{name}: NaN elsewhere"
        assert np.array_equal(np.isinf(got), np.isinf(expected)), f"{name}: infinite elsewhere"
        finite = np.isfinite(expected)
        if finite.any():
            largest = max(np.abs(expected[finite]).max(), 1.0)
            difference = np.abs(got[finite] - expected[finite]).max() / largest
            assert difference <= allowed, f"{name}: {difference}"
            self.of[name] = max(self.of.get(name, 0.0), difference)
            self.values += int(finite.sum())


def own_heads(x, count):
    """[S, H or K, N, D] -> [S, K, N, D]"""
    return x[:, ::x.shape[1] // count]


def step_of(one, slot, size, kv_heads, num_layers, outside_is_all, scale):
    """reference.Step of a denoising pass; rows of the block that it didn't compute are NaN."""
    block = range(one.block_start, one.block_start + size)
    like = next(iter(one.calls.values()))
    q = np.full((num_layers, like[0].shape[1], size, like[0].shape[3]), np.nan)
    k, v = ([np.zeros((kv_heads, *like[i].shape[2:]))] * num_layers for i in (1, 2))
    for layer, (query, key, value) in one.calls.items():
        k[layer], v[layer] = own_heads(key, kv_heads)[slot], own_heads(value, kv_heads)[slot]
        at = {position: i for i, position in enumerate(one.positions(slot, layer))}
        assert len(at) == query.shape[2]
        for i, position in enumerate(block):
            if position in at:
                q[layer, :, i] = query[slot, :, at[position]]
    # Without a canvas the last key is the block's last; a window has dropped the first ones.
    first = [0 if outside_is_all else block.stop - keys.shape[1] for keys in k]
    positions = [at + np.arange(keys.shape[1]) for at, keys in zip(first, k)]
    return reference.Step(q, k, v, [(at >= block.start) & (at < block.stop) for at in positions], first=first,
                          scale=scale)


def hidden_of(one, slot, size):
    """[L, B, C] of the block's rows; NaN where a layer isn't handed the row."""
    found = []
    for layer, hidden in sorted(one.hidden.items()):
        rows = np.full((size, hidden.shape[2]), np.nan)
        whole = list(range(*one.span))
        positions = whole if hidden.shape[1] == len(whole) else one.positions(slot)
        for row, position in zip(hidden[slot], positions):
            if one.block_start <= position < one.block_start + size:
                rows[position - one.block_start] = row
        found.append(rows)
    return np.stack(found)


def ranges_of(positions):
    result = []
    for position in sorted(positions):
        if result and result[-1][1] == position:
            result[-1][1] = position + 1
        else:
            result.append([position, position + 1])
    return result


def part(file, name, end, i):
    ends = file[f"/frames/{end}_end"]
    return file[f"/frames/{name}"][int(ends[i - 1]) if i else 0:int(ends[i])].tolist()


def apply_delta(file, row, state):
    for position, token in zip(part(file, "position", "delta", row), part(file, "token", "delta", row)):
        state[position] = token
    inserted = part(file, "insert_token", "insert", row)
    assert all(p == len(state) for p in part(file, "insert_position", "insert", row))
    state += inserted


def cache_ranges(file, what, row, layer, layers):
    ends = file[f"/cache/{what}_end"][:].reshape(-1)
    at = row * layers + layer
    span = slice(int(ends[at - 1]) if at else 0, int(ends[at]))
    return np.stack([file[f"/cache/{what}_{n}"][span] for n in ("start", "stop")], -1).tolist()


def compare(path, observer, final, *, size, mask, kv_heads, layers, bidirectional, shift=0, set_size=8, allowed=2e-5,
            scale=None, largest=None):
    """Every row of the trace at `path` against what the observer saw; final [S, L]: the tokens at the end."""
    largest = largest or Largest()
    with h5py.File(path) as file:
        count = int(file["/steps/committed"][0])
        steps = {name: file["/steps/" + name][:count] for name in (
            "sequence", "pass", "kind", "block_start", "block", "step", "context_length", "changed", "masks_left",
            "valid")}
        for sequence in range(len(final)):
            mine = np.flatnonzero(steps["sequence"] == sequence)
            assert steps["pass"][mine].tolist() == list(range(len(observer.passes))), "a pass for each row"
            start = int(file["/sequences/prompt_start"][sequence])
            prompt = int(file["/sequences/prompt_length"][sequence])
            assert file["/sequences/prompt_token"][start:start + prompt].tolist() == \
                observer.passes[-1].tokens[sequence][:prompt].tolist()
            k = int(file["/frames/keyframe"][mine[0]])
            state = part(file, "keyframe_token", "keyframe", k)
            history, changed, last, before_it = [], [], None, None
            for row, one in zip(mine, observer.passes):
                where = f"row {row}"
                tokens = one.tokens[sequence]
                assert steps["kind"][row] == one.kind, where
                if one.kind != PREFILL:
                    assert prompt + len(state) >= one.block_start + size, f"{where}: the block isn't there yet"
                    known = state[:len(tokens) - prompt]
                    assert known == tokens[prompt:prompt + len(known)].tolist(), f"{where}: tokens before it"
                apply_delta(file, row, state)
                if one.kind == DENOISE:
                    if last is None or last != one.block_start:
                        history, changed, inputs, before_it = [], [], [], None
                    block = tokens[one.block_start:one.block_start + size].tolist()
                    moved = 0 if before_it is None else sum(a != b for a, b in zip(block, before_it))
                    history.append(step_of(one, sequence, size, kv_heads, layers, bidirectional, scale))
                    changed.append(moved)
                    inputs.append(block)
                    masked = [token == mask for token in block] if one.noise is None else one.noise[sequence].tolist()
                    expected = dict(block_start=one.block_start, step=len(history), changed=moved,
                                    masks_left=sum(masked),
                                    context_length=len(tokens) - size if bidirectional else one.block_start)
                    got = {name: int(steps[name][row]) for name in expected}
                    assert got == expected, (where, got, expected)
                    hidden = hidden_of(one, sequence, size)
                    first_hidden = hidden if len(history) == 1 else first_hidden
                    gap = reference.mean_of_rows(np.linalg.norm(
                        am.unit(hidden) - am.unit(first_hidden), axis=-1))
                    largest.check("/summary/hidden_gap", file["/summary/hidden_gap"][row],
                                  np.full(layers, np.nan) if len(history) == 1 else gap, 10 * allowed)
                    check_arrays(file, row, history, changed, (inputs, mask, masked), largest, set_size, allowed)
                    for name, values in history[-1].spread(prompt, masked, int(file.attrs["distance_bins"]),
                                                           bidirectional).items():
                        largest.check("/spread/" + name, file["/spread/" + name][row], values, allowed)
                    check_predictions(file, row, one, sequence, size, shift, largest)
                    last, before_it = one.block_start, block
                if bidirectional:
                    check_cache(file, row, one, sequence, layers, size, steps["valid"][row])
                largest.rows += 1
            rest = final[sequence][prompt:prompt + len(state)]
            assert state == list(rest), "tokens at the end"
    return largest


def check_arrays(file, row, history, changed, inputs, largest, set_size, allowed):
    now = history[-1]
    for name, expected in (("/attention/external", now.external), ("/attention/internal", now.internal),
                           ("/attention/lse_external", now.lse_external),
                           ("/attention/lse_internal", now.lse_internal), ("/query/query", now.q)):
        largest.check(name, file[name][row], expected, allowed)
    values = reference.summary(history, changed, *inputs)
    for name in ("similarity_external", "similarity_internal", "external_mass", "query_gap", "query_block_gap",
                 "reuse_error", "kept_pair"):
        got = file["/summary/" + name][row]
        largest.check("/summary/" + name, got, values.get(name, np.full(got.shape, np.nan)), 10 * allowed)
    index, probability, union = now.sets(set_size)
    largest.check("/sets/probability", file["/sets/probability"][row], probability, allowed)
    for name, of_keys in (("key", now.k), ("value", now.v)):
        chosen = file["/sets/topk"][row]  # near-ties may be others than ours
        norms = np.full(chosen.shape, np.nan)
        for layer, head, rank in zip(*np.nonzero(chosen >= 0)):
            outside = of_keys[layer][head, now.outside[layer]]
            norms[layer, head, rank] = np.linalg.norm(outside[chosen[layer, head, rank] - now.first[layer]])
        largest.check(f"/sets/{name}_norm", file[f"/sets/{name}_norm"][row], norms, 10 * allowed)
    recall = np.array([[len(set(a) & set(b)) / set_size for a, b in zip(x, y)]
                       for x, y in zip(history[0].sets(set_size)[0], index)])
    outside = np.array([[one.sum()] for one in now.outside])
    compared = (outside > set_size) & (index[..., 0] >= 0) & (history[0].sets(set_size)[0][..., 0] >= 0)
    recall = np.where(compared & (len(history) > 1), recall, np.nan)
    got = file["/sets/recall"][row]
    assert np.array_equal(np.isnan(got), np.isnan(recall)), f"row {row}: recall"
    assert np.nanmax(np.abs(got - recall), initial=0) <= 1 / set_size + 1e-6, f"row {row}: recall"
    got = file["/sets/topk"][row]
    for a, b, p in zip(got.reshape(-1, set_size), index.reshape(-1, set_size), probability.reshape(-1, set_size)):
        near = np.abs(np.diff(p)) < 1e-6  # of equal scores either may come first
        if not near.any():
            assert np.array_equal(a, b), f"row {row}: set"
            largest.sets += 1
    assert np.abs(file["/sets/union_size"][row] - union).max() <= 1, f"row {row}: union of the tokens' own sets"


def check_predictions(file, row, one, slot, size, shift, largest):
    token, confidence = np.full(size, -1), np.full(size, np.nan)
    positions = one.positions(slot)
    scattered = len(one.logits[slot]) == len(positions)
    for i, position in enumerate(positions):
        at = position + shift - one.block_start
        if 0 <= at < size:
            logits = one.logits[slot][i if scattered else position - one.span[0]]
            e = np.exp(logits - logits.max())
            token[at], confidence[at] = logits.argmax(), e.max() / e.sum()
    assert file["/prediction/token"][row].tolist() == token.tolist(), f"row {row}: predictions"
    largest.check("/prediction/confidence", file["/prediction/confidence"][row], confidence, 2e-5)


def check_cache(file, row, one, slot, layers, size, valid):
    block = range(one.block_start, one.block_start + size)
    computed = set()
    for layer in range(layers):
        positions = one.positions(slot, layer)
        assert cache_ranges(file, "query", row, layer, layers) == ranges_of(positions), f"row {row}: computed"
        assert cache_ranges(file, "key", row, layer, layers) == ranges_of(positions), f"row {row}: keys written"
        computed.update(positions)
    assert valid.tolist() == [int(p in computed) for p in block], f"row {row}: valid"
