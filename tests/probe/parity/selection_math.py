"""The sparse attention policies in float64 numpy, from their papers: which external keys a KV head
reads at a step. MAGE (algorithm 1, eqs. 2 and 3), Quest (arXiv 2406.10774) with one set per block,
SparseD (arXiv 2509.24014) over the run and per block (FlashBlock, appendix D), an oracle and two
floors. H query heads, K KV heads, G = H/K; scores [H, B, N] are scaled by 1/sqrt(D)."""

import dataclasses
import fractions
import math

import attention_math as am
import numpy as np

CAPTURING = ("mage", "mage+flashblock", "sparsed", "sparsed+flashblock")


@dataclasses.dataclass
class Policy:
    name: str
    k: int = 0          # keys of a KV head; 0: by density
    density: str = ""   # decimal, so that a share of the prefix is exact
    page: int = 16
    per_block: bool = False
    exact_layers: int = 0
    seed: int = 0

    def flags(self):
        text = f"{self.name},exact_layers={self.exact_layers}"
        text += f",k={self.k}" if self.k else f",density={self.density}"
        text += f",page={self.page}" if self.name == "quest" else ""
        text += f",seed={self.seed}" if self.name == "random" else ""
        text += ",per_block" if self.per_block else ""
        return ["--policy", text]

    def size(self, count):
        """Keys selected of `count`; a share is rounded up."""
        share = self.k or math.ceil(fractions.Fraction(self.density) * count)
        return min(share, count)

    @property
    def residual(self):
        return self.name.endswith("+flashblock")

    @property
    def run_wide(self):
        return self.name == "sparsed" and not self.per_block


@dataclasses.dataclass
class Pass:
    """One denoising step of one sequence at one layer."""
    layer: int
    step: int           # in the block, from 1
    run_step: int       # of the sequence, from 1
    planned: int        # denoising steps if no block ends early
    block: int
    query: np.ndarray   # [H, B, D]
    key: np.ndarray     # [K, N, D], the prefix
    scores: np.ndarray  # [H, B, N]


class Margin:
    """The smallest distance of a set from another one, relative to the score at its edge."""

    def __init__(self):
        self.value, self.count = float("inf"), 0

    def best(self, scores, k):
        """The k largest of `scores`, ascending positions."""
        order = am.best(scores, len(scores))
        self.count += 1
        if 0 < k < len(scores):
            inside, outside = scores[order[k - 1]], scores[order[k]]
            self.value = min(self.value, (inside - outside) / max(abs(inside), abs(outside)))
        return np.sort(order[:k])


def top_keys(at, policy, margin):
    """Eq. 2 and 3: per KV head the keys with the largest mean softmax probability."""
    lse = am.attention(at.scores, np.zeros_like(at.key))[1]
    mean = am.mean_probability(at.scores, lse, at.key.shape[0])
    return [margin.best(row, policy.size(at.key.shape[1])) for row in mean]


def page_keys(at, policy, margin):
    """Pages by the mean over the queries of sum_d max(q_d max_d, q_d min_d)."""
    count = at.key.shape[1]
    taken = -(-policy.size(count) // policy.page)
    bounds = am.page_scores(at.query, am.page_bounds(at.key, policy.page)).mean(1)
    return [am.page_keys(margin.best(of_head, taken), policy.page, count) for of_head in bounds]


class Selector:
    """Chooses as `policy` does for one sequence. `given(at)`: the sets of a policy that draws."""

    def __init__(self, policy, margin, given=None):
        self.policy, self.margin, self.given = policy, margin, given
        self.sets = {}

    def dense(self, at):
        """The step reads its whole prefix at this layer."""
        if self.policy.name == "exact" or at.layer < self.policy.exact_layers:
            return True
        if self.policy.run_wide:
            # end_time = int(0.2 steps) + 1; steps 0 .. end_time read everything
            return at.run_step - 1 <= int(0.2 * at.planned) + 1
        return self.policy.name in CAPTURING and at.step == 1

    def choose(self, at):
        """-> (dense, sets): [K] index arrays, what this step reads, or if dense, keeps."""
        dense = self.dense(at)
        if dense:
            if at.layer >= self.policy.exact_layers and self.policy.name in CAPTURING:
                if not self.policy.run_wide or at.run_step == int(0.2 * at.planned) + 2:
                    self.sets[at.layer] = top_keys(at, self.policy, self.margin)
            return True, self.sets.get(at.layer)
        count, heads = at.key.shape[1], at.key.shape[0]
        if self.policy.name in CAPTURING:
            return False, self.sets[at.layer]
        if self.policy.name == "oracle":
            return False, top_keys(at, self.policy, self.margin)
        if self.policy.name == "quest":
            return False, page_keys(at, self.policy, self.margin)
        if self.policy.name == "recent":
            return False, [np.arange(count - self.policy.size(count), count)] * heads
        if self.policy.name == "random":
            return False, self.given(at)
        raise ValueError(self.policy.name)
