"""Puts one mistake after another into the device kernels and checks that the tests in the emulator catch it.

    python tests/kernels/mutate_device_kernels.py [--build build/release] [--only NAME] [--list]
        [--within SECONDS [--turn N]]

A mistake takes half a minute, all take an hour: the test `kernels.mutations` runs those that fit into --within, each
day from another one on. A mistake is a replacement of one place in a kernel's source, made in a copy; only the file
that includes it is compiled again, and linked with the test programs of the build, which must be built
(cmake --build --preset release). Prints caught, or SURVIVED, and by which program; exit status 1 if one survived that
EQUIVALENT does not name.
"""

import argparse
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPLIT, SMALL = "split_attention_emulated.cpp", "small_operators_emulated.cpp"
SPREAD, SPREADS = "weight_spread_emulated.cpp", ["weight_spread"]
TILES = ["split_attention"]
FLOATS = ["split_attention", "prefill_attention"]
# Name, file, old, new, what is compiled again, test programs. `old` must occur in the file once.
MISTAKES = [
    # The pipeline.
    ("no barrier after the wait", "split_tile_device.cuh",
     "    __syncthreads();  // all threads see the tile, and the previous tile's place is free\n", "", SPLIT, TILES),
    ("the wait one group short", "split_tile_device.cuh", "copy_async_wait<Shape::kStages - 2>();",
     "copy_async_wait<Shape::kStages - 1>();", SPLIT, TILES),
    ("empty groups not committed", "split_tile_device.cuh",
     "    }\n    copy_async_commit();  // also an empty group, because waits count groups\n", "      copy_async_commit();\n    }\n",
     SPLIT, TILES),
    ("the next tile over the current one", "split_tile_device.cuh", "bring(tile + Shape::kStages - 1);",
     "bring(tile + Shape::kStages);", SPLIT, TILES),
    ("no barrier before the span is read", "split_attention_device.cuh",
     "  __syncthreads();  // all threads see the span\n", "", SPLIT, TILES),
    ("inactive warps pass by the barrier", "split_tile_device.cuh", "    copy_async_wait<Shape::kStages - 2>();\n",
     "    if (!works(tile * Shape::kKeys)) continue;\n    copy_async_wait<Shape::kStages - 2>();\n", SPLIT, TILES),
    # Tiles, tails and masks.
    ("a key behind the end", "split_tile_device.cuh", "const bool present = key < span.end;",
     "const bool present = key <= span.end;", SPLIT, TILES),
    ("the mask one key late", "split_tile_device.cuh", "n * 8 + first_column + i >= present) score",
     "n * 8 + first_column + i > present) score", SPLIT, TILES),
    ("the mask forgets the step", "split_tile_device.cuh", "tile * Shape::kKeys + step, left - step);",
     "tile * Shape::kKeys + step, left);", SPLIT, TILES),
    ("a tail of channels read", "split_tile_device.cuh", "left < 0 ? 0 : left < 8 ? left : 8", "left < 0 ? 0 : 8", SPLIT,
     TILES),
    ("values before their keys' stride", "split_tile_device.cuh",
     "span.values, span.value_stride, span,", "span.values, span.key_stride, span,", SPLIT, TILES),
    ("chunks one key short", "split_span_device.cuh", "const int64_t end = begin + size;",
     "const int64_t end = begin + size - 1;", SPLIT, TILES),
    ("rows of another KV head", "split_attention_device.cuh",
     "const int head = place.kv_head * call.group + row / call.queries;",
     "const int head = place.kv_head + row / call.queries;", SPLIT, TILES),
    ("a last row missing", "split_attention_device.cuh",
     "      const int row = warp_row + t * 16 + half * 8 + lane / 4;\n      if (row >= rows) continue;",
     "      const int row = warp_row + t * 16 + half * 8 + lane / 4;\n      if (row >= rows - 1) continue;", SPLIT, TILES),
    # Fragments.
    ("halves of the right factor swapped", "split_tile_device.cuh",
     "multiply_add(scores[t][n * 2], a[t], b[0], b[1], typename", "multiply_add(scores[t][n * 2], a[t], b[1], b[0], typename",
     SPLIT, TILES),
    ("key pairs swapped", "split_tile_device.cuh",
     "multiply_add(scores[t][n * 2 + 1], a[t], b[2], b[3], typename",
     "multiply_add(scores[t][n * 2 + 1], a[t], b[0], b[1], typename", SPLIT, TILES),
    ("weights in the wrong half", "split_tile_device.cuh", "weights[t][kk * 2 + i / 2][i % 2 * 2];",
     "weights[t][kk * 2 + i % 2][i / 2 * 2];", SPLIT, TILES),
    ("values not transposed", "split_tile_device.cuh", "load_matrix_x4_transposed(b,", "load_matrix_x4(b,", SPLIT, TILES),
    ("no low half of the weights", "split_tile_device.cuh",
     "        multiply_add(state.output[t][n * 2], low[t], b[0], b[1], Scalar{});\n", "", SPLIT, TILES),
    ("the pieces not rotated", "split_tile_device.cuh", "((piece ^ (row & 7)) << 4)", "(piece << 4)", SPLIT, TILES),
    # The running maximum.
    ("outputs not rescaled", "split_tile_device.cuh", "state.output[t][n][i] *= factors[t][i / 2];", ";", SPLIT, TILES),
    ("sums not rescaled", "split_tile_device.cuh", "float sum = state.sum[t][half] * factors[t][half];",
     "float sum = state.sum[t][half];", SPLIT, TILES),
    ("rescaled by the other row", "split_tile_device.cuh", "*= factors[t][i / 2];", "*= factors[t][1 - i / 2];", SPLIT,
     TILES),
    ("a maximum of half the lanes", "split_tile_device.cuh",
     "      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));\n", "", SPLIT, TILES),
    ("the vote without its return", "split_tile_device.cuh",
     "  if (!__any_sync(~0u, moved)) return;  // all factors are 1\n", "  __any_sync(~0u, moved);\n", SPLIT, TILES),
    ("a lane returns alone", "split_tile_device.cuh", "if (!__any_sync(~0u, moved)) return;", "if (!moved) return;", SPLIT,
     TILES),
    ("no shift where all is -inf", "split_tile_device.cuh",
     "const float shift = largest == -INFINITY ? 0.0f : largest;\n      factors", "const float shift = largest;\n      factors",
     SPLIT, TILES),
    # The merge and the snapshot.
    ("the last chunk left out", "split_attention_device.cuh", "for (int chunk = 0; chunk < chunks; ++chunk) {",
     "for (int chunk = 0; chunk + 1 < chunks; ++chunk) {", SPLIT, TILES),
    ("weights of the next chunk", "split_attention_device.cuh", "__shfl_sync(~0u, weight, chunk);",
     "__shfl_sync(~0u, weight, chunk + 1);", SPLIT, TILES),
    ("sums without their weights", "split_attention_device.cuh", "lane < chunks ? weight * sum : 0.0f",
     "lane < chunks ? sum : 0.0f", SPLIT, TILES),
    ("no snapshot of the external lse", "split_attention_device.cuh", "    call.lse_external[row] = lses[0];\n", "", SPLIT,
     TILES),
    ("the snapshot behind the boundary", "split_attention_device.cuh",
     "call.external[row * call.dim + d] = parts[0][n];", "call.external[row * call.dim + d] = merged[n];", SPLIT, TILES),
    ("the internal side's chunk off by one", "split_attention_device.cuh",
     "first + call.max_chunks * stride", "first + (call.max_chunks - 1) * stride", SPLIT, TILES),
    ("parts not weighed", "merge_device.cuh", "const float weight = live == 1 ? 1.0f : expf(lses[i] - largest);",
     "const float weight = 1.0f;", SPLIT, TILES),
    ("an empty part counts", "merge_device.cuh",
     "    if (lses[i] == -INFINITY) continue;\n    const float weight", "    const float weight", SPLIT,
     ["split_attention", "reuse_attention", "gather_attention"]),
    ("cached pairs of another head", "split_span_device.cuh",
     "call.reuse[static_cast<int64_t>(sequence) * call.heads + head] ? -1",
     "call.reuse[static_cast<int64_t>(sequence) * call.heads + head / call.group] ? -1", SPLIT, ["reuse_attention"]),
    ("refreshed rows in places of their own", "split_attention_device.cuh", "finish_row<kDim>(call, first + place, stride",
     "finish_row<kDim>(call, first + head % call.group * call.queries + t, stride", SPLIT, ["reuse_attention"]),
    ("refreshed rows of another sequence", "split_span_device.cuh", "return call.rows + head * (", "return call.rows + 0 * (",
     SPLIT, ["reuse_attention"]),
    ("queries not in the order of the refreshed rows", "split_attention_device.cuh",
     "return place.order == nullptr ? at : place.order[at];", "return at;", SPLIT, ["reuse_attention"]),
    ("all blocks of rows read for the refreshed ones", "split_attention_device.cuh", "    place.end_row = rows[0];\n", "",
     SPLIT, ["reuse_attention"]),
    ("the spread of partly refreshed heads", "weight_spread_device.cuh", "head, t) < 0) return true;",
     "head, t) < 0) return false;", SPREAD, SPREADS),
    ("a reused head's prefix read", "split_span_device.cuh", "  return 0;\n}", "  return length;\n}", SPLIT,
     ["reuse_attention"]),
    ("dense sequences through positions", "split_span_device.cuh", "if (count >= 0) length = count;",
     "length = count;", SPLIT, ["gather_attention"]),
    ("the residual not loaded", "split_attention_device.cuh", "    lses[2] = call.lse_residual[row];\n", "", SPLIT,
     ["gather_attention"]),
    # float32 tiles.
    ("floats: no barrier before the next tile", "split_floats_device.cuh",
     "    __syncthreads();  // before the tile is overwritten\n", "", SPLIT, FLOATS),
    ("floats: weights not yet seen", "split_floats_device.cuh", "    __syncwarp();\n", "", SPLIT, FLOATS),
    ("floats: keys overwritten while read", "split_floats_device.cuh",
     "    if constexpr (Tile::kWeightsOverKeys) __syncthreads();  // all threads have read the keys\n", "", SPLIT, FLOATS),
    ("floats: no rescale", "split_floats_device.cuh", "state.output[r][n] *= factor;", ";", SPLIT, FLOATS),
    ("prefill: the block's end one short", "prefill_device.cuh", "/ call.block_length + 1) * call.block_length;",
     "/ call.block_length + 1) * call.block_length - 1;", SMALL, ["prefill_attention"]),
    ("prefill: rows of the tile see its last", "prefill_device.cuh",
     "visible_end(call, length, first + warp_row + r) : 0;", "span.end : 0;", SMALL, ["prefill_attention"]),
    ("prefill: no mask within a warp", "prefill_device.cuh", "if (key + Shape::kStep <= common_end) return",
     "if (key <= common_end) return", SMALL, ["prefill_attention"]),
    ("prefill: a warp stops a step early", "prefill_device.cuh", "return key < warp_end;",
     "return key + Shape::kStep < warp_end;", SMALL, ["prefill_attention"]),
    ("prefill: the ends of other rows", "prefill_device.cuh", "[warp_row + t * 16 + half * 8 + lane / 4] - key;",
     "[warp_row + t * 16 + half * 8 + lane % 4] - key;", SMALL, ["prefill_attention"]),
    ("prefill: no barrier before the ends are read", "prefill_device.cuh",
     "  __syncthreads();  // all threads see the span and the ends\n", "", SMALL, ["prefill_attention"]),
    ("prefill: heads before tokens", "prefill_device.cuh", "return (first + row) / call.group; };",
     "return (first + row) % call.queries; };", SMALL, ["prefill_attention"]),
    ("prefill: sums of one lane", "prefill_device.cuh", "      sum += __shfl_xor_sync(~0u, sum, 2);\n", "", SMALL,
     ["prefill_attention"]),
    ("prefill: rows behind the last stored", "prefill_device.cuh", "      if (row > last) continue;\n", "", SMALL,
     ["prefill_attention"]),
    # Rows between the products.
    ("rows: a tail of another row", "row_ops_device.cuh", "return i < left ? to_float(from[i]) : 0.0f;",
     "return to_float(from[i]);", SMALL, ["row_ops"]),
    ("rows: written behind the tail", "row_ops_device.cuh", "if (i < left) to[i] =", "to[i] =", SMALL, ["row_ops"]),
    ("rows: halves of a word swapped", "row_ops_device.cuh", "pack_pair(value(i * 2), value(i * 2 + 1), Scalar{})",
     "pack_pair(value(i * 2 + 1), value(i * 2), Scalar{})", SMALL, ["row_ops"]),
    ("rows: the second piece of a table", "row_ops_device.cuh", "reinterpret_cast<const float4*>(from)[piece];",
     "reinterpret_cast<const float4*>(from)[0];", SMALL, ["row_ops"]),
    ("norm: one lane's sum", "row_ops_device.cuh", "  value = warp_sum(value);\n", "", SMALL, ["row_ops"]),
    ("norm: no barrier before the warps' sums", "row_ops_device.cuh", "    __syncthreads();\n", "", SMALL, ["row_ops"]),
    ("norm: rounded at the other place", "row_ops_device.cuh", "(weight_first ? unit : rounded<Scalar>(unit))",
     "(weight_first ? rounded<Scalar>(unit) : unit)", SMALL, ["row_ops"]),
    ("norm: of x, not of the sum", "row_ops_device.cuh", "    x = sum;  // each thread reads what it has written\n", "",
     SMALL, ["row_ops"]),
    ("turn: the sign", "row_ops_device.cuh", "-high[i] * sines[i]", "high[i] * sines[i]", SMALL, ["row_ops"]),
    ("turn: cosines of the first half", "row_ops_device.cuh",
     "load_table(cos + column + half, left);", "load_table(cos + column, left);", SMALL, ["row_ops"]),
    ("turn: products not rounded", "row_ops_device.cuh", "return rounded<Scalar>(a) + rounded<Scalar>(b);", "return a + b;",
     SMALL, ["row_ops"]),
    ("turn: rows of the first tensor", "row_ops_device.cuh", "  if (second) row -= call.parts[0].rows;\n", "", SMALL,
     ["row_ops"]),
    ("turn: the table of the first sequence", "row_ops_device.cuh", "row_at<Table>(call.sin, sequence, 0, token)",
     "row_at<Table>(call.sin, 0, 0, token)", SMALL, ["row_ops"]),
    ("turn: channels that stay, not normed", "row_ops_device.cuh",
     "load(at, rest - column));", "load_chunk(x + at, rest - column, aligned));", SMALL, ["row_ops"]),
    ("gate: not rounded between", "row_ops_device.cuh", "rounded<Scalar>(gates[i] / (expf(-gates[i]) + 1.0f))",
     "(gates[i] / (expf(-gates[i]) + 1.0f))", SMALL, ["row_ops"]),
    ("gate: the gate for both", "row_ops_device.cuh", "numbered_row<Scalar>(call.up,", "numbered_row<Scalar>(call.gate,", SMALL,
     ["row_ops"]),
    # The others.
    ("select: ties not in order", "top_k_device.cuh", "~static_cast<uint32_t>(first + j);",
     "static_cast<uint32_t>(first + j);", SMALL,
     ["block_topk"]),
    ("select: one equal too many", "top_k_device.cuh", "equals < left) entries", "equals <= left) entries", SMALL,
     ["block_topk"]),
    ("select: no barrier before the bins", "top_k_device.cuh",
     "shared.bins[i] = 0;\n    __syncthreads();\n", "shared.bins[i] = 0;\n", SMALL, ["block_topk"]),
    ("select: a bin too far", "top_k_device.cuh", "while (above + shared.bins[bin] < left)",
     "while (above + shared.bins[bin] <= left)", SMALL, ["block_topk"]),
    ("select: sums overwritten", "top_k_device.cuh",
     "    equal += all >> 16;\n    __syncthreads();  // before the sums are overwritten\n", "    equal += all >> 16;\n", SMALL,
     ["block_topk"]),
    ("means: sums overwritten", "top_k_device.cuh",
     "    }\n    __syncthreads();  // before the sums are overwritten\n  }\n}", "    }\n  }\n}", SMALL, ["block_topk"]),
    ("mean tiles: rows that are not there", "mean_tile_device.cuh", "if (t * 16 + half * 8 < own_rows) sum += weight;",
     "sum += weight;", SMALL, ["mean_tiles"]),
    ("mean tiles: the last warp left out", "mean_tile_device.cuh", "w < Shape::kWarps; ++w) total", "w + 1 < Shape::kWarps; ++w) total",
     SMALL, ["mean_tiles"]),
    ("mean tiles: half of the rows of a warp", "mean_tile_device.cuh", "          sum += __shfl_xor_sync(~0u, sum, 8);\n", "",
     SMALL, ["mean_tiles"]),
    ("mean tiles: queries overwritten", "mean_tile_device.cuh",
     "    __syncthreads();  // before the queries", "    // before the queries", SMALL, ["mean_tiles"]),
    ("mean tiles: keys not waited for", "key_tile_device.cuh", "copy_async_wait<Shape::kStages - 2>();",
     "copy_async_wait<Shape::kStages - 1>();", SMALL, ["mean_tiles"]),
    # WeightSpread.
    ("spread: no barrier after the wait", "key_tile_device.cuh",
     "    __syncthreads();  // all threads see the tile, and the previous tile's place is free\n", "", SPREAD, SPREADS),
    ("spread: a key after the end", "weight_spread_device.cuh", "row < rows.count && key < left", "row < rows.count",
     SPREAD, SPREADS),
    ("spread: rows that are not there", "weight_spread_device.cuh", "row < rows.count && key < left", "key < left", SPREAD,
     SPREADS),
    ("spread: energy of -inf", "weight_spread_device.cuh", "weight == 0.0f ? 0.0f : weight * level", "weight * level",
     SPREAD, SPREADS),
    ("spread: the share left out", "weight_spread_device.cuh", "return weight * row.share;", "return weight;", SPREAD,
     SPREADS),
    ("spread: a range one key long", "weight_spread_device.cuh", "key >= first_key && key < end_key",
     "key >= first_key && key <= end_key", SPREAD, SPREADS),
    ("spread: a range not closed at its end", "weight_spread_device.cuh", "if (end <= from) close();",
     "if (end < from) close();", SPREAD, SPREADS),
    ("spread: the last ranges not written", "weight_spread_device.cuh", "while (range < ranges) close();", ";", SPREAD,
     SPREADS),
    ("spread: a sum goes on", "weight_spread_device.cuh", "    sum = 0.0f;\n  }", "  }", SPREAD, SPREADS),
    ("spread: offsets not cleared", "weight_spread_device.cuh", "inside[keys + i] = 0.0f;", ";", SPREAD, SPREADS),
    ("spread: an offset too far", "weight_spread_device.cuh", "inside + keys + keys - 1 - place", "inside + keys + keys - place",
     SPREAD, SPREADS),
    ("spread: places of the first part", "weight_spread_device.cuh", "? rows.first + r : call.places[rows.first + r];",
     "? r : call.places[r];", SPREAD, SPREADS),
    ("spread: rows of the first part", "weight_spread_device.cuh", "present ? from.first + r : 0)", "present ? r : 0)", SPREAD,
     SPREADS),
    ("spread: halves of a tile swapped", "weight_spread_device.cuh", "tile + (half * 8 + lane / 4) *",
     "tile + ((1 - half) * 8 + lane / 4) *", SPREAD, SPREADS),
    ("spread: no barrier before the weights are read", "weight_spread_device.cuh",
     "    __syncwarp();  // all lanes see the weights, and at first the cleared sums\n    add_inside", "    add_inside", SPREAD,
     SPREADS),
    ("spread: rows of an offset not in turn", "weight_spread_device.cuh",
     "    __syncwarp();  // the next row adds to the same offsets from other lanes\n", "", SPREAD, SPREADS),
    ("spread: energy of half the lanes", "weight_spread_device.cuh",
     "    energy += __shfl_xor_sync(~0u, energy, 2);\n", "", SPREAD, SPREADS),
    ("spread: floats overwritten while read", "weight_spread_device.cuh",
     "    __syncthreads();  // before the tile is overwritten\n", "", SPREAD, SPREADS),
    ("spread: ends of a set by number", "weight_spread_device.cuh", "if (positions[middle] < end) {",
     "if (middle < end) {", SPREAD, SPREADS),
    ("spread: a set's range takes its end", "weight_spread_device.cuh", "if (positions[middle] < end) {",
     "if (positions[middle] <= end) {", SPREAD, SPREADS),
    ("spread: sides not shifted to all keys", "weight_spread_device.cuh",
     "share * (entropy[side] - (lses[side] - lse))", "share * entropy[side]", SPREAD, SPREADS),
    ("spread: no barrier before the warps' sums", "weight_spread_device.cuh", "  __syncthreads();\n  const auto mean",
     "  const auto mean", SPREAD, SPREADS),
    ("spread: the last chunk left out", "weight_spread_device.cuh", "chunk < chunks; ++chunk) {\n        total",
     "chunk + 1 < chunks; ++chunk) {\n        total", SPREAD, SPREADS),
    ("spread: reused heads known", "weight_spread_device.cuh", "float total = reused ? NAN : 0.0f;", "float total = 0.0f;", SPREAD,
     SPREADS),
    ("positions: twice is not seen", "row_device.cuh", "& bit) != 0) {", "& bit) == 2) {", SMALL, ["gather_attention"]),
    ("positions: behind the length", "row_device.cuh", "if (left < 32) value &=", "if (left < 0) value &=", SMALL,
     ["gather_attention"]),
    ("pages: NaN lost", "page_device.cuh", "(value <= most || most != most)", "!(value > most)", SMALL, ["page_scores"]),
    ("pages: the last key left out", "page_device.cuh", "key < end; ++key) {", "key + 1 < end; ++key) {", SMALL,
     ["page_scores"]),
    ("merge: a part without keys", "row_device.cuh", "      if (lse == -INFINITY) continue;\n", "", SMALL,
     ["merge_attention"]),
    ("join: sums not rescaled", "join_device.cuh", "state.total[r] = state.total[r] * factor +",
     "state.total[r] = state.total[r] +", SMALL, ["library_attention"]),
    ("join: outputs not rescaled", "join_device.cuh", "state.output[r][n] *= factor;", ";", SMALL,
     ["library_attention"]),
    ("join: the last key left out", "join_device.cuh", "key < count; ++key) {", "key + 1 < count; ++key) {", SMALL,
     ["library_attention"]),
    ("join: heads that reuse take the library's pair", "join_device.cuh", "joined_head(call, kv_head, in_group), 0) < 0) {",
     "joined_head(call, kv_head, in_group), 0) < -1) {", SMALL, ["library_attention"]),
    ("join: unread keys counted", "join_device.cuh", "prefix_length(call, sequence, kv_head);",
     "call.lengths[sequence];", SMALL, ["library_attention"]),
    ("join: the keys overwritten", "join_device.cuh", "first += kJoinKeys) {", "first += kJoinKeys - 1) {", SMALL,
     ["library_attention"]),
    ("similarity: zero rows", "row_device.cuh", "zero ? 0.0f : static_cast", "false ? 0.0f : static_cast", SMALL,
     ["cross_step_similarity"]),
]
# The results are the same, so no test can fail; with the reason.
EQUIVALENT = {
    "the vote without its return": "it only skips a multiplication by 1",
    "a lane returns alone": "its rows' factors are 1, and the lanes meet again at the next ldmatrix",
}


def compile_command(build, source):
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if entry["file"].endswith(f"kernels/cuda/{source}"):
            return entry["command"].split(), entry["directory"]
    sys.exit(f"{build}/compile_commands.json: expected {source}, found none. HINT: cmake --preset release")


def compile_copy(build, source, copy, output):
    """Compiles `source` with the headers of `copy` before those of the repository."""
    command, folder = compile_command(build, source)
    if f"-I{ROOT}" not in command:
        sys.exit(f"{build}: expected a build of {ROOT}, found one of another folder, whose headers would hide the mistakes")
    command = [str(copy / "kernels/cuda" / source) if part.endswith(f"kernels/cuda/{source}") else part for part in command]
    command[command.index("-o") + 1] = str(output)
    command = [f"-I{copy}" if part == f"-I{ROOT}" else "-O1" if part == "-O3" else part for part in command]
    command = [part for part in command if not part.startswith("-W")] + ["-w"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def link(build, test, objects, output):
    """The link of a test program, with our objects before the archive that has the same."""
    commands = subprocess.run(["ninja", "-C", build, "-t", "commands", f"test_{test}_device"], capture_output=True,
                              text=True, check=True).stdout.splitlines()
    command = commands[-1].replace(f"-o tests/test_{test}_device", f"-o {output} {' '.join(map(str, objects))}")
    done = subprocess.run(command.removeprefix(": && ").removesuffix(" && :"), shell=True, cwd=build, capture_output=True,
                          text=True)
    if done.returncode != 0:
        sys.exit(f"link of test_{test}_device: {done.stderr[-2000:]}")


def run_test(program, build):
    """Empty if all passed, else what failed first."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", GTEST_BREAK_ON_FAILURE="0",
                       LD_LIBRARY_PATH=f"{build}/lib")
    try:
        done = subprocess.run([program, "--gtest_fail_fast", "--gtest_brief=1"], cwd=ROOT, capture_output=True, text=True,
                              errors="replace", env=environment, timeout=300)
    except subprocess.TimeoutExpired:
        return "no end after 300 s"
    if done.returncode == 0:
        return ""
    failed = re.search(r"\[  FAILED  \] ([^\s,]+)", done.stdout)
    return failed[1] if failed else f"exit status {done.returncode}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--only", default="", help="mistakes whose name holds this")
    parser.add_argument("--part", default="1/1", help="2/3: the second third of them")
    parser.add_argument("--within", type=float, default=math.inf, help="seconds after which no other mistake is begun")
    parser.add_argument("--turn", type=int, default=int(time.time() / 86400),
                        help="where --within begins (default: the number of the day)")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    options.build = options.build.resolve()
    chosen = [mistake for mistake in MISTAKES if options.only in mistake[0]]
    part, parts = map(int, options.part.split("/"))
    chosen = chosen[part - 1::parts]
    if options.within < math.inf:  # a step that reaches every mistake, however few fit
        step = next(n for n in range(3, 3 + len(MISTAKES)) if math.gcd(n, len(chosen)) == 1)
        begin = options.turn * step % len(chosen)
        chosen = chosen[begin:] + chosen[:begin]
    if options.list:
        print("\n".join(f"{name}: {file}" for name, file, *_ in chosen))
        return 0
    for name, file, old, *_ in MISTAKES:
        found = (ROOT / "kernels/cuda" / file).read_text().count(old)
        if found != 1:
            sys.exit(f"{name}: expected its text once in {file}, found it {found} times: {old!r}")
    begun, longest, survivors, count = time.monotonic(), 0.0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, file, old, new, source, tests in [("no mistake", "", "", "", chosen[0][4], []), *chosen]:
            before = time.monotonic()
            if count and before - begun + longest > options.within:
                break
            shutil.rmtree(folder / "kernels", ignore_errors=True)
            shutil.copytree(ROOT / "kernels", folder / "kernels")
            if not tests:
                tests = chosen[0][5] if options.within < math.inf else sorted(
                    {test for mistake in chosen for test in mistake[5]})
            else:
                place = folder / "kernels/cuda" / file
                place.write_text(place.read_text().replace(old, new))
            done = compile_copy(options.build, source, folder, folder / "mutant.o")
            if done.returncode != 0:
                sys.exit(f"{name}: does not compile:\n{done.stderr[-3000:]}")
            verdict = ""
            for test in tests:
                link(options.build, test, [folder / "mutant.o"], folder / "test")
                verdict = run_test(folder / "test", options.build)
                if verdict:
                    verdict = f"{test}: {verdict}"
                    break
            if not file:
                if verdict:
                    sys.exit(f"without a mistake, {verdict}")
                continue
            count, longest = count + 1, max(longest, time.monotonic() - before)
            if verdict:
                print(f"caught    {name:42s} {verdict}", flush=True)
            elif name in EQUIVALENT:
                print(f"equal     {name:42s} {EQUIVALENT[name]}", flush=True)
            else:
                survivors += 1
                print(f"SURVIVED  {name}", flush=True)
    print(f"{count} of {len(chosen)} mistakes, {survivors} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
