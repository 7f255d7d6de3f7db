"""A model of two layers around nn.MultiheadAttention, and what its trace must hold: float64 recomputation of each
layer's input, its weights and masks."""

import h5py
import numpy as np
import torch
from torch import nn

from recording_checks import check_array, split

HEADS, WIDTH, BLOCK, LENGTH, MASK = 4, 32, 8, 21, 59
IDS = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, *[MASK] * BLOCK],
                    [9, 5, 3, 4, 8, 6, 7, 8, 1, 10, 2, 12, 40, *[MASK] * BLOCK]])
OPTIONS = dict(block_length=BLOCK, mask_token_id=MASK, array_type="f32", set_size=3)


class Block(nn.Module):
    def __init__(self, attend, **options):
        super().__init__()
        self.mha, self.attend = nn.MultiheadAttention(WIDTH, HEADS, **options), attend
        with torch.no_grad():
            for parameter in self.mha.parameters():
                parameter.normal_(std=0.3)

    def forward(self, x):
        return x + self.attend(self.mha, x)


class Model(nn.Module):
    def __init__(self, attend, layers=2, **options):
        super().__init__()
        torch.manual_seed(4)
        self.config = type("Config", (), dict(num_hidden_layers=layers, hidden_size=WIDTH, vocab_size=60,
                                              num_attention_heads=HEADS, num_key_value_heads=HEADS))()
        self.embed, self.place = nn.Embedding(60, WIDTH), nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(Block(attend, **options) for _ in range(layers))
        self.inputs = []

    def forward(self, input_ids):
        x = self.embed(input_ids) + self.place.weight[:input_ids.shape[1]]
        self.inputs = []
        for layer in self.layers:
            self.inputs.append(x.detach().double().numpy())
            x = layer(x)
        return x @ self.embed.weight.T


def heads_of(x, weight, bias):
    """[T, E] -> [H, T, D]"""
    rows = x @ weight.detach().double().numpy().T + (0 if bias is None else bias.detach().double().numpy())
    return rows.reshape(len(x), HEADS, -1).transpose(1, 0, 2)


def check(path, model, change, heads=range(HEADS)):
    inside = np.arange(LENGTH) >= LENGTH - BLOCK
    with h5py.File(path) as file:
        for row in range(len(IDS)):
            for index, layer in enumerate(model.layers):
                mha = getattr(layer, "mha", layer)
                weights = mha.in_proj_weight.chunk(3) if mha.in_proj_weight is not None else [
                    mha.q_proj_weight, mha.k_proj_weight[:, :WIDTH], mha.v_proj_weight[:, :WIDTH]]
                biases = [None] * 3 if mha.in_proj_bias is None else mha.in_proj_bias.chunk(3)
                q, k, v = (heads_of(model.inputs[index][row], *both) for both in zip(weights, biases))
                expected = split(q[:, -BLOCK:], k, v, inside, lambda scores, head: change(scores, head, row))
                for name, value in zip(("external", "lse_external", "internal", "lse_internal"), expected):
                    check_array(name, file["/attention/" + name][row, index], value[heads], 2e-5)


HIDDEN = torch.arange(LENGTH * LENGTH).view(LENGTH, LENGTH) % 7 == 0


def nothing(scores, head, row):
    return scores


def hidden(scores, head, row):
    return np.where(HIDDEN[-BLOCK:], -np.inf, scores)
