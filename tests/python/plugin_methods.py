"""MAGE and Quest again, as plugins, and small methods that the tests of plugins need."""

import math

import torch

import blockscope
from blockscope import ops


@blockscope.policy("my_mage", source="MAGE, algorithm 1")
class Mage:
    """The keys with the largest mean probability in a block's first step."""

    def __init__(self, k: int = 16):
        self.k = k

    def choose(self, layer, q, keys, step):
        return None if step.first else (step.memory[layer], 0)

    def observe(self, layer, q, keys, lse, step):
        step.memory[layer] = ops.block_topk(q, keys, lse, min(self.k, keys.shape[2]), scale=step.scale).index


@blockscope.policy("my_quest", source="Quest, section 3.3")
class Quest:
    """The pages whose bounds promise the largest scores."""

    def __init__(self, k: int = 16, page: int = 4):
        self.k, self.page = k, page

    def choose(self, layer, q, keys, step):
        length = keys.shape[2]
        bounds = ops.page_bounds(keys, self.page)
        scores = ops.page_scores(q, bounds, self.page)
        taken = math.ceil(min(self.k, length) / self.page)
        best = scores[0].sort(stable=True, descending=True).indices[:, :taken]
        rows = []
        for pages in best:
            found = (pages[:, None] * self.page + torch.arange(self.page, device=q.device)).flatten()
            rows.append(found[found < length])
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1), 2 * math.ceil(length / self.page)

    def selected_size(self, longest):
        return math.ceil(self.k / self.page) * self.page


@blockscope.policy("all_keys")
class AllKeys:
    """Reads every key, by its own attention."""

    def attend(self, layer, q, k_in, v_in, external, step, ops):
        return ops.split_attention(q, external.key, external.value, k_in, v_in, ext_len=external.length, scale=step.scale)


@blockscope.policy("empty")
class Empty:
    """Chooses nothing, so every key is read."""

    def choose(self, layer, q, keys, step):
        return None


@blockscope.strategy("my_static")
def static(scores, state):
    """The best positions by the schedule."""
    order = sorted(state.masked, key=lambda position: (-scores[position], position))
    return order[:min(state.quota, len(order))]


@blockscope.cache("my_dual")
class Dual:
    """Keys outside the block stay as of its first pass."""

    def rows(self, state):
        return range(state.length) if state.step == 1 else range(state.block_start, state.block_end)
