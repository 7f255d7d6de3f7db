"""Attention that blockscope.record() sees where users write it out themselves. Compared with: float64 recomputation of the
queries, keys and values that the model itself kept, and the trace of the same model with
scaled_dot_product_attention."""

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import recorded_attention as ways  # noqa: E402
import recorded_models as models  # noqa: E402
from recorded_attention import LAYERS, WAYS, as_sdpa, hides, plain, small_model  # noqa: E402
from recording_checks import PROMPT, SIZE, Kept, check_rows, rows_of  # noqa: E402


@pytest.mark.parametrize("way", WAYS)
def test_what_users_write(tmp_path, way):
    attend, change = WAYS[way]
    model, paths = small_model(), [tmp_path / "mine.h5", tmp_path / "sdpa.h5"]
    kept = Kept(model, lambda q, k, v, mask: attend(q, k, v))
    tokens = models.decode_blocks(model, PROMPT[:40], 16, SIZE)
    kept.calls.clear()
    options = dict(block_length=SIZE, array_type="f32", set_size=4)
    with blockscope.record(model, paths[0], **options) as run:
        recorded = models.decode_blocks(model, PROMPT[:40], 16, SIZE)
        run.end_sequence(recorded)
    assert torch.equal(recorded, tokens)
    check_rows(paths[0], kept.calls, LAYERS, change)
    twin = small_model()
    Kept(twin, as_sdpa(change))
    with blockscope.record(twin, paths[1], **options) as run:
        run.end_sequence(models.decode_blocks(twin, PROMPT[:40], 16, SIZE))
    same_attention(*paths)


@pytest.mark.parametrize("attend", [ways.bmm_viewed, ways.einsum_of_groups, ways.ours], ids=lambda one: one.__name__)
def test_level_full(tmp_path, attend):
    """With the keys and values that prefill and commits store."""
    change, paths = WAYS[attend.__name__][1], [tmp_path / "mine.h5", tmp_path / "sdpa.h5"]
    for path, way in zip(paths, (lambda q, k, v, mask: attend(q, k, v), as_sdpa(change))):
        model = small_model()
        Kept(model, way)
        with blockscope.record(model, path, level="full", block_length=SIZE, array_type="f32", set_size=4) as run:
            run.end_sequence(models.decode_blocks(model, PROMPT[:40], 16, SIZE))
    assert blockscope.compare(*paths, absolute=1e-3, ignore_timing=True).equal


def test_query_heads_of_one_kv_head(tmp_path):
    model, path = small_model(), tmp_path / "run.h5"
    model.config.num_key_value_heads = 1
    kept = Kept(model, lambda q, k, v, mask: ways.multi_query(q, k, v))
    kept.calls.clear()
    with blockscope.record(model, path, block_length=SIZE, array_type="f32", set_size=4):
        models.decode_blocks(model, PROMPT[:40], 16, SIZE)
    calls = [(q, k[:1], v[:1]) for q, k, v in kept.calls]
    check_rows(path, calls, LAYERS, hides)


def same_attention(mine, theirs, tolerance=2e-5):
    with h5py.File(mine) as a, h5py.File(theirs) as b:
        assert np.array_equal(a["/frames/token"][:], b["/frames/token"][:])
        for name in ("external", "internal", "lse_external", "lse_internal"):
            assert a["/attention/" + name].shape == b["/attention/" + name].shape
            np.testing.assert_allclose(a["/attention/" + name][:], b["/attention/" + name][:], tolerance, tolerance)
        assert np.array_equal(a["/sets/topk"][:], b["/sets/topk"][:])
        np.testing.assert_allclose(a["/sets/probability"][:], b["/sets/probability"][:], tolerance, tolerance)
        assert a["/model"].attrs["num_kv_heads"] == b["/model"].attrs["num_kv_heads"]


# --- sequences and heads in one dimension -----------------------------------------------------------------------------


@pytest.mark.parametrize("attend", [ways.bmm, ways.batch_first, ways.heads_first, ways.rows_first,
                                    ways.einsum_heads_first, ways.grouped, ways.ours],
                         ids=lambda one: one.__name__)
@pytest.mark.parametrize("sequences", [2, 6])  # the latter: as many as query heads
def test_a_batch(tmp_path, attend, sequences):
    """Each of its sequences as alone."""
    model = small_model()
    mask = model.config.mask_token_id
    ids = torch.tensor([[*PROMPT[7 * i:7 * i + 16], *[mask] * SIZE] for i in range(sequences)])
    options = dict(block_length=SIZE, array_type="f32", set_size=4)
    paths = [tmp_path / "all.h5", tmp_path / "one.h5"]
    for layer in model.layers:
        layer.attend = lambda q, k, v, mask: attend(q, k, v)
    with torch.no_grad(), blockscope.record(model, paths[0], **options):
        model(ids)
    for layer in model.layers:
        layer.attend = as_sdpa(plain)
    for slot in range(sequences):
        with torch.no_grad(), blockscope.record(model, paths[1], force=True, **options):
            model(ids[slot:slot + 1])
        with h5py.File(paths[0]) as a, h5py.File(paths[1]) as b:
            row = np.flatnonzero(a["/steps/sequence"][:rows_of(a)] == slot)[0]
            for name in ("external", "internal", "lse_external", "lse_internal"):
                np.testing.assert_allclose(a["/attention/" + name][row], b["/attention/" + name][0], 2e-5, 2e-5)
            assert np.array_equal(a["/sets/topk"][row], b["/sets/topk"][0])


def test_a_batch_that_cannot_be_told_is_refused(tmp_path):
    def attend(q, k, v, mask):
        a, b, c = (x.mul(1.0) for x in ways.packed(q, k, v))
        return torch.bmm(torch.bmm(a, b.transpose(1, 2)).softmax(-1), c).view(q.shape)

    model = small_model()
    Kept(model, attend)
    ids = torch.full((2, SIZE), model.config.mask_token_id)
    with pytest.raises(blockscope.UsageError, match=r"lost at torch\.bmm after the softmax \(one dimension holds 2 "
                                                    r"sequences and 6 heads.*run\.attention\("):
        with blockscope.record(model, tmp_path / "run.h5", block_length=SIZE):
            model(ids)


@pytest.mark.parametrize("attend", [ways.bmm, ways.bmm_viewed, ways.einsum, ways.einsum_of_rows, ways.grouped,
                                    ways.einsum_of_groups, ways.by_hand_late, ways.ours], ids=lambda one: one.__name__)
def test_token_by_token(tmp_path, attend):
    """A query of one row, and at first a single key."""
    model, paths, ids = small_model(), [tmp_path / "mine.h5", tmp_path / "sdpa.h5"], PROMPT[:8]
    change = WAYS[attend.__name__][1]
    del model.config.mask_token_id
    for path, way in zip(paths, (lambda q, k, v, mask: attend(q, k, v), as_sdpa(change))):
        kept = Kept(model, way)
        with torch.no_grad(), blockscope.record(model, path, array_type="f32", set_size=4) as run:
            cache = models.Cache(LAYERS)
            for token in ids:
                model(torch.tensor([[token]]), past_key_values=cache, store=True)
            run.end_sequence(torch.tensor([[*ids, 1]]))
        assert len(kept.calls) == LAYERS * len(ids)
    same_attention(*paths)
