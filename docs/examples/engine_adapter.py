"""A serving engine's worker that records: two requests of different lengths share passes over a paged cache.

The wrapper and the operator have the names and arguments of FlashInfer's and vLLM's. A real worker adds the lines with
`run.`; docs/python.md says where, for SGLang and vLLM.

    python docs/examples/engine_adapter.py engine.h5
"""

import sys
import types

import blockscope
import torch
from torch.nn.functional import scaled_dot_product_attention

LAYERS, HEADS, KV_HEADS, DIM, VOCAB, MASK, BLOCK, PAGE = 2, 4, 2, 8, 50, 49, 4, 8
run, slots = None, None  # slots: where the pass's own keys go
caches = [torch.zeros(64, 2, PAGE, KV_HEADS, DIM) for _ in range(LAYERS)]  # FlashInfer's layout NHD


class BatchPrefillWithPagedKVCacheWrapper:
    def plan(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
             head_dim_qk, page_size, causal=False):
        self.rows = list(zip(qo_indptr.tolist(), qo_indptr[1:].tolist()))
        self.pages = paged_kv_indices.tensor_split(paged_kv_indptr[1:-1])
        self.lengths = ((paged_kv_indptr.diff() - 1) * page_size + paged_kv_last_page_len).tolist()

    def run(self, q, paged_kv_cache):
        out = []
        for (first, end), pages, length in zip(self.rows, self.pages, self.lengths):
            k, v = (paged_kv_cache[pages, i].flatten(0, 1)[:length].transpose(0, 1) for i in (0, 1))
            one = scaled_dot_product_attention(q[first:end].transpose(0, 1), k, v, enable_gqa=True)
            out.append(one.transpose(0, 1))
        return torch.cat(out)


wrapper = BatchPrefillWithPagedKVCacheWrapper()


@torch.library.custom_op("engine::unified_attention", mutates_args=())
def unified_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer_name: str) -> torch.Tensor:
    layer = int(layer_name.split(".")[1])
    for i, own in enumerate((key, value)):
        caches[layer][slots // PAGE, i, slots % PAGE] = own
    out = wrapper.run(query, caches[layer])
    run.attention(layer, query, key, value, cache=caches[layer].unbind(1), out=out)
    return out


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.config = types.SimpleNamespace(num_hidden_layers=LAYERS, num_attention_heads=HEADS, hidden_size=32,
                                            num_key_value_heads=KV_HEADS, head_dim=DIM, vocab_size=VOCAB)
        self.embed, self.place = torch.nn.Embedding(VOCAB, 32), torch.nn.Embedding(64, 32)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, (HEADS + 2 * KV_HEADS) * DIM) for _ in range(LAYERS))

    def forward(self, input_ids, positions):
        x = self.embed(input_ids) + self.place(positions)
        for i, layer in enumerate(self.layers):
            q, k, v = layer(x).unflatten(-1, (-1, DIM)).split([HEADS, KV_HEADS, KV_HEADS], 1)
            x = x + torch.ops.engine.unified_attention(q, k, v, f"layers.{i}.attn").flatten(1)
        return x @ self.embed.weight.T


@torch.no_grad()
def serve(path):
    global run, slots
    torch.manual_seed(0)
    model, free = Model(), torch.randperm(64)
    tokens = {"first": torch.tensor([*range(8)] + [MASK] * 8), "second": torch.tensor([30, 31, 32, 33] + [MASK] * 4)}
    pages, start = {"first": free[:2], "second": free[2:3]}, dict.fromkeys(tokens, 0)  # of the block that runs next
    with blockscope.record_engine(model, path, block_length=BLOCK, mask_token_id=MASK, force=True) as run:
        while tokens:
            names, spans = list(tokens), [slice(start[name], start[name] + BLOCK) for name in tokens]
            input_ids = torch.cat([tokens[name][span] for name, span in zip(names, spans)])
            positions = torch.cat([torch.arange(span.start, span.stop) for span in spans])
            used = [pages[name][:(span.stop - 1) // PAGE + 1] for name, span in zip(names, spans)]
            slots = torch.cat([own[-1:].expand(BLOCK) for own in used]) * PAGE + positions % PAGE
            indptr = torch.arange(0, len(input_ids) + 1, BLOCK)
            wrapper.plan(indptr, torch.tensor([0, *map(len, used)]).cumsum(0), torch.cat(used),
                         torch.tensor([(span.stop - 1) % PAGE + 1 for span in spans]), HEADS, KV_HEADS, DIM, PAGE)
            with run.batch(names, input_ids, positions, indptr.diff(), pages=used):
                logits = model(input_ids, positions)
                run.logits(logits)
            for name, span, rows in zip(names, spans, logits.split(BLOCK)):
                best = rows[:, :MASK].softmax(-1).max(-1)
                masks = tokens[name][span] == MASK
                if masks.any():  # the surest mask gets its token
                    surest = torch.where(masks, best.values, -1).argmax()
                    tokens[name][span.start + surest] = best.indices[surest]
                    continue
                start[name] = span.stop  # a part of the prompt, or a commit
                if span.stop == len(tokens[name]):
                    run.end_sequence(name, tokens.pop(name))


if __name__ == "__main__":
    serve(sys.argv[1] if len(sys.argv) > 1 else "engine.h5")
