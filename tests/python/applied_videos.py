"""Continuous video models and calibration files for the tests of blockscope.apply and blockscope.compare."""

import json

import numpy as np
import torch
import video_models as models
import wan_like_models as wan

STEPS = range(1, 5)  # from 0; the last one is the clean pass
SHAPES = {"rolling": models.Shape(), "whole": models.Shape(window=0, sinks=0), "in place": models.Shape(in_place=True)}


def made(kind, name):
    shape = SHAPES[name]
    model, loop = {"causal": (models.CausalVideoModel, models.causal_loop),
                   "wan": (wan.WanLikeModel, wan.wan_like_loop)}[kind]
    return model(shape), loop, shape


def masks_of(shape, seed):
    """(layer, step from 0) -> [H], true: the head recomputes. One layer recomputes everything, one nothing."""
    generator = np.random.default_rng(seed)
    masks = {(layer, step): generator.random(shape.heads) < 0.4 for layer in range(shape.layers) for step in STEPS}
    for step in STEPS:
        masks[0, step], masks[1, step] = np.ones(shape.heads, bool), np.zeros(shape.heads, bool)
    return masks


def file_of(path, shape, masks):
    """Steps count from 1 there."""
    reuse = [[(~masks[layer, step]).tolist() for layer in range(shape.layers)] for step in STEPS]
    content = {"format": "blockscope-reuse", "format_version": 2, "reuse": reuse,
               "model": {"layers": shape.layers, "heads": shape.heads, "digest": "0" * 64},
               "step_ranges": [[1, 2], [3, 3], [4, 4], [5, None]]}
    path.write_text(json.dumps(content))
    return path
