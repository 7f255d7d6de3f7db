"""LoSA (arXiv 2604.12056) as a policy: tokens whose queries hardly moved keep their attention over the prefix.

A block's first step reads every key. Later, the tokens whose queries moved most since the step before (mean squared
difference) read the prefix again, sparsely: the pages that Quest's bounds rank highest for one of them. All others
keep their pair (A_out, log-sum-exp).

    blockscope verify models/needle-2k --plugin docs/examples/losa.py --policy losa,k=64 --prompts prompts.jsonl
"""

import math

import torch

import blockscope


@blockscope.policy("losa", source="LoSA, arXiv 2604.12056")
class Losa:
    """The tokens that moved most read the best pages; the others keep their prefix attention."""

    def __init__(self, k: int = 64, page: int = 16, active: float = 0.25):
        self.k, self.page, self.active = k, page, active

    def attend(self, layer, q, k_in, v_in, external, step, ops):
        kept = step.memory.get(layer)
        if step.first or kept is None or external.key.shape[2] <= self.k:
            exact = ops.split_attention(q, external.key, external.value, k_in, v_in, ext_len=external.length,
                                        scale=step.scale)
            step.memory[layer] = {"q": q, "external": exact.external, "lse": exact.lse_external}
            return exact
        tokens = q.shape[2]
        moved = (q - kept["q"]).float().square().mean(dim=(0, 1, 3))
        active = moved.topk(math.ceil(self.active * tokens)).indices.sort().values
        index = self.pages(q[:, :, active], external, ops)
        read = ops.gather_attention(q[:, :, active], external.key, external.value, index, k_in, v_in,
                                    ext_len=external.length, scale=step.scale)
        kept["external"] = kept["external"].index_copy(2, active, read.external)
        kept["lse"] = kept["lse"].index_copy(2, active, read.lse_external)
        kept["q"] = q
        none = external.key[:, :, :0]
        block = ops.split_attention(q, none, none, k_in, v_in, scale=step.scale)
        return {"external": kept["external"], "lse_external": kept["lse"], "internal": block.internal,
                "lse_internal": block.lse_internal, "selected": index[0],
                "rows_scored": 2 * math.ceil(external.key.shape[2] / self.page)}

    def pages(self, q, external, ops):
        """The union, for each KV head, of the best pages of each active token: [1, K, n], padded with -1."""
        length = external.key.shape[2]
        bounds = ops.page_bounds(external.key, self.page)
        scores = ops.token_page_scores(q, bounds, self.page)  # [1, K, tokens, pages]
        best = scores.topk(min(math.ceil(self.k / self.page), scores.shape[-1])).indices[0].flatten(1)
        sets = [torch.unique(pages) for pages in best]
        keys = [(pages[:, None] * self.page + torch.arange(self.page, device=q.device)).flatten() for pages in sets]
        keys = [found[found < length].int() for found in keys]
        return torch.nn.utils.rnn.pad_sequence(keys, batch_first=True, padding_value=-1)[None]

    def selected_size(self, longest):
        return longest  # a union of several tokens' pages
