"""Which heads blockscope.record() writes: what the attention calls have, whatever the configuration says. The checks:
the checkpoint's own configuration, float64 recomputation of what the model was given, and the trace of the same loop
where the configuration tells."""

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
from recording_checks import PROMPT, SIZE, check_array, rows_of, split  # noqa: E402
from recorded_canvases import CANVAS, Canvases, diffusion_gemma, generate_canvases  # noqa: E402

KV_HEADS = 2  # of models/needle, whose 6 query heads share them


def attend_repeated(q, k, v, mask):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def attend_tiled(q, k, v, mask):
    k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def model_of(attend=None, kv_heads=None):
    """kv_heads: what the configuration says; None: nothing."""
    model = models.PlainModel("needle")
    if kv_heads is None:
        del model.config.num_key_value_heads
    else:
        model.config.num_key_value_heads = kv_heads
    if attend is not None:
        for layer in model.layers:
            layer.attend = attend
    return model


def record(model, path, **options):
    with blockscope.record(model, path, block_length=SIZE, array_type="f32", **options) as run:
        run.end_sequence(models.decode_blocks(model, PROMPT[:40], 32, SIZE))
    return path


@pytest.mark.parametrize("level", ["trajectory", "summary", "sets", "outputs", "full"])
@pytest.mark.parametrize("attend, configured", [(None, None), (attend_repeated, None), (attend_repeated, 6)])
def test_kv_heads_are_those_of_the_call(tmp_path, level, attend, configured):
    """Of a configuration without them, and of one that has the query heads there, as some libraries fill it."""
    told = record(model_of(attend, KV_HEADS), tmp_path / "told.h5", level=level)
    if level == "trajectory" and configured is not None:
        return  # without a look at the attention nothing contradicts it
    seen = record(model_of(attend, configured), tmp_path / "seen.h5", level=level)
    names = []
    with h5py.File(told) as a, h5py.File(seen) as b:
        assert b["/model"].attrs["num_kv_heads"] == KV_HEADS and b["/model"].attrs["num_heads"] == 6
        assert b["/model"].attrs["head_dim"] == 48
        assert b.attrs["softmax_scale"] == pytest.approx(48 ** -0.5)
        a.visititems(lambda path, item: names.append(path) if isinstance(item, h5py.Dataset) else None)
        for name in names:
            if "json" not in name and "byte" not in name and "pass_time" not in name:
                assert np.array_equal(a[name][()], b[name][()], equal_nan=a[name].dtype.kind == "f"), name


def test_heads_are_chosen_by_the_kv_heads_that_are_seen(tmp_path):
    path = record(model_of(attend_repeated), tmp_path / "run.h5", level="sets", heads=[1, 4])
    whole = record(model_of(attend_repeated, KV_HEADS), tmp_path / "whole.h5", level="sets")
    with h5py.File(path) as some, h5py.File(whole) as all_:
        assert some["/head"][:].tolist() == [1, 4] and some["/kv_head"][:].tolist() == [0, 1]
        count = rows_of(some)
        assert np.array_equal(some["/sets/topk"][:count], all_["/sets/topk"][:count])


def test_kv_heads_in_another_order_are_refused(tmp_path):
    """Query head h reads KV head h % 2: one number can't say that."""
    for configured in (None, KV_HEADS):
        with pytest.raises(blockscope.UsageError, match=r"layers\.0: .*expected 2 KV heads, each repeated 3 times in a "
                                                        r"row.*repeat_interleave"):
            record(model_of(attend_tiled, configured), tmp_path / "run.h5", force=True)


def test_a_shape_that_changes_is_refused(tmp_path):
    def attend(q, k, v, mask):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True,
                                                                scale=1 / (5 + k.shape[2] // 60))

    with pytest.raises(blockscope.UsageError, match=r"layers\.0: .*scale 0\.1667; in its first call that was 6 heads, "
                                                    r"2 KV heads.*scale 0\.2"):
        record(model_of(attend), tmp_path / "run.h5")


# --- layers of different shapes ---------------------------------------------------------------------------------------


def unlike():
    """As the configuration's defaults: layers without a window have other channels and KV heads than the others."""
    return diffusion_gemma(head_dim=16, global_head_dim=32, num_key_value_heads=2, num_global_key_value_heads=1)


@pytest.mark.parametrize("layers, kv_heads, channels", [([0, 1], 2, 16), ([2], 1, 32)])
@pytest.mark.parametrize("level", ["summary", "sets", "outputs"])
def test_one_shape_at_a_time_is_recorded(tmp_path, level, layers, kv_heads, channels):
    model = unlike()
    prompt = torch.tensor([[5 * i % 90 + 3 for i in range(10)]])
    sees = Canvases(model, False)
    path = tmp_path / "run.h5"
    with sees, blockscope.record(model, path, level=level, layers=layers, array_type="f32", set_size=4) as run:
        run.end_sequence(generate_canvases(model, prompt, 2))
    with h5py.File(path) as file:
        assert file["/layer"][:].tolist() == layers
        assert file["/model"].attrs["num_kv_heads"] == 2 and file["/model"].attrs["head_dim"] == 32
        assert file["/model/layer_kv_heads"][:][layers].tolist() == [kv_heads] * len(layers)
        assert file["/model/layer_head_dim"][:][layers].tolist() == [channels] * len(layers)
        rows = np.flatnonzero(file["/steps/kind"][:rows_of(file)] == 1)
        assert len(rows) == 10
        for row in rows:
            one = sees.passes[file["/steps/pass"][row]]
            for slot, layer in enumerate(layers):
                q, k, v = (x[0] for x in one.calls[layer])
                k, v = (x[::len(x) // kv_heads] for x in (k, v))
                keys = np.arange(k.shape[1])
                # split() scales by the channels; the model doesn't scale at all.
                found = split(q * channels ** 0.5, k, v, keys >= len(keys) - CANVAS, lambda scores, head: scores)
                for name, value in zip(("external", "lse_external", "internal", "lse_internal"), found):
                    if "/attention/" + name in file:
                        check_array(name, file["/attention/" + name][row, slot], value, 2e-5)


def test_the_trajectory_of_layers_of_different_shapes(tmp_path):
    """It holds nothing of the layers."""
    model = unlike()
    with blockscope.record(model, tmp_path / "run.h5", level="trajectory") as run:
        run.end_sequence(generate_canvases(model, torch.tensor([[7, 8, 9, 10]]), 1))
    with h5py.File(tmp_path / "run.h5") as file:
        assert file["/model/layer_kv_heads"][:].tolist() == [2, 2, 1]
        assert file["/model/layer_head_dim"][:].tolist() == [16, 16, 32]
        assert file["/model/layer_window"][:].tolist() == [12, 12, 0]
