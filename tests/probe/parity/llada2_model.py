"""LLaDA2 MoE in float64, written from its rules: the judge of our forward pass, since transformers has no
such model. Rules: dFactory, `modeling_llada2_moe.py` (what each line follows is named there); nothing is
shared with the runtime, and no code with the official one.
"""

import types

import attention_math as am
import torch

EPS = 1e-6


def weight_shapes(spec):
    """Name -> shape of every tensor of the published layout."""
    hidden, head_dim = spec["hidden"], spec["head_dim"]
    heads, kv_heads = spec["heads"], spec["kv_heads"]
    shapes = {"model.word_embeddings.weight": (spec["vocab"], hidden), "model.norm.weight": (hidden,),
              "lm_head.weight": (spec["vocab"], hidden)}

    def swiglu(name, width):
        for part in ("gate_proj", "up_proj"):
            shapes[f"{name}.{part}.weight"] = (width, hidden)
        shapes[f"{name}.down_proj.weight"] = (hidden, width)

    for index in range(spec["layers"]):
        layer = f"model.layers.{index}"
        shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
        rows = (heads + 2 * kv_heads) * head_dim
        shapes[f"{layer}.attention.query_key_value.weight"] = (rows, hidden)
        shapes[f"{layer}.attention.dense.weight"] = (hidden, heads * head_dim)
        if spec["bias"]:
            shapes[f"{layer}.attention.query_key_value.bias"] = (rows,)
            shapes[f"{layer}.attention.dense.bias"] = (hidden,)
        shapes[f"{layer}.attention.query_layernorm.weight"] = (head_dim,)
        shapes[f"{layer}.attention.key_layernorm.weight"] = (head_dim,)
        if index < spec["dense_first"]:
            swiglu(f"{layer}.mlp", spec["intermediate"])
            continue
        shapes[f"{layer}.mlp.gate.weight"] = (spec["experts"], hidden)
        shapes[f"{layer}.mlp.gate.expert_bias"] = (spec["experts"],)
        for expert in range(spec["experts"]):
            swiglu(f"{layer}.mlp.experts.{expert}", spec["expert_width"])
        if spec["shared"]:
            swiglu(f"{layer}.mlp.shared_experts", spec["shared"] * spec["expert_width"])
    return {name: shape for name, shape in shapes.items()
            if not (spec["tied"] and name == "lm_head.weight")}


def config_json(spec, mask_id):
    """The keys of the published config.json."""
    return {
        "architectures": ["LLaDA2MoeModelLM"], "model_type": "llada2_moe", "hidden_act": "silu",
        "vocab_size": spec["vocab"], "hidden_size": spec["hidden"],
        "intermediate_size": spec["intermediate"], "num_hidden_layers": spec["layers"],
        "num_attention_heads": spec["heads"], "num_key_value_heads": spec["kv_heads"],
        "head_dim": spec["head_dim"], "max_position_embeddings": spec["positions"],
        "rms_norm_eps": EPS, "rope_theta": spec["theta"], "rope_scaling": spec["rope"],
        "partial_rotary_factor": spec["partial"], "rotary_dim": int(spec["head_dim"] * spec["partial"]),
        "tie_word_embeddings": spec["tied"], "use_qkv_bias": spec["bias"], "use_bias": spec["bias"],
        "first_k_dense_replace": spec["dense_first"], "moe_intermediate_size": spec["expert_width"],
        "num_experts": spec["experts"], "num_experts_per_tok": spec["per_token"],
        "num_shared_experts": spec["shared"] or None, "n_group": spec["groups"],
        "topk_group": spec["kept_groups"], "norm_topk_prob": True,
        "routed_scaling_factor": spec["scaling"], "score_function": "sigmoid", "router_dtype": "fp32",
        "moe_router_enable_expert_bias": True, "norm_head": False, "norm_softmax": False,
        "use_rmsnorm": True, "use_qk_norm": True, "using_split_qkv_in_self_attention": False,
        "num_nextn_predict_layers": 0, "torch_dtype": spec["dtype"], "use_sliding_window": False,
        "mask_token_id": mask_id, "block_length": spec["block_length"],
    } | {name: spec[name] for name in ("expert_capacity", "block_size", "delete_token_id", "split_token_id")
         if name in spec}


def _norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


class Llada2:
    def __init__(self, spec, state):
        self.spec = spec
        self.state = {name: tensor.double() for name, tensor in state.items()}

    def _linear(self, x, name):
        out = x @ self.state[f"{name}.weight"].T
        return out + self.state[f"{name}.bias"] if f"{name}.bias" in self.state else out

    def _swiglu(self, x, name):
        gate = self._linear(x, f"{name}.gate_proj")
        return self._linear(gate * torch.sigmoid(gate) * self._linear(x, f"{name}.up_proj"),
                            f"{name}.down_proj")

    def _rotate(self, x, positions):
        """The first head_dim * partial channels turn, in pairs half of them apart; x [heads, T, D]."""
        size = int(self.spec["head_dim"] * self.spec["partial"])
        half = size // 2
        frequency = self.spec["theta"] ** (-2.0 * torch.arange(half).double() / size)
        angle = positions.double()[:, None] * frequency
        a, b = x[..., :half], x[..., half:size]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(),
                          x[..., size:]], -1)

    def _attention(self, x, layer, positions, allowed):
        spec = self.spec
        heads, kv_heads, size = spec["heads"], spec["kv_heads"], spec["head_dim"]
        rows = self._linear(x, f"{layer}.attention.query_key_value")
        rows = rows.view(len(x), heads + 2 * kv_heads, size).transpose(0, 1)
        query, key, value = rows[:heads], rows[heads:heads + kv_heads], rows[heads + kv_heads:]
        query = _norm(query, self.state[f"{layer}.attention.query_layernorm.weight"])
        key = _norm(key, self.state[f"{layer}.attention.key_layernorm.weight"])
        query, key = self._rotate(query, positions), self._rotate(key, positions)
        out = am.attend(query, key, value, size ** -0.5, allowed)[0]
        return self._linear(out.transpose(0, 1).flatten(1), f"{layer}.attention.dense")

    def route(self, row, layer):
        """-> [(expert, weight)] of one position."""
        spec = self.spec
        score = torch.sigmoid(self.state[f"{layer}.mlp.gate.weight"] @ row)
        choice = (score + self.state[f"{layer}.mlp.gate.expert_bias"]).tolist()
        size = spec["experts"] // spec["groups"]
        groups = [range(g * size, (g + 1) * size) for g in range(spec["groups"])]
        best = lambda group: sum(sorted((choice[e] for e in group), reverse=True)[:2])
        kept = sorted(groups, key=best, reverse=True)[:spec["kept_groups"]]
        experts = sorted((e for group in kept for e in group), key=lambda e: choice[e], reverse=True)
        experts = experts[:spec["per_token"]]
        total = sum(float(score[e]) for e in experts) + 1e-20 if len(experts) > 1 else 1.0
        return [(e, float(score[e]) / total * spec["scaling"]) for e in experts]

    def route_blocks(self, x, layer):
        """LLaDA2.2: a block keeps the experts with the largest maximum over its rows -> one list for each row."""
        spec, routed = self.spec, []
        score = torch.sigmoid(x @ self.state[f"{layer}.mlp.gate.weight"].T)
        choice = score + self.state[f"{layer}.mlp.gate.expert_bias"]
        for begin in range(0, len(x), spec["block_size"]):
            best = choice[begin:begin + spec["block_size"]].max(0).values.tolist()
            ranked = sorted(range(len(best)), key=lambda e: -best[e])
            kept = ranked[:spec["expert_capacity"]]
            self._near(best, ranked, spec["expert_capacity"])
            for row in range(begin, min(begin + spec["block_size"], len(x))):
                mine = choice[row].tolist()
                chosen = sorted(kept, key=lambda e: -mine[e])
                self._near(mine, chosen, spec["per_token"])
                chosen = chosen[:spec["per_token"]]
                total = sum(float(score[row, e]) for e in chosen) + 1e-20
                routed.append([(e, float(score[row, e]) / total * spec["scaling"]) for e in chosen])
        return routed

    nearest = float("inf")  # how near a choice of experts ever was to another one

    def _near(self, value, ranked, count):
        if count < len(ranked):
            self.nearest = min(self.nearest, value[ranked[count - 1]] - value[ranked[count]])

    def _experts(self, x, layer, routed):
        rows = []
        by_block = self.route_blocks(x, layer) if self.spec.get("expert_capacity") else None
        for index, row in enumerate(x):
            chosen = by_block[index] if by_block else self.route(row, layer)
            routed.append(chosen)
            rows.append(sum(w * self._swiglu(row, f"{layer}.mlp.experts.{e}") for e, w in chosen))
        out = torch.stack(rows)
        return out + self._swiglu(x, f"{layer}.mlp.shared_experts") if self.spec["shared"] else out

    def __call__(self, ids, attention_mask, position_ids):
        """As transformers' models: ids [1, T], additive mask [1, 1, T, T] -> .logits [1, T, V] float32;
        .routed[layer] holds [(expert, weight)] of every position, nothing in dense layers."""
        allowed = attention_mask[0, 0] >= 0
        x = self.state["model.word_embeddings.weight"][ids[0]]
        everything = []
        for index in range(self.spec["layers"]):
            layer = f"model.layers.{index}"
            normed = _norm(x, self.state[f"{layer}.input_layernorm.weight"])
            x = x + self._attention(normed, layer, position_ids[0], allowed)
            normed = _norm(x, self.state[f"{layer}.post_attention_layernorm.weight"])
            routed = []
            dense = index < self.spec["dense_first"]
            x = x + (self._swiglu(normed, f"{layer}.mlp") if dense else
                     self._experts(normed, layer, routed))
            everything.append(routed)
        x = _norm(x, self.state["model.norm.weight"])
        head = self.state["model.word_embeddings.weight" if self.spec["tied"] else "lm_head.weight"]
        return types.SimpleNamespace(logits=(x @ head.T).float()[None], routed=everything)
