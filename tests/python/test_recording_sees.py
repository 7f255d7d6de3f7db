"""Which attention blockscope.record() sees: flex attention, flash-attn's operators, compiled code, and what it
refuses. The judges: float64 recomputation of the queries, keys and values that the model itself kept, and the loop
without a recording."""

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

from torch.nn.attention.flex_attention import (AuxRequest, BlockMask, create_block_mask,  # noqa: E402
                                               flex_attention)

import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
from recording_judges import MASK, PROMPT, SIZE, Kept, check_rows, rows_of  # noqa: E402


# --- flex attention ---------------------------------------------------------------------------------------------------

SLOPE = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.03, 0.01])


def window_of(q, k):
    """A mask whose rows count from the keys' end: the last 40 keys."""
    behind = k.shape[2] - q.shape[2]
    return create_block_mask(lambda b, h, row, key: key > row + behind - 40, None, None, q.shape[2], k.shape[2], "cpu")


FLEX = {
    "plain": (lambda q, k: {}, lambda s, h, row, key, rows: s),
    "mask": (lambda q, k: {"block_mask": window_of(q, k)},
             lambda s, h, row, key, rows: np.where(key > row + len(key) - rows - 40, s, -np.inf)),
    "bias": (lambda q, k: {"score_mod": lambda s, b, h, row, key: s + SLOPE[h] * (key - row)},
             lambda s, h, row, key, rows: s + float(SLOPE[h]) * (key - row)),
    "softcap": (lambda q, k: {"score_mod": lambda s, b, h, row, key: 2.0 * torch.tanh(s / 2.0),
                              "block_mask": window_of(q, k), "return_aux": AuxRequest(lse=True)},
                lambda s, h, row, key, rows: np.where(key > row + len(key) - rows - 40, 2 * np.tanh(s / 2), -np.inf)),
}


@pytest.mark.parametrize("name", FLEX)
@pytest.mark.parametrize("canvas", [False, True])
def test_flex_attention(tmp_path, name, canvas):
    options, change = FLEX[name]

    def attend(q, k, v, mask):
        found = compiled(q, k, v, enable_gqa=True, **options(q, k))
        return found[0] if isinstance(found, tuple) else found

    compiled = torch.compile(flex_attention)  # as everybody calls it
    model = models.PlainModel("needle-bidirectional" if canvas else "needle")
    kept = Kept(model, attend)
    decode = models.decode_canvas if canvas else models.decode_blocks
    path = tmp_path / "run.h5"
    with blockscope.record(model, path, block_length=SIZE, array_type="f32", set_size=4, compiled="eager") as run:
        run.end_sequence(decode(model, PROMPT[:40], 32, SIZE))
    with h5py.File(path) as file:
        starts = iter(file["/steps/block_start"][:rows_of(file)][file["/steps/kind"][:rows_of(file)] == 1].repeat(6))
    check_rows(path, kept.calls, 6, change, lambda rows, keys: [next(starts)] * 2 if canvas else (keys - SIZE, 0))


def test_flex_attention_that_nobody_compiled(tmp_path):
    """PyTorch traces it even then."""
    model = models.PlainModel("needle")
    kept = Kept(model, lambda q, k, v, mask: flex_attention(q, k, v, enable_gqa=True, score_mod=capped))

    def capped(score, b, h, row, key):
        return score * SLOPE[h]

    path = tmp_path / "run.h5"
    torch.manual_seed(0)
    with blockscope.record(model, path, block_length=SIZE, array_type="f32", set_size=4):
        models.decode_blocks(model, PROMPT[:32], SIZE, SIZE)
    check_rows(path, kept.calls, 6, lambda s, h, row, key, rows: s * float(SLOPE[h]))


def test_flex_masks_that_the_kernel_would_not_follow_are_refused(tmp_path):
    """A BlockMask that leaves out blocks which its mask_mod doesn't: the kernel leaves them out, eager code doesn't."""
    model = models.PlainModel("needle")

    def attend(q, k, v, mask):
        last = torch.tensor([[[k.shape[2] // 128]]], dtype=torch.int32)
        sparse = BlockMask.from_kv_blocks(torch.ones(1, 1, 1, dtype=torch.int32), last.unsqueeze(-1),
                                          seq_lengths=(q.shape[2], k.shape[2]))
        return flex_attention(q, k, v, enable_gqa=True, block_mask=sparse)

    Kept(model, lambda q, k, v, mask: attend(q, k, v, mask) if q.shape[2] == SIZE else v.repeat_interleave(3, 1))
    with pytest.raises(blockscope.UsageError, match="flex_attention: what its queries, keys and mask give differs"):
        with blockscope.record(model, tmp_path / "run.h5", block_length=SIZE, compiled="eager"):
            models.decode_blocks(model, PROMPT * 2, SIZE, SIZE)


def test_a_score_mod_that_fails_is_named():
    from blockscope.recording.flex import ScoreMod

    def wrong(score, b, h, row, key):
        raise ValueError("not for you")

    with pytest.raises(blockscope.UsageError, match=r"score_mod \(wrong\) can't be evaluated.*not for you.*HINT"):
        ScoreMod(wrong).difference(torch.zeros(1, 2, 3, 4), 5, None)


def test_flex_attention_of_transformers(tmp_path):
    """Its interface hands over a mask of four dimensions, or a BlockMask; both as sdpa sees them."""
    prompt = torch.tensor([[5 * i % 90 for i in range(16)], [7 * i % 90 for i in range(16)]])
    paths = []
    with torch.compiler.set_stance("force_eager"):  # the machine may have no compiler
        for implementation in ("sdpa", "flex_attention"):
            model = models.qwen3(implementation)
            plain = models.decode_qwen_blocks(model, prompt, 16, 8, MASK), models.decode_tokens(model, prompt, 6)
            paths.append([tmp_path / f"{implementation}{i}.h5" for i in range(2)])
            with blockscope.record(model, paths[-1][0], block_length=8, mask_token_id=MASK, array_type="f32", set_size=4):
                assert torch.equal(models.decode_qwen_blocks(model, prompt, 16, 8, MASK), plain[0])
            with blockscope.record(model, paths[-1][1], array_type="f32", set_size=4):
                assert torch.equal(models.decode_tokens(model, prompt, 6), plain[1])
    for sdpa, flex in zip(*paths):
        assert blockscope.compare(sdpa, flex, absolute=1e-3, ignore_timing=True).equal
    from transformers.integrations.flex_attention import flex_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    assert ALL_ATTENTION_FUNCTIONS["flex_attention"] is flex_attention_forward  # all is as it was
