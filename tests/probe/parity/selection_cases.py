"""What check_selection.py runs: checkpoints, prompts, schedules and policies."""

import dataclasses

from selection_math import Policy as P

DYNAMIC = ("low_confidence_dynamic", {"threshold": 0.3})
STATIC = ("low_confidence_static", {})


@dataclasses.dataclass
class Case:
    name: str
    checkpoint: str
    policies: list
    steps: int
    lengths: tuple             # of the prompts
    batch: int = 2
    options: tuple = STATIC    # strategy and its numbers
    seed: int = 0              # of the prompts
    threads: int = 1
    replayed: P = None         # the trajectories are those of a run under this policy
    overrides: dict = dataclasses.field(default_factory=dict)  # of the checkpoint

    @property
    def strategy(self):
        return ["--strategy", ",".join([self.options[0], *(f"{name}={value}" for name, value in self.options[1].items())])]


def each(k, **changes):
    """Every policy with the same k."""
    return [P("mage", k), P("mage+flashblock", k), P("quest", k, page=4), P("sparsed", k),
            P("sparsed", k, per_block=True), P("sparsed+flashblock", k, per_block=True),
            P("oracle", k), P("random", k), P("recent", k)]


# B = 8, G = 3, three layers. p0 is shorter than a block and p1 and p2 leave tokens over.
BASE = dict(checkpoint="sdar-g3-tied", lengths=(3, 17, 45))
# Read everything whenever there is anything: must be exact.
EVERYTHING = Case("k >= N", steps=3, policies=each(1000), options=DYNAMIC, **BASE)
RANDOM = Case("draws", steps=8, policies=[P("random", 5, seed=3)], **BASE)
CASES = [
    Case("B steps", steps=8, policies=each(6), options=DYNAMIC, **BASE),
    Case("3 steps", steps=3, policies=each(9), batch=3, threads=2, **BASE),
    Case("2 steps", "sdar-g3-tied", steps=2, batch=3, lengths=(11, 17, 45), policies=[
        P("mage+flashblock", 1), P("quest", 1, page=1), P("sparsed", 12), P("oracle", 40)]),
    Case("1 step", steps=1, **BASE, policies=[
        P("mage", 3), P("sparsed+flashblock", 3, per_block=True), P("sparsed", 3),
        P("quest", 3, page=2), P("recent", 3)]),
    Case("density", "sdar-g2", steps=4, lengths=(2, 18, 31), batch=3, options=DYNAMIC, policies=[
        P("mage", density="0.55"), P("mage+flashblock", density="0.07"),
        P("quest", density="0.3", page=4), P("sparsed", density="0.25"),
        P("sparsed", density="1", per_block=True), P("oracle", density="0.01"),
        P("random", density="0.55"), P("recent", density="0.55")]),
    # 0.28 * 25 and 0.28 * 50 are 7 and 14; in binary a little more, which rounds up to 8 and 15.
    Case("density of a whole number", "sdar-g4-bf16-sharded", steps=2, lengths=(26, 49),
         policies=[P("recent", density="0.28"), P("mage", density="0.28")]),
    Case("pages", steps=8, options=DYNAMIC, **BASE, policies=[
        P("quest", 7, page=3), P("quest", 8, page=8), P("quest", 5, page=64),
        P("quest", 30, page=5), P("quest", 17)]),
    Case("exact layers", steps=8, options=DYNAMIC, **BASE, policies=[
        dataclasses.replace(p, exact_layers=1) for p in each(5)] + [P("mage", 4, exact_layers=3)]),
    Case("one KV head, B = 4", "sdar-mqa-bias-sharded", steps=4, lengths=(1, 14, 70), batch=3,
         policies=[P("mage", 8), P("mage+flashblock", 8), P("quest", 16, page=16),
                   P("sparsed", 8), P("oracle", 8)]),
    # Three prefill passes, whose ends no page of 16 keeps to.
    Case("a prompt of 1,103", "sdar-g4-bf16-sharded", steps=5, lengths=(1103, 4), options=DYNAMIC,
         overrides={"positions": 2048}, seed=1,
         policies=[P("mage+flashblock", 32), P("quest", 64), P("sparsed", 32), P("oracle", 32)]),
    # SparseD's set is taken in block 0, which has no prefix: later blocks read nothing of theirs.
    # (Their positions are then alike, so the schedule must not compare confidences.)
    Case("a set of no keys", "sdar-g3-tied", steps=8, lengths=(3, 2), options=("sequential", {}),
         policies=[P("sparsed", 6)]),
    Case("replay of exact", steps=3, replayed=P("exact"), **BASE, policies=each(6)),
    Case("replay of quest", steps=8, replayed=P("quest", 4, page=4), options=DYNAMIC, **BASE,
         policies=[P("mage+flashblock", 7), P("sparsed", 7), P("random", 7), P("oracle", 7)]),
    Case("replay of recent", steps=8, replayed=P("recent", 3), options=DYNAMIC, **BASE,
         policies=[P("quest", 7, page=4), P("exact")]),
    EVERYTHING, RANDOM]
