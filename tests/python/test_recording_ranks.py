"""blockscope.record() in process groups: the trace of ranks that share the heads is that of one process."""

import os
import signal
import subprocess
import time

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
import recorded_ranks as ranks  # noqa: E402
from blockscope.recording.ranks import axis_of  # noqa: E402
from recording_checks import BINARY, MASK, check_array, compare_traces  # noqa: E402

PROMPT = torch.tensor([[5 * i % 90 for i in range(24)], [7 * i % 90 for i in range(24)]])


def record(path, model, prompt=PROMPT, **settings):
    settings = {"level": "outputs", "array_type": "f32", **settings}
    with blockscope.record(model, path, block_length=8, mask_token_id=MASK, gen_length=16, set_size=5, **settings):
        return models.decode_qwen_blocks(model, prompt, 16, 8, MASK)


def float64(kv_heads=2):
    """In float64 the sums of the ranks' parts differ by less than what float32, in which rows are computed, shows."""
    model = models.qwen3(kv_heads=kv_heads, dtype=torch.float64)

    def same_type(module, args, kwargs):  # of the mask
        return args, {**kwargs, "attention_mask": kwargs["attention_mask"].double()}

    model.register_forward_pre_hook(same_type, with_kwargs=True)
    return model


CASES = {
    "trajectory": dict(level="trajectory"),
    "summary": dict(level="summary", steps=[1, 3], blocks=[3], regions=[{"region": "begin", "positions": "0-9"}]),
    "sets": dict(level="sets", set_normaliser="prefix+block", batch_rows=[1]),
    "outputs": dict(level="outputs", array_type="bf16", layers=[1, 2]),  # the first of three ranks has no such layer
    "heads": dict(level="outputs", heads=[1, 3], maps="heads=1;layers=1"),  # the last rank has no map
    "last": dict(level="full", heads=[3], layers=[2], maps={}),  # the first rank has no such head or layer
    "first": dict(level="full", heads=[0, 1], layers=[0]),
    "full": dict(level="full", maps={"steps": [2]}),
}
SHORT = ["last", "full"]
RANKS = [("heads", 2, list(CASES)), ("heads", 4, SHORT), ("layers", 3, list(CASES)), ("transformers", 2, SHORT)]


def compare_ranks(mine, theirs):
    """The digest is that of the first rank's weights."""
    found, expected = (dict(blockscope.open(path).model) for path in (mine, theirs))
    assert len(found.pop("digest")) == len(expected.pop("digest")) == 64
    assert found == expected
    return compare_traces(mine, theirs, {"/model/json"})


@pytest.mark.parametrize("shared, count, names", RANKS, ids=[f"{shared}-{count}" for shared, count, _ in RANKS])
def test_ranks_record_what_one_process_does(tmp_path, shared, count, names):
    """In one group after another recording, too."""
    if shared == "transformers":
        pytest.importorskip("transformers.distributed.tensor_parallel", reason="this transformers has no such plan")
    kv_heads = max(count, 2) if shared == "heads" else 2
    tokens = [record(tmp_path / f"one {name}.h5", float64(kv_heads), **CASES[name]) for name in names]
    what = "layers" if shared == "layers" else "heads"

    def work(rank, count):
        model = ranks.SHARES[shared](float64(kv_heads), rank, count)
        return [record(tmp_path / f"ranks {name}.h5", model, ranks=what, **CASES[name]).tolist() for name in names]

    said = ranks.run(work, count, tmp_path)
    assert [one.get("result") for one in said] == [[one.tolist() for one in tokens]] * count, said
    for name in names:
        rows = compare_ranks(tmp_path / f"ranks {name}.h5", tmp_path / f"one {name}.h5")
        assert rows == (11 if name == "sets" else 22)
    trace = blockscope.open(tmp_path / "ranks full.h5")
    assert trace.model["num_heads"] == 4 and trace.model["num_kv_heads"] == kv_heads and trace.run["ranks"] == what


def test_groups_of_ranks_record_a_trace_each(tmp_path):
    """Tensor parallelism of two ranks, twice."""
    record(tmp_path / "one.h5", float64())

    def work(rank, count):
        groups = [torch.distributed.new_group(members) for members in ([0, 1], [2, 3])]
        model = ranks.share_heads(float64(), rank % 2, 2, groups[rank // 2])
        record(tmp_path / f"group {rank // 2}.h5", model, ranks="heads", group=groups[rank // 2])

    said = ranks.run(work, 4, tmp_path)
    assert all("result" in one for one in said), said
    for index in range(2):
        compare_ranks(tmp_path / f"group {index}.h5", tmp_path / "one.h5")


def test_the_joined_axes_are_those_of_the_format(tmp_path):
    record(tmp_path / "run.h5", float64(), level="full", maps={})
    seen = set()
    for group in blockscope.open(tmp_path / "run.h5").tree.subtree:
        for name, array in group.data_vars.items():
            dims = [str(dim) for dim in array.dims]
            path = f"{group.path}/{name}"
            for shared, axes in (("heads", ("head", "kv_head", "map_head")), ("layers", ("layer", "map_layer"))):
                where = [i - (dims[0] == "row") for i, dim in enumerate(dims) if dim in axes]
                if where:
                    assert where == [axis_of(path, shared)], (path, shared, dims)
                elif dims[0] == "row" and path.startswith(("/attention", "/summary", "/prediction", "/hidden")):
                    assert axis_of(path, shared) is None, (path, shared, dims)
                seen |= {path} if where else set()
    assert {"/summary/kept_pair", "/summary/hidden_gap", "/prefix/key", "/map/weight", "/kv/value", "/sets/recall",
            "/spread/entropy", "/hidden/hidden", "/attention/external"} <= seen


def test_the_library_records_ranks_too(tmp_path):
    """In float32, whose sums over ranks round otherwise; the model gets what is recorded."""
    settings = dict(level="outputs", attention="replace")
    tokens = record(tmp_path / "one.h5", models.qwen3(), **settings)

    def work(rank, count):
        return record(tmp_path / "two.h5", ranks.share_heads(models.qwen3(), rank, count), ranks="heads",
                      **settings).tolist()

    said = ranks.run(work, 2, tmp_path)
    assert [one.get("result") for one in said] == [tokens.tolist()] * 2, said
    with h5py.File(tmp_path / "two.h5") as mine, h5py.File(tmp_path / "one.h5") as theirs:
        for path in ("/attention/external", "/attention/lse_internal", "/query/query", "/sets/probability",
                     "/spread/distance", "/summary/reuse_error", "/prediction/confidence"):
            check_array(path, mine[path][()], theirs[path][()], 1e-4)


# --- faults -----------------------------------------------------------------------------------------------------------


def at_pass(number, model, rank, wanted, do):
    """do() in this rank after `number` passes of its loop."""
    passes, own = [], models.fill
    model.register_forward_hook(lambda *_: passes.append(1))

    def fill(*args):
        if rank == wanted and len(passes) == number:
            do()
        return own(*args)

    models.fill = fill  # in this process alone, a fork


def inside_pass(number, model, rank, wanted, do):
    """do() in this rank after `number` passes, in the second layer, while the others wait for its part of a sum."""
    passes = []

    def hook(*_):
        passes.append(1)
        if rank == wanted and len(passes) == number + 1:
            do()

    model.model.layers[1].register_forward_pre_hook(hook)


def boom():
    raise ValueError("boom")


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS = {
    "an error between passes": (at_pass, 1, boom, "rank 1 ended its recording with ValueError: boom"),
    "a killed rank of four": (at_pass, 2, kill, "rank 2 is gone without a reason"),
    "a killed first rank": (at_pass, 0, kill, "rank 0 is gone without a reason"),
    "an error inside a pass": (inside_pass, 1, boom, "rank 1 ended its recording with ValueError: boom"),
    "a killed rank inside a pass": (inside_pass, 1, kill, "no word of rank 1: killed, or still running"),
    "a rank that hangs": (at_pass, 1, lambda: time.sleep(4), "rank 1 wasn't heard of for 3 s (rank_timeout)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_other_ranks_end_with_what_happened(tmp_path, fault):
    where, wanted, do, what = FAULTS[fault]
    count = 4 if wanted == 2 else 2

    def work(rank, count):
        model = ranks.share_heads(float64(count), rank, count)
        where(5, model, rank, wanted, do)
        record(tmp_path / "run.h5", model, ranks="heads", rank_timeout=3)

    said = ranks.run(work, count, tmp_path, seconds=30)
    for rank in {*range(count)} - {wanted}:
        told = said[rank]
        assert what in told["text"] + "".join(told["notes"]), told
        assert told["seconds"] < 15
        if where is at_pass:
            assert told["error"] == "RankError", told
    if do is kill:
        assert said[wanted] is None
    elif do is boom:
        assert (said[wanted]["error"], said[wanted]["text"]) == ("ValueError", "boom")
    else:  # it finds the first rank gone when it goes on
        assert said[wanted]["error"] == "RankError" and "rank 0" in said[wanted]["text"], said[wanted]
    trace = blockscope.open(tmp_path / "run.h5")  # the .partial
    assert not trace.complete and not (tmp_path / "run.h5").exists()
    if wanted > 0:
        assert trace.num_rows == 2 * (5 - 1)  # two sequences; the last pass's rows wait for the next pass
        lse = trace.tree["attention/lse_internal"].values
        assert lse.shape[2] == 4 and np.isfinite(lse[2:]).all()


def test_one_process_alone_is_refused(tmp_path):
    for settings, words in [(dict(ranks="heads"), "expected a process group, found none"),
                            (dict(ranks="sequences"), "expected a process group, found none"),
                            (dict(group=0), "group: does nothing without ranks=")]:
        with pytest.raises(blockscope.UsageError, match=words):
            record(tmp_path / "run.h5", models.qwen3(), **settings)


def refused(rank, count, path, model=None, settings=None, prompt=PROMPT, gen_length=16):
    """The error that this rank ends with."""
    model = ranks.share_heads(float64(), rank, count) if model is None else model
    given = {"ranks": "heads", "rank_timeout": 10, "array_type": "f32", "gen_length": 16, "force": True,
             **(settings or {})}
    try:
        with blockscope.record(model, path, block_length=8, mask_token_id=MASK, set_size=5, **given):
            models.decode_qwen_blocks(model, prompt, gen_length, 8, MASK)
    except (blockscope.UsageError, blockscope.RankError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def part_of_the_queries(rank, count):
    """And the one KV head."""
    model = float64(kv_heads=1)
    for layer in model.model.layers:
        layer.self_attn.num_key_value_groups //= count
        layer.self_attn.q_proj.weight.data = layer.self_attn.q_proj.weight.data.chunk(count, 0)[rank].clone()
        layer.self_attn.o_proj.weight.data = layer.self_attn.o_proj.weight.data.chunk(count, 1)[rank].clone()
    return model


def test_a_pipeline_whose_ranks_share_heads_too_is_refused(tmp_path):
    def work(rank, count):
        model = ranks.share_layers(part_of_the_queries(rank, count), rank, count)
        record(tmp_path / "run.h5", model, ranks="layers", rank_timeout=10)

    said = ranks.run(work, 2, tmp_path, seconds=30)
    assert "attends with 2 heads in this rank of 2, expected the 4" in said[0]["text"], said
    # The store with its reason has gone with the first rank.
    assert said[1]["error"] == "RuntimeError" and "no word of rank 0" in said[1]["notes"][0] and said[1]["seconds"] < 5


def test_what_ranks_can_not_record_is_refused_on_every_one(tmp_path):
    path = tmp_path / "run.h5"

    def work(rank, count):
        nameless = ranks.share_heads(float64(), rank, count)
        object.__setattr__(nameless.config, "num_attention_heads", None)
        part_of_logits = ranks.share_heads(float64(), rank, count)
        part_of_logits.lm_head.weight.data = part_of_logits.lm_head.weight.data[:49].clone()
        (tmp_path / "there.h5").touch()
        own = tmp_path / f"own {rank}.h5"
        found = {
            "settings": refused(rank, count, path, settings={"level": ["outputs", "full"][rank]}),
            "regions": refused(rank, count, path, settings={"regions": [{"region": "a", "positions": f"0-{rank}"}]}),
            "tokens": refused(rank, count, path, prompt=PROMPT[rank:rank + 1]),
            "passes": refused(rank, count, path, gen_length=[16, 8][rank]),
            "whole": refused(rank, count, path, model=float64()),
            "KV heads": refused(rank, count, path, model=part_of_the_queries(rank, count)),
            "nameless": refused(rank, count, path, model=nameless),
            "head": refused(rank, count, path, settings={"heads": [4]}),
            "there": refused(rank, count, tmp_path / "there.h5", settings={"force": False}),
            "no ranks": refused(rank, count, own, settings={"ranks": None}),
            "sequences": refused(rank, count, path, settings={"ranks": "sequences"}),
            "layers": refused(rank, count, path, settings={"ranks": "layers"}),
            "logits": refused(rank, count, path, model=part_of_logits),
            "timeout": refused(rank, count, path, settings={"rank_timeout": 0}),
            "unknown": refused(rank, count, path, settings={"ranks": "experts"}),
            "interventions": refused(rank, count, path, settings={
                "interventions": ["drop_head,layers=0,heads=0"], "attention": "replace"}),
            "after all": refused(rank, count, path),
        }
        return found

    said = [one["result"] for one in ranks.run(work, 2, tmp_path) if one.get("result") or pytest.fail(str(one))]
    together = "attends with 4 heads in rank {} of 2, together 8, expected the 4 of the model's configuration"
    no_ranks = "attends with 2 heads in this rank of 2, expected the 4 of the model's configuration"
    expected = {
        "settings": "UsageError: level: rank 0 has 'outputs', rank 1 has 'full'. HINT: every rank calls record(...)",
        "regions": "UsageError: regions: rank 0 has [",
        "tokens": "UsageError: rank 1 begins pass 0 over other tokens or positions than rank 0",
        "passes": "ends its recording after 6 passes while rank 0 begins pass 6, expected the same passes",
        "whole": together, "KV heads": "KV heads that ranks share aren't recorded",
        "nameless": "its configuration doesn't say how many heads", "head": "heads: expected 0 to 3, got 4",
        "there": "there.h5: exists already", "no ranks": no_ranks, "sequences": no_ranks,
        "layers": "ranks: expected each layer in one rank, and the layers in the order of the ranks, got [0, 1, 2] in",
        "logits": "returns logits of 49 tokens, expected the 97 of its vocabulary",
        "timeout": "rank_timeout: expected seconds, more than 0, got 0",
        "unknown": "ranks: expected one of heads, layers, sequences, got 'experts'",
        "interventions": "UsageError: interventions: expected a model that is whole in one process",
    }
    for rank, found in enumerate(said):
        assert found.pop("after all") is None, found
        for name, text in expected.items():
            assert text.format(rank) in (found[name] or "nothing"), (rank, name, found[name])
    assert blockscope.open(path).complete


def test_ranks_with_sequences_of_their_own_give_files_to_merge(tmp_path):
    prompts = [PROMPT[:1], PROMPT[1:], PROMPT[:1, 3:19]]

    def decode(path, mine, **settings):
        model = float64()
        with blockscope.record(model, path, block_length=8, mask_token_id=MASK, gen_length=16, set_size=5,
                               **settings) as run:
            for index in mine:
                run.begin_sequence(name=f"prompt {index}")
                run.end_sequence(models.decode_qwen_blocks(model, prompts[index], 16, 8, MASK))
        return run.path

    decode(tmp_path / "one.h5", [0, 2, 1])
    said = ranks.run(lambda rank, count: decode(tmp_path / "run.h5", [[0, 2], [1]][rank], ranks="sequences"), 2,
                     tmp_path)
    parts = [tmp_path / "run.r0000.h5", tmp_path / "run.r0001.h5"]
    assert [one.get("result") for one in said] == [str(part) for part in parts], said
    done = subprocess.run([BINARY, "repack", *parts, "--merge", "-o", tmp_path / "merged.h5"], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    assert compare_traces(tmp_path / "merged.h5", tmp_path / "one.h5", {"/steps/pass", "/sequences/bytes"}) == 33
    trace = blockscope.open(tmp_path / "merged.h5")
    assert [one.name for one in trace.sequences] == ["prompt 0", "prompt 2", "prompt 1"]
