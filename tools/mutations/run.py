#!/usr/bin/env python3
"""Plants bugs in copies of the CUDA kernels and reports which emulated test caught each.

  tools/mutations/run.py                    # all, plain build
  tools/mutations/run.py --only barrier     # those with the word in their name
  tools/mutations/run.py --kind all         # what a plain run need not see again in asan, then in tsan

A mutation is a textual substitution in one source (MUTATIONS here and in the files beside); one that no longer matches is an error,
so that the table follows the code. Exit code 1 if a bug survives. Needs g++, GoogleTest and CUDA's headers, no GPU. What needs LibTorch is
linked.py's.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from family import ROOT, Family
from pairs import PAIRS
from pooling import FOCUS_POOL
from recall import POLYNOMIAL
from scans import SCANS
from step import ADAMW, STEP

FLAGS = {
    "plain": "-O1 -g0",
    "asan": "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined",
    "tsan": "-O1 -g -fsanitize=thread",
}

TESTS_OF = ("chunk_scan", "channel_scan", "channel_reverse_scan", "segment", "simt", "bad_input",
            "bounds", "far", "slices", "turns", "warpgroup_scan", "warpgroup_gradients")

# (name, source, text, replacement, test)
MUTATIONS = [
    ("warpgroups: scores are not waited for", "cuda/warpgroup_scan.cuh",
     "    MbarrierWait(smem.scored + step % kScorePlaces, static_cast<uint32_t>(step / kScorePlaces & 1));\n",
     "", "warpgroup_scan"),
    ("warpgroups: one warp's scores are waited for", "cuda/warpgroup_scan.cuh",
     "MbarrierInit(scored + i, Config::kScoreWarps);",
     "MbarrierInit(scored + i, 1);", "warpgroup_scan"),
    ("warpgroups: scores over those that are read", "cuda/warpgroup_scan.cuh",
     "if (step >= kScorePlaces) {",
     "if (step < 0) {", "warpgroup_scan"),
    ("warpgroups: no fence between stored scores and wgmma", "cuda/warpgroup_scan.cuh",
     "    FenceProxyAsync();\n    __syncwarp();\n    if (LaneId() == 0) MbarrierArrive(smem.scored",
     "    __syncwarp();\n    if (LaneId() == 0) MbarrierArrive(smem.scored", "warpgroup_scan"),
    ("warpgroups: outputs are stored before they are there", "cuda/warpgroup_scan.cuh",
     "    WgmmaWait<1>();\n", "    WgmmaWait<2>();\n", "warpgroup_scan"),
    ("warpgroups: the last row of scores is made twice, the last but one not", "cuda/warpgroup_scan.cuh",
     "const int last_row = kChunk / 16 - (FreshWarpId() - Config::kWarps);",
     "const int last_row = FreshWarpId() - Config::kWarps == 3 ? 1 : 3;", "warpgroup_scan"),
    ("warpgroups: what follows a chunk is heard", "cuda/warpgroup_scan.cuh",
     "      ClearRows(smem.v + stage * kChunk * kV, kV, chunk.length, thread, 32 * Config::kScoreWarps);\n",
     "", "warpgroup_scan"),
    ("warpgroups: a stage is filled when one warp is done", "cuda/warpgroup_scan.cuh",
     "MbarrierInit(empty + stage, Config::kWarps);",
     "MbarrierInit(empty + stage, 1);", "warpgroup_scan"),
    ("warpgroups: tables are not waited for", "cuda/warpgroup_scan.cuh",
     "MbarrierInit(full + stage, 2);",
     "MbarrierInit(full + stage, 1);", "warpgroup_scan"),
    ("warpgroups: the state does not decay", "cuda/warpgroup_scan.cuh",
     "    Scale(state, tables.transition);\n",
     "", "warpgroup_scan"),
    ("warpgroups: k read by columns", "cuda/warpgroup_scan.cuh",
     "      WgmmaM64N64K16OfRows(",
     "      WgmmaM64N64K16(", "warpgroup_scan"),
    ("warpgroups: both warpgroups have the first columns of v", "cuda/warpgroup_scan.cuh",
     "v + WarpId() / 4 * kPieceElements",
     "v", "warpgroup_scan"),
    ("warpgroups: two stages of three", "cuda/warpgroup_scan.cuh",
     "stage = step % Config::kStages;\n    const int round",
     "stage = step % 2;\n    const int round", "warpgroup_scan"),
    ("side by side: R is not waited for", "cuda/warpgroup_gradients.cuh",
     "  MbarrierWait(smem.loaded + kAdjointLoaded, 0);\n", "", "warpgroup_gradients"),
    ("side by side: S is not waited for", "cuda/warpgroup_gradients.cuh",
     "    MbarrierWait(smem.loaded + kStateLoaded, 0);\n", "", "warpgroup_gradients"),
    ("side by side: S over R that is read", "cuda/warpgroup_gradients.cuh",
     "  __syncthreads();\n  if (thread == 0) LoadGradState(", "  if (thread == 0) LoadGradState(", "warpgroup_gradients"),
    ("side by side: tables are not waited for", "cuda/warpgroup_gradients.cuh",
     "  __syncthreads();\n  ChunkGradients(", "  ChunkGradients(", "warpgroup_gradients"),
    ("side by side: sums are not waited for", "cuda/warpgroup_gradients.cuh",
     "  __syncthreads();\n  if (WarpId() == 0) FinishChunkGradients", "  if (WarpId() == 0) FinishChunkGradients", "warpgroup_gradients"),
    ("side by side: no fence between cleared rows and wgmma", "cuda/warpgroup_gradients.cuh",
     "    FenceProxyAsync();\n    __syncthreads();\n  }", "    __syncthreads();\n  }", "warpgroup_gradients"),
    ("side by side: what follows a chunk is heard in q", "cuda/warpgroup_gradients.cuh",
     "    ClearRows(smem.q, kK, length, thread, Config::kThreads);\n", "", "warpgroup_gradients"),
    ("side by side: what follows a chunk is heard in dout", "cuda/warpgroup_gradients.cuh",
     "    ClearRows(smem.dout, kV, length, thread, Config::kThreads);\n", "", "warpgroup_gradients"),
    ("side by side: dscores are not transposed", "cuda/warpgroup_gradients.cuh",
     "TileOffset<kChunk>(r + g % 2, s - g % 2)", "TileOffset<kChunk>(s - g % 2, r + g % 2)", "warpgroup_gradients"),
    ("side by side: the second 64 channels of dk and dq from the first rows of the state", "cuda/warpgroup_gradients.cuh",
     "128 * kPieceColumns * piece + 32 * (j % 4)", "32 * (j % 4)", "warpgroup_gradients"),
    ("side by side: y with c", "cuda/warpgroup_gradients.cuh",
     "  ScaleTokens<kKeyPieces>(dk, smem.tables->outgoing);", "  ScaleTokens<kKeyPieces>(dk, smem.tables->outgoing_scaled);", "warpgroup_gradients"),
    ("side by side: dk without c", "cuda/warpgroup_gradients.cuh",
     "  ScaleTokens<kKeyPieces>(dk, smem.tables->key_scale);\n", "", "warpgroup_gradients"),
    ("side by side: queries hear later keys", "cuda/warpgroup_gradients.cuh",
     "const bool sees = s <= r + i;", "const bool sees = true;", "warpgroup_gradients"),
    ("side by side: a query's own decay is left out", "cuda/warpgroup_gradients.cuh",
     "for (int m = s + 1; m <= r; ++m)", "for (int m = s + 1; m < r; ++m)", "warpgroup_gradients"),
    ("side by side: a pair's decay counts the key's own token", "cuda/warpgroup_gradients.cuh",
     "if (block < n) apart = tables.suffix[s];", "if (block < n) apart = tables.suffix[s] + tables.log2_decay[s];", "warpgroup_gradients"),
    ("side by side: pairs of one token in the sums below the diagonal", "cuda/warpgroup_gradients.cuh",
     "const float below = s < r + i ? product : 0.0f;", "const float below = s <= r + i ? product : 0.0f;", "warpgroup_gradients"),
    ("side by side: the sum of S R of half of the state", "cuda/warpgroup_gradients.cuh",
     "i < Config::kK * kUnits; i += Config::kThreads", "i < Config::kK * kUnits / 2; i += Config::kThreads", "warpgroup_gradients"),
    ("side by side: a constant decay's sums of the next head", "cuda/warpgroup_gradients.cuh",
     "args.num_heads + one.place.head;", "args.num_heads + (one.place.head + 1) % args.num_heads;", "warpgroup_gradients"),
    ("side by side: chunks that a turn lacks have the next one's", "cuda/warpgroup_gradients.cuh",
     "  if (!one.exists) return;\n", "", "warpgroup_gradients"),
    ("side by side: gradients past the end", "cuda/warpgroup_gradients.cuh",
     "          if (token >= length) continue;\n", "", "warpgroup_gradients"),
    ("side by side: rows past the end", "cuda/warpgroup_gradients.cuh",
     "if (token < length)\n          *rein", "*rein", "warpgroup_gradients"),
    ("states: R after a document's start", "cuda/chunk_states.cuh",
     "    if (reverse && resets) Clear(state);\n", "", "warpgroup_gradients"),
    ("states: S of the document before", "cuda/chunk_states.cuh",
     "    if (!reverse && resets) Clear(state);\n", "", "warpgroup_gradients"),
    ("states: the next chunk lands in this one's stage", "cuda/chunk_states.cuh",
     "index_of(i), i % kStages, reverse);", "index_of(i), 0, reverse);", "warpgroup_gradients"),
    ("states: no barrier where a chunk starts", "cuda/chunk_states.cuh",
     "    CpAsyncWait<kStages - 2>();\n    __syncthreads();\n", "    CpAsyncWait<kStages - 2>();\n", "warpgroup_gradients"),
    ("states: a wait too short", "cuda/chunk_states.cuh", "CpAsyncWait<kStages - 2>();", "CpAsyncWait<kStages - 1>();", "warpgroup_gradients"),
    ("states: the next chunk lands where one is read", "cuda/chunk_states.cuh",
     "    load(i + kStages - 1);\n", "    load(i + kStages);\n", "warpgroup_gradients"),
    ("states: factors of the next head", "cuda/chunk_states.cuh",
     "FactorsSlot(params, place.head, index)", "FactorsSlot(params, (place.head + 1) % args.num_heads, index)", "warpgroup_gradients"),
    ("states: R decays like S", "cuda/chunk_states.cuh",
     "reverse ? factors.incoming : factors.outgoing_scaled", "factors.outgoing_scaled", "warpgroup_gradients"),
    ("states: lanes keep their own words", "cuda/chunk_states_layout.cuh", "  TransposeQuad(words);\n", "", "warpgroup_gradients"),
    ("states: a turn's count from the batch's first chunk", "cuda/chunk_states_layout.cuh",
     "return chunk - params.grads.forward.sequence_begin[params.shape.first_sequence];", "return chunk;", "warpgroup_gradients"),
    ("states: slices share a place", "cuda/chunk_states_layout.cuh",
     "* params.shape.num_parts() + part;", "* params.shape.num_parts();", "warpgroup_gradients"),
    ("states: a segment starts from the sequence's first state", "cuda/chunk_states.cuh",
     "LoadCheckpoint<ChunkStatesConfig>(state, params, place, place.begin, rows);",
     "LoadCheckpoint<ChunkStatesConfig>(state, params, place, place.first, rows);", "warpgroup_gradients"),
    ("states: dL/d(initial state) by every segment", "cuda/chunk_states.cuh",
     " && place.starts)", ")", "warpgroup_gradients"),
    ("side by side: a plan's workspace holds no backward by warps", "cuda/workspace.cc",
     "return std::max(MakeBackwardLayout(args, plan).bytes, MakeBackwardLayout(args, by_warps).bytes);",
     "return MakeBackwardLayout(args, plan).bytes;", "warpgroup_gradients"),
    ("side by side: bulk copies of what are no rows", "cuda/scans.cu",
     "  plan.backward_warpgroups = BackwardWarpgroupsTake(grads, plan);\n", "", "warpgroup_gradients"),
    ("scan: no barrier where a chunk starts", "cuda/chunk_scan.cuh",
     "    CpAsyncWait<0>();\n    __syncthreads();\n", "    CpAsyncWait<0>();\n", "chunk_scan"),
    ("scan: no barrier between the scores and their readers", "cuda/chunk_scan.cuh",
     "args.scale);\n    __syncthreads();\n", "args.scale);\n", "chunk_scan"),
    ("scan: no wait for the tiles", "cuda/chunk_scan.cuh", "    CpAsyncWait<0>();\n", "", "chunk_scan"),
    ("scan: the next chunk lands in this one's stage", "cuda/chunk_scan.cuh",
     "args.chunks[index + 1], place, 1 - stage);", "args.chunks[index + 1], place, stage);", "chunk_scan"),
    ("scan: tables of the next chunk over this one's", "cuda/chunk_scan.cuh",
     "smem.tables[1 - stage], args, args.chunks[index + 1]",
     "smem.tables[stage], args, args.chunks[index + 1]", "chunk_scan"),
    ("scan: a document's start is not honoured", "cuda/chunk_scan.cuh",
     "if (resets) Clear(state);", "", "chunk_scan"),
    ("scan: checkpoint one chunk late", "cuda/chunk_scan.cuh",
     "(index - place.first) % every != 0", "(index - place.first) % every != 1", "chunk_scan"),
    ("scan: key scale not in the scores", "cuda/chunk_scan.cuh", "scale * tables.key_scale[s],",
     "scale,", "chunk_scan"),
    ("scan: tiles on the diagonal dropped", "cuda/chunk_scan.cuh", "column_tile <= row_tile;",
     "column_tile < row_tile;", "chunk_scan"),
    ("scan: off by one chunk", "cuda/chunk_scan.cuh", "index < place.end; ++index",
     "index < place.end - 1; ++index", "chunk_scan"),
    ("tile: fragment's halves swapped", "../cuda/tiles.cuh", "const uint32_t b0[2] = {b[0], b[1]};",
     "const uint32_t b0[2] = {b[1], b[0]};", "chunk_scan"),
    ("tile: accumulator rows swapped as a fragment", "../cuda/tiles.cuh",
     "a[1] = PackBf16(d0[2], d0[3]);", "a[1] = PackBf16(d1[0], d1[1]);", "chunk_scan"),
    ("tile: lane rows of ldmatrix swapped", "../cuda/tiles.cuh",
     "return LaneOffset<kDim>(lane, 3, 4);", "return LaneOffset<kDim>(lane, 4, 3);", "chunk_scan"),
    ("tile: rows past the end are loaded", "../cuda/tiles.cuh",
     "const int end = column < rows.dim ? length : 0;", "const int end = column < rows.dim ? kRows : 0;", "chunk_scan"),
    ("tile: columns past the tensor's are loaded", "../cuda/tiles.cuh",
     "const int end = column < rows.dim ? length : 0;", "const int end = length;", "chunk_scan"),
    ("tile: rows of a load as far apart as the tile's", "../cuda/tiles.cuh",
     "source += kStep * rows.stride_t;", "source += kStep * kDim;", "chunk_scan"),
    ("tile: rows of a load over each other", "../cuda/tiles.cuh", "      target += kStep * kDim;\n", "", "chunk_scan"),
    ("tile: padded columns are loaded", "../cuda/tiles.cuh",
     "const bool valid = row < length && column < rows.dim;\n      tile",
     "const bool valid = row < length;\n      tile", "chunk_scan"),
    ("tile: stores past the end", "../cuda/tiles.cuh", "if (row < length && c < columns)\n        *rein",
     "if (c < columns)\n        *rein", "chunk_scan"),
    ("tile: stores of columns past the tensor's", "../cuda/tiles.cuh",
     "if (row < length && c < columns)\n        *rein", "if (row < length)\n        *rein", "chunk_scan"),
    ("tile: factors of the wrong columns", "cuda/tile.cuh",
     "const float f8 = factor[column + 8]", "const float f8 = factor[column]", "chunk_scan"),
    ("tile: decay after the sum, not before (suffix inclusive)", "cuda/tile.cuh",
     "float suffix = __shfl_down_sync(kFullWarp, decay, 1);", "float suffix = decay;", "chunk_scan"),
    ("tile: prefix scan one step short", "cuda/tile.cuh",
     "for (int offset = 1; offset < kBaseBlock; offset *= 2) {",
     "for (int offset = 1; offset < kBaseBlock / 2; offset *= 2) {", "chunk_scan"),
    ("tile: block between counted twice", "cuda/tile.cuh", "if (j < m && m < i) between += total;",
     "if (j <= m && m < i) between += total;", "chunk_scan"),
    ("tile: the padded tail decays", "cuda/tile.cuh", "* kLog2E : 0.0f;", "* kLog2E : -0.1f;", "chunk_scan"),
    ("rev: no barrier where a chunk starts", "cuda/reverse_scan.cuh",
     "      CpAsyncWait<0>();\n      __syncthreads();\n      if (kStages == 2) load(item + 1);\n      fill_tables",
     "      CpAsyncWait<0>();\n      if (kStages == 2) load(item + 1);\n      fill_tables", "chunk_scan"),
    ("rev: tables of the next chunk over this one's", "cuda/reverse_scan.cuh",
     "FillDecayTables(smem.tables[item % 2], args", "FillDecayTables(smem.tables[0], args", "chunk_scan"),
    ("rev: where no sums are wanted, the only stage is loaded over its readers", "cuda/reverse_scan.cuh",
     "if (kStages == 1 || wants_sums) __syncthreads();", "if (wants_sums) __syncthreads();", "chunk_scan"),
    ("rev: sums for gradients of key scales are not wanted", "cuda/reverse_scan.cuh",
     "params.dkey_scale.data != nullptr;\n  // All", "false;\n  // All", "slices"),
    ("rev: no barrier before the scores are read", "cuda/reverse_scan.cuh",
     "      CopyAdjoint<Config>(smem.adjoint, adjoint);\n      __syncthreads();\n",
     "      CopyAdjoint<Config>(smem.adjoint, adjoint);\n", "chunk_scan"),
    ("rev: no barrier before the sums are read", "cuda/reverse_scan.cuh",
     "if (kStages == 1 || wants_sums) __syncthreads();", "if (kStages == 1) __syncthreads();", "chunk_scan"),
    ("rev: R of the last chunk skipped", "cuda/reverse_scan.cuh",
     "  } else if (grads.dfinal_state != nullptr) {", "  } else if (false) {", "chunk_scan"),
    ("rev: R not decayed", "cuda/reverse_scan.cuh", "      Scale(adjoint, tables.transition);\n", "", "chunk_scan"),
    ("rev: the path through the chunk (E) dropped", "cuda/reverse.cuh",
     "  through *= tables.transition;\n", "  through = 0;\n", "chunk_scan"),
    ("rev: diagonal kept on one side only", "cuda/reverse_scan.cuh",
     "const float below0 = s < r ? x * dx : 0.0f", "const float below0 = s <= r ? x * dx : 0.0f",
     "chunk_scan"),
    ("rev: column sums dropped", "cuda/reverse.cuh",
     "const float h = sums.row - tables.key_scale[r] * sums.column;", "const float h = sums.row;", "chunk_scan"),
    ("rev: y of token t counted in its own gradient", "cuda/reverse.cuh",
     "float earlier = __shfl_up_sync(kFullWarp, up_to_here[half], 1);",
     "float earlier = up_to_here[half];", "chunk_scan"),
    ("rev: state of the wrong chunk of the group", "cuda/reverse_scan.cuh",
     "GradQ<Config>(smem, acc, scratch + i * kSlot,", "GradQ<Config>(smem, acc, scratch,", "chunk_scan"),
    ("rev: group recomputed without decay", "cuda/reverse_scan.cuh",
     "        Scale(state, smem.tables[item % 2].transition);\n", "", "chunk_scan"),
    ("rev: gradient crosses a document's start", "cuda/reverse_scan.cuh",
     "      if ((chunk.flags & kChunkResets) != 0) Clear(adjoint);\n", "", "chunk_scan"),
    ("rev: dk without its key scale", "cuda/reverse_scan.cuh",
     "  ScaleAccumulatorColumns(acc, tables.key_scale);\n", "", "chunk_scan"),
    ("rev: dv of the wrong rows", "cuda/reverse_scan.cuh", "for (int r = 16 * row_tile; r < kChunk; r += 16)",
     "for (int r = 16 * row_tile + 16; r < kChunk; r += 16)", "chunk_scan"),
    ("channel: no barrier before a tile's operands are made", "cuda/channel_operands.cuh",
     "  CpAsyncWait<0>();\n  __syncthreads();\n", "  CpAsyncWait<0>();\n", "channel_scan"),
    ("channel: a tile's operands are made before it is there", "cuda/channel_operands.cuh",
     "  CpAsyncWait<0>();\n", "", "channel_scan"),
    ("channel: no barrier before decays weigh pairs", "cuda/channel_operands.cuh",
     "[c] = sum;\n  }\n  __syncthreads();\n", "[c] = sum;\n  }\n", "channel_scan"),
    ("channel: no barrier before scores are copied out", "cuda/channel_operands.cuh",
     "[i] = rows[i];\n  __syncthreads();\n", "[i] = rows[i];\n", "channel_scan"),
    ("channel: keys decay by their own token too", "cuda/channel_operands.cuh",
     "key_scale[s] * Exp2Approx(sum)", "key_scale[s] * Exp2Approx(sum + log_decay[s * kK + c] * kLog2E)",
     "channel_scan"),
    ("channel: queries do not meet their own token's decay", "cuda/channel_operands.cuh",
     "    sum += decay;\n    decays[r * kK + c] = Exp2Approx(decay);\n",
     "    if (r > 0) sum += log_decay[(r - 1) * kK + c] * kLog2E;\n    decays[r * kK + c] = Exp2Approx(decay);\n",
     "channel_scan"),
    ("channel: keys without their scale", "cuda/channel_operands.cuh",
     "(key_scale[s] * Exp2Approx(sum))", "Exp2Approx(sum)", "channel_scan"),
    ("channel: keys of pairs without their scale", "cuda/channel_operands.cuh",
     "sum * (query_scale[r] * key_scale[s])", "sum * query_scale[r]", "channel_scan"),
    ("channel: a NaN in a later token's scales gets into scores", "cuda/channel_operands.cuh",
     "s <= r ? sum * (query_scale[r] * key_scale[s]) : 0.0f", "sum * (query_scale[r] * key_scale[s])", "bad_input"),
    ("channel: a transition's logarithm for it", "cuda/channel_operands.cuh",
     "[c] = Exp2Approx(sum);\n    reinterpret_cast", "[c] = sum;\n    reinterpret_cast", "channel_scan"),
    ("channel: scores copied out without what lies between rows", "cuda/channel_operands.cuh",
     "thread / 2 * (kScorePitch / 8) + thread % 2;", "thread;", "channel_scan"),
    ("channel: keys of a tile are not copied out", "cuda/channel_operands.cuh",
     "i < 2 * Places::kRows / 16", "i < Places::kRows / 16", "channel_scan"),
    ("channel: scores read as rows that lie together", "cuda/channel_tile.cuh",
     "(lane >> 4 & 1) * 8) * kScorePitch", "(lane >> 4 & 1) * 8) * kTile", "channel_scan"),
    ("channel: the key decays one token too late", "cuda/channel_tile.cuh",
     "if (r > s) {", "if (r > s + 1) {", "channel_scan"),
    ("channel: queries before a warp's second key do not see its first", "cuda/channel_tile.cuh",
     "FreshWarpId() * 32 / kGroups;", "FreshWarpId() * 32 / kGroups + 1;", "channel_scan"),
    ("channel: queries before the next warp's keys do not see this one's", "cuda/channel_tile.cuh",
     "FreshWarpId() * 32 / kGroups;", "(FreshWarpId() + 1) * 32 / kGroups;", "channel_scan"),
    ("channel: scores of half of a tile's queries", "cuda/channel_tile.cuh",
     "visit(part * kGroups + group, s, sum);", "visit(group, s, sum);", "channel_scan"),
    ("channel: decays of rows that 16 bytes do not divide, one channel on", "cuda/channel_tile.cuh",
     "CpAsync4(target + i, valid ? data + row * rows.stride_t + column : data",
     "CpAsync4(target + i, valid ? data + row * rows.stride_t + column + 1 : data", "channel_scan"),
    ("channel: decays as far apart as the tile's rows", "cuda/channel_tile.cuh",
     "source += kStep * rows.stride_t;", "source += kStep * kK;", "channel_scan"),
    ("channel: decays past the end are loaded", "cuda/channel_tile.cuh",
     "const int end = column < rows.dim ? tile.length : 0;", "const int end = column < rows.dim ? kTile : 0;",
     "channel_scan"),
    ("channel: a constant decay has rows", "cuda/channel_tile.cuh",
     "view.stride_b = view.stride_t = 0;", "view.stride_b = 0;", "channel_scan"),
    ("channel: what whole rounds of a copy leave is not copied", "cuda/channel_tile.cuh",
     "if (i + kThreads * 16 <= kBytes || thread + i < kBytes)", "if (i + kThreads * 16 <= kBytes)", "channel_scan"),
    ("channel: rows of a batch that 16 bytes do not divide are moved in units of them", "cuda/channel_tile.cuh",
     "  rows.aligned = rows.aligned && view.stride_b * (rows.is_wide ? 4 : 2) % 16 == 0;\n", "",
     "channel_reverse_scan"),
    ("channel: tiles of a batch's first row", "cuda/channel_tile.cuh",
     "tile.row * view.stride_b + tile.token * view.stride_t", "tile.token * view.stride_t", "channel_scan"),
    ("channel: the entry of the chunk after the next is not looked up", "cuda/channel_tile.cuh",
     "    if (valid()) LookAhead();\n", "", "channel_scan"),
    ("channel: each tile of a document's first chunk starts it", "cuda/channel_tile.cuh",
     "  if (row > 0) tile.flags = 0;\n", "", "channel_scan"),
    ("channel: past the table of chunks the next is looked up", "cuda/channel_tile.cuh",
     "min(chunk + 1, end - 1)", "chunk + 1", "channel_scan"),
    ("channel: documents' chunks have no blocks", "cuda/launch.h",
     "args.num_chunks - (args.num_sequences - num_sequences) * least", "num_sequences * least", "channel_reverse_scan"),
    ("channel: no barrier where a tile starts", "cuda/channel_tile.cuh",
     "    CpAsyncWait<kTileStages - 2>();\n    __syncthreads();\n", "    CpAsyncWait<kTileStages - 2>();\n",
     "channel_scan"),
    ("channel: a tile is not waited for", "cuda/channel_tile.cuh",
     "CpAsyncWait<kTileStages - 2>();", "CpAsyncWait<kTileStages - 1>();", "channel_scan"),
    ("channel: the next tile lands in this one's stage", "cuda/channel_tile.cuh",
     "(step + kTileStages - 1) % kTileStages", "(step + kTileStages) % kTileStages", "channel_scan"),
    ("channel: a document's start is not honoured", "cuda/channel_scan.cuh",
     "      Clear(state);\n      key_sum = 0;\n", "      key_sum = 0;\n", "channel_scan"),
    ("channel: checkpoint of the chunk before", "cuda/channel_scan.cuh",
     "stage_out, params, place, at.chunk, rows);", "stage_out, params, place, at.chunk - 1, rows);",
     "channel_reverse_scan"),
    ("channel: checkpoint before a chunk's last tile", "cuda/channel_scan.cuh",
     "if (at.row == 0) {", "if (true) {", "channel_reverse_scan"),
    ("channel: half of the state's products are not summed", "cuda/channel_scan.cuh",
     "out[n][i] += other[n][i];", ";", "channel_scan"),
    ("channel: pairs of a tile are not heard", "cuda/channel_scan.cuh",
     "  MmaPair(out[0], out[1], values, b);\n", "", "channel_scan"),
    ("channel: all warps have the first columns of v", "cuda/channel_scan.cuh",
     "LoadFragment<kV, true>(values, v, ColumnsFirst<kV>(lane), 0, WarpId() * 16);",
     "LoadFragment<kV, true>(values, v, ColumnsFirst<kV>(lane), 0, 0);", "channel_scan"),
    ("channel: tiles are stored past their end", "cuda/channel_scan.cuh",
     "RowsAt(out_rows, params.out, at.tile), at.tile.length);", "RowsAt(out_rows, params.out, at.tile), kTile);",
     "channel_scan"),
    ("channel: state not decayed", "cuda/channel_scan.cuh",
     "  ScaleAccumulatorColumns(state, transition);\n", "", "channel_scan"),
    ("channel_rev: place read before it is there", "cuda/channel_reverse_scan.cuh",
     "PlaceOf(args, params.shape, params.checkpoint_every);\n  __syncthreads();\n",
     "PlaceOf(args, params.shape, params.checkpoint_every);\n", "channel_reverse_scan"),
    ("channel_rev: no barrier where a tile starts", "cuda/channel_tile.cuh",
     "    CpAsyncWait<kTileStages - 2>();\n    __syncthreads();\n", "    CpAsyncWait<kTileStages - 2>();\n",
     "channel_reverse_scan"),
    ("channel_rev: no barrier before the copy of R is read", "cuda/channel_reverse_scan.cuh",
     "Clear(adjoint);\n  __syncthreads();\n", "Clear(adjoint);\n", "channel_reverse_scan"),
    ("channel_rev: a tile is not waited for", "cuda/channel_tile.cuh",
     "CpAsyncWait<kTileStages - 2>();", "CpAsyncWait<kTileStages - 1>();", "channel_reverse_scan"),
    ("channel_rev: the next tile lands in this one's stage", "cuda/channel_tile.cuh",
     "(step + kTileStages - 1) % kTileStages", "(step + kTileStages) % kTileStages", "channel_reverse_scan"),
    ("channel_rev: on the way forward keys are an earlier tile's", "cuda/channel_reverse_scan.cuh",
     "    CopyUnits<kThreads, Places::kKeys, Places::kRows>(target, source);\n", "", "channel_reverse_scan"),
    ("channel_rev: on the way forward decays are an earlier tile's", "cuda/channel_reverse_scan.cuh",
     "    CopyUnits<kThreads, Places::kTransition, kK * 4>(target, source);\n", "", "channel_reverse_scan"),
    ("channel_rev: off by one chunk", "cuda/channel_reverse_scan.cuh",
     "} else if (chunk > group_begin) {", "} else if (chunk > group_begin + 1) {", "channel_reverse_scan"),
    ("channel_rev: the state before a group's last tile is not kept", "cuda/channel_reverse_scan.cuh",
     "if (!at.sweeps || at.ends_group) {", "if (!at.sweeps) {", "channel_reverse_scan"),
    ("channel_rev: the checkpoint again before each tile of its chunk", "cuda/channel_reverse_scan.cuh",
     "chunk == group_begin && row == 0;", "chunk == group_begin;", "channel_reverse_scan"),
    ("channel_rev: the checkpoint before a group's second chunk", "cuda/channel_reverse_scan.cuh",
     "chunk == group_begin && row == 0;", "chunk == group_end - 1 && row == 0;", "channel_reverse_scan"),
    ("channel_rev: state of the wrong tile", "cuda/channel_reverse_scan.cuh",
     "const uint4* const slot = scan.StateSlot(at.slot);", "const uint4* const slot = scan.StateSlot(at.slot / 2 * 2);",
     "channel_reverse_scan"),
    ("channel_rev: states of a group's chunks over each other", "cuda/channel_reverse_scan.cuh",
     "(chunk - group_begin) * kTilesPerChunk + row / kTile;", "row / kTile;", "channel_reverse_scan"),
    ("channel_rev: columns of the fragment from the wrong rows", "cuda/channel_reverse_scan.cuh",
     "LoadFragment<kV, true>(b, smem.adjoint, rows_v, c, column);",
     "LoadFragment<kV, true>(b, smem.adjoint, rows_v, column, column);", "channel_reverse_scan"),
    ("channel_rev: half of dv's products are not summed", "cuda/channel_reverse_scan.cuh",
     "acc[n][2 * half] + other[n][2 * half];", "acc[n][2 * half];", "channel_reverse_scan"),
    ("channel_rev: fragment's halves swapped in x", "cuda/channel_reverse_scan.cuh",
     "const uint32_t a[4] = {state[j].x, state[j].y, state[j].z, state[j].w};",
     "const uint32_t a[4] = {state[j].x, state[j].z, state[j].y, state[j].w};", "channel_reverse_scan"),
    ("channel_rev: sums of S R of other rows", "cuda/channel_reverse_scan.cuh",
     "+ lane / 4 + 8 * half] = sum;", "+ lane / 4 + 8 * (1 - half)] = sum;", "channel_reverse_scan"),
    ("channel_rev: states not decayed", "cuda/channel_tile.cuh",
     "  ScaleAccumulatorRows(acc, transition + WarpId() * 16);\n", "", "channel_reverse_scan"),
    ("channel_rev: R of the last tile skipped", "cuda/channel_reverse_scan.cuh",
     "  } else if (grads.dfinal_state != nullptr) {", "  } else if (false) {", "channel_reverse_scan"),
    ("channel_rev: gradient crosses a document's start", "cuda/channel_reverse_scan.cuh",
     "  if ((at.tile.flags & kChunkResets) != 0) Clear(adjoint);\n", "", "channel_reverse_scan"),
    ("channel_rev: state crosses a document's start", "cuda/channel_reverse_scan.cuh",
     "      if ((at.tile.flags & kChunkResets) != 0) Clear(state);\n", "", "channel_reverse_scan"),
    ("channel_rev: no barrier before a tile is read", "cuda/channel_gradients.cuh",
     "    CpAsyncWait<0>();\n    __syncthreads();\n", "    CpAsyncWait<0>();\n", "channel_reverse_scan"),
    ("channel_rev: a tile's gradients before it is there", "cuda/channel_gradients.cuh",
     "    CpAsyncWait<0>();\n    __syncthreads();\n", "    __syncthreads();\n", "channel_reverse_scan"),
    ("channel_rev: no barrier before further columns of V are loaded", "cuda/channel_gradients.cuh",
     "      __syncthreads();  // the columns before are used\n", "", "slices"),
    ("channel_rev: no barrier before warps' shares of D are summed", "cuda/channel_gradients.cuh",
     "  MakeDecays<Config>(smem);\n  __syncthreads();\n", "  MakeDecays<Config>(smem);\n", "channel_reverse_scan"),
    ("channel_rev: no barrier before D is read", "cuda/channel_gradients.cuh",
     "  SumScoreGradients<Config>(smem);\n  __syncthreads();\n", "  SumScoreGradients<Config>(smem);\n",
     "channel_reverse_scan"),
    ("channel_rev: no barrier before the gradients of pairs are read", "cuda/channel_gradients.cuh",
     "  __syncthreads();\n  if (!HasQuery<Config>()) {\n", "  if (!HasQuery<Config>()) {\n", "channel_reverse_scan"),
    ("channel_rev: rows and columns of D swapped", "cuda/channel_gradients.cuh",
     "    smem.sums->dscores[r][s] = sum;\n", "    smem.sums->dscores[s][r] = sum;\n", "channel_reverse_scan"),
    ("channel_rev: D of one warp", "cuda/channel_gradients.cuh",
     "w < Config::kWarps; ++w) sum +=", "w < 1; ++w) sum +=", "channel_reverse_scan"),
    ("channel_rev: x for y", "cuda/channel_gradients.cuh",
     "(has_query ? Places::kX : Places::kY)", "Places::kX", "channel_reverse_scan"),
    ("channel_rev: the decays of a tile as a whole are not known", "cuda/channel_gradients.cuh",
     "  smem.sums->transition[c] = Exp2Approx(sum);\n", "", "channel_reverse_scan"),
    ("channel_rev: the path through the tile dropped", "cuda/channel_gradients.cuh",
     "float late = smem.sums->transition[c] * smem.sums->through[c],", "float late = 0,", "channel_reverse_scan"),
    ("channel_rev: the pair of a token with itself in its decay", "cuda/channel_gradients.cuh",
     "    sum_b += key * key_scale * sum;\n", "    sum_b += key * key_scale * (dk - from_after);\n",
     "channel_reverse_scan"),
    ("channel_rev: y of token t counted in its own gradient", "cuda/channel_gradients.cuh",
     "= before - following[t];\n    before += early;", "= (before += early) - following[t];", "channel_reverse_scan"),
    ("channel_rev: keys decay one token too late", "cuda/channel_gradients.cuh",
     "      keys[s] *= decay;\n      sum = fmaf(dscores[s], keys[s], sum);\n",
     "      sum = fmaf(dscores[s], keys[s], sum);\n      keys[s] *= decay;\n", "channel_reverse_scan"),
    ("channel_rev: dq without its scale", "cuda/channel_gradients.cuh",
     "scale * fmaf(dscores[r], keys[r], sum)", "fmaf(dscores[r], keys[r], sum)", "channel_reverse_scan"),
    ("channel_rev: dk without its key scale", "cuda/channel_gradients.cuh",
     "StoreValue(rows, s, c, key_scale * dk);", "StoreValue(rows, s, c, dk);", "channel_reverse_scan"),
    ("channel_rev: a decay of 0 keeps rounding as its gradient", "cuda/channel_gradients.cuh",
     " || smem.decays[t * Config::kK + c] == 0.0f", "", "channel_reverse_scan"),
    ("channel_rev: the decay where a document starts keeps rounding as its gradient", "cuda/channel_gradients.cuh",
     "const bool cut = (t == 0 && resets) || smem", "const bool cut = smem", "channel_reverse_scan"),
    ("channel_rev: decays past the end have gradients", "cuda/channel_gradients.cuh",
     "if (t >= tile.length || first + c >= dim) continue;", "if (first + c >= dim) continue;", "channel_reverse_scan"),
    ("channel_rev: key scales' gradients of one warp", "cuda/channel_gradients.cuh",
     "w < Config::kK / 32; ++w) sum +=", "w < 1; ++w) sum +=", "channel_reverse_scan"),
    ("channel_rev: key scales' gradients of one half of a warp", "cuda/channel_gradients.cuh",
     "  sum += __shfl_xor_sync(kFullWarp, sum, kTile);\n", "", "channel_reverse_scan"),
    ("channel_rev: a constant decay's sums of a chunk's tiles over each other", "cuda/channel_gradients.cuh",
     "kTilesPerChunk +\n      one.row / kTile;", "kTilesPerChunk;", "channel_reverse_scan"),
    ("channel_rev: a constant decay has no sum where a chunk has no such tile", "cuda/channel_gradients.cuh",
     "    if (one.in_turn) KeepDecaySum<Config>(params, one, 0);\n", "", "channel_reverse_scan"),
    ("segment: reset does not cut the transition", "cuda/segment.cuh",
     "table.log2_transition, resets);", "table.log2_transition, false);", "segment"),
    ("segment: in reverse a NaN of the later document gets through", "cuda/tile.cuh",
     "return kReverse ? cut : cut + sum;", "return cut + sum;", "bad_input"),
    ("segment: no barrier", "cuda/segment.cuh", "    __syncthreads();\n", "", "segment"),
    ("segment: reset does not cut the transition, decays of channels", "cuda/channel_segment.cuh",
     "transition[kK + channel], resets);", "transition[kK + channel], false);", "segment"),
    ("segment: a channel's state decays as its neighbour's", "cuda/channel_segment.cuh",
     "transition[kK + channel], resets);", "transition[kK + (channel ^ 1)], resets);", "segment"),
    ("segment: a transition for its logarithm", "cuda/channel_segment.cuh",
     "transition[kK + channel], resets);", "transition[channel], resets);", "segment"),
    ("segment: no barrier where a tile starts", "cuda/channel_tile.cuh",
     "    CpAsyncWait<kTileStages - 2>();\n    __syncthreads();\n", "    CpAsyncWait<kTileStages - 2>();\n", "segment"),
    ("segment: a tile is not waited for", "cuda/channel_tile.cuh",
     "CpAsyncWait<kTileStages - 2>();", "CpAsyncWait<kTileStages - 1>();", "segment"),
    ("segment: the next tile lands in this one's stage", "cuda/channel_tile.cuh",
     "(step + kTileStages - 1) % kTileStages", "(step + kTileStages) % kTileStages", "segment"),
    ("segment: in reverse keys for queries", "cuda/channel_segment.cuh",
     "(kReverse ? Places::kQ : Places::kKeys)", "Places::kKeys", "segment"),
    ("segment: a document's start is not honoured, decays of channels", "cuda/channel_segment.cuh",
     "    if (!kReverse && resets) Clear(state);\n", "", "segment"),
    ("segment: in reverse a document's start is not honoured, decays of channels", "cuda/channel_segment.cuh",
     "    if (kReverse && resets) Clear(state);\n", "", "segment"),
    ("segment: off by one tile", "cuda/channel_tile.cuh",
     "row = reverse ? LastTile(entry) : 0;\n    LookAhead();", "row = 0;\n    LookAhead();", "segment"),
    ("segment: scan by one channel's transition", "cuda/reduce.cu",
     "piece * params.transitions + element / per_transition];",
     "piece * params.transitions];", "segment"),
    ("segment: scan hands on the state after the segment", "cuda/reduce.cu",
     "    *state = carry;\n    carry =", "    *state = carry = ", "segment"),
    ("segment: reverse scan runs forward", "cuda/reduce.cu",
     "params.reverse ? params.num_segments - 1 - i : i", "i", "segment"),
    ("segments: the backward's are the forward's", "cuda/one_scan.h",
     "{plan.backward, std::max(plan.backward_segments, 1), turn}",
     "{plan.backward, std::max(plan.num_segments, 1), turn}",
     "segment"),
    ("checkpoints where the backward wants none", "cuda/scans.cu",
     "if (BackwardRoute(args, plan) == Route::kSimt) args.checkpoints = nullptr;", "", "bounds"),
    ("slices: of K, in one checkpoint place", "cuda/chunk_scan.cuh",
     "checkpoint + (rows.row + part * kChunk) * rows.columns", "checkpoint + part * kChunk * rows.columns",
     "slices"),
    ("slices: of K, keys of the first", "cuda/chunk_scan.cuh",
     "RowsOf(args.k, chunk, k_head, place.key_slice * kK,", "RowsOf(args.k, chunk, k_head, 0,", "slices"),
    ("slices: of K, decays of the first", "cuda/channel_tile.cuh",
     "RowsOf(view, tile, decay_head, place.key_slice * kK,", "RowsOf(view, tile, decay_head, 0,", "slices"),
    ("slices: of V, dout of the first", "cuda/reverse_scan.cuh",
     "RowsOf(grads.dout, chunk, place.head, column,", "RowsOf(grads.dout, chunk, place.head, 0,", "slices"),
    ("slices: of K, keys of the first, decays of channels", "cuda/channel_tile.cuh",
     "RowsOf(args.k, one.tile, k_head, first,", "RowsOf(args.k, one.tile, k_head, 0,", "slices"),
    ("slices: of V, dout of the first, decays of channels", "cuda/channel_reverse_scan.cuh",
     "HeadRows(grads.dout, place.head, column, dim)", "HeadRows(grads.dout, place.head, 0, dim)", "slices"),
    ("slices: of V, products in one place", "cuda/channel_reverse_scan.cuh",
     "(place.slice * params.num_tiles + places.tiles.Index(at.chunk, at.row))", "places.tiles.Index(at.chunk, at.row)",
     "slices"),
    ("slices: of V, products of one", "cuda/channel_gradients.cuh",
     "slice < params.num_slices; ++slice) {", "slice < 1; ++slice) {", "slices"),
    ("slices: D of the first columns of V", "cuda/channel_gradients.cuh",
     "first < args.head_dim_v; first += kValuesAtOnce", "first < kValuesAtOnce; first += kValuesAtOnce", "slices"),
    ("slices: of K, dv in one place, decays of channels", "cuda/channel_reverse_scan.cuh",
     "SliceOf(params.dv, args, place.key_slice, dim)", "SliceOf(params.dv, args, 0, dim)", "slices"),
    ("slices: of K, key scales in one place", "cuda/channel_gradients.cuh",
     "params.grads.forward, one.place.key_slice, one.tile,", "params.grads.forward, 0, one.tile,", "slices"),
    ("slices: of K, dv in one place", "cuda/reverse_scan.cuh",
     "SliceOf(params.dv, args, place.key_slice, args.head_dim_v)",
     "SliceOf(params.dv, args, 0, args.head_dim_v)", "slices"),
    ("slices: key scales of one slice of V", "cuda/reverse.cuh",
     "place.key_slice * params.shape.num_slices + place.slice", "place.key_slice", "slices"),
    ("slices: one summed", "cuda/reduce.cu",
     "slice < params.num_slices; ++slice)\n      AddChannels", "slice < 1; ++slice)\n      AddChannels",
     "slices"),
    ("slices: one of a constant decay's summed", "cuda/reduce.cu",
     "slice < params.num_slices; ++slice)\n      sum", "slice < 1; ++slice)\n      sum", "slices"),
    ("constant decays: every other stretch of pieces", "cuda/reduce.cu",
     "i = LaneId(); i < count; i += 32", "i = LaneId(); i < count; i += 64", "segment"),
    ("constant decays: pieces of the first heads", "cuda/reduce.cu", "+ int64_t{1} * head * own + i % own",
     "+ i % own", "segment"),
    ("slices: state scans know one of K", "cuda/segment.cuh", "RowsOf(x, chunk, x_head, place.key_slice * kK,",
     "RowsOf(x, chunk, x_head, 0,", "slices"),
    ("slices: place read before it is there", "cuda/reverse_scan.cuh",
     "*smem.place = PlaceOf(args, params.shape, every);\n  __syncthreads();",
     "*smem.place = PlaceOf(args, params.shape, every);", "slices"),
    ("normaliser: the sum of keys has no gradient", "cuda/normaliser.cu",
     "of_queries = fmaf(ToFloat(q[c]), dq, of_queries);", "", "slices"),
    ("normaliser: dout is not divided", "cuda/one_scan.cu",
     "scan.row_scales.divisors = static_cast<const float*>(args.norm_denom)",
     "scan.row_scales.divisors = nullptr", "slices"),
    ("normaliser: eps takes nothing of the mean", "cuda/normaliser.cu",
     "static_cast<float>(args.norm_eps) / denom", "0.0f", "slices"),
    ("normaliser: states keep the mean that values lose", "cuda/reverse.cuh",
     "if (params.centre.mean != nullptr)", "if (false)", "slices"),
    ("normaliser: checkpoints of one term", "cuda/chunk_scan.cuh",
     "d[n][i] = kRest ? x - ToFloat(ToBf16(x)) : x;", "d[n][i] = kRest ? 0.0f : x;", "slices"),
    ("normaliser: states less the first row's mean", "cuda/reverse.cuh",
     "(int64_t{1} * chunk.row * args.num_v_heads + v_head)", "v_head", "slices"),
    ("normaliser: its final state knows no mean", "cuda/centred_backward.cu", "grads_.dfinal_norm, 1, shifted",
     "grads_.dfinal_norm, 0, shifted", "slices"),
    ("normaliser: its initial state knows no mean", "cuda/centred_backward.cu", "grads_.dinitial_norm, -1,",
     "grads_.dinitial_norm, 0,", "slices"),
    ("normaliser: packed sequences have means of their own", "cuda/centre.cu",
     "args.batch == 1 ? 0 : sequence", "sequence", "slices"),
    ("normaliser: a NaN in the mean", "cuda/centre.cu", "return fabsf(x) <= 3.402823466e38f ? x : 0.0f;",
     "return x;", "slices"),
    ("key sums: those before a document divide", "cuda/key_sums.cuh",
     "resets ? 0.0f : tables.incoming[row] * sum", "tables.incoming[row] * sum", "slices"),
    ("key sums: those before a document go on", "cuda/key_sums.cuh",
     "state = resets ? sum : fmaf(", "state = fmaf(", "slices"),
    ("key sums: not decayed", "cuda/key_sums.cuh", "fmaf(tables.transition, state, sum)", "state + sum", "slices"),
    ("key sums: keys without their scale", "cuda/key_sums.cuh",
     "const float factor = tables.outgoing_scaled[row];", "const float factor = tables.outgoing[row];", "slices"),
    ("key sums: rows of scores by one of two warps", "cuda/chunk_scan.cuh",
     "row_sums[part * kChunk + 16 * row_tile", "row_sums[16 * row_tile", "slices"),
    ("key sums: checkpoints of one term", "cuda/key_sums.cuh", "ToBf16(sum - ToFloat(rounded))", "ToBf16(0.0f)",
     "slices"),
    ("key sums: slices of K divide on their own", "cuda/one_scan.cu",
     "sums.divides = SlicesOf(args, plan.forward).keys == 1;", "sums.divides = true;", "slices"),
    ("key sums: the states' regions for those of the sums", "cuda/one_scan.cu",
     "SegmentStates(ones, layout.segments, nullptr,", "SegmentStates(ones, {}, nullptr,", "slices"),
    ("key sums: of a tile, one half of the scores", "cuda/channel_scan.cuh",
     "  sum += __shfl_xor_sync(kFullWarp, sum, 1);\n", "", "slices"),
    ("key sums: of a tile, half of a token's channels", "cuda/channel_scan.cuh",
     "for (int offset = 1; offset < kGroups; offset *= 2)", "for (int offset = 1; offset < kGroups / 2; offset *= 2)",
     "slices"),
    ("key sums: no barrier before a tile's queries meet them", "cuda/channel_scan.cuh",
     "      __syncthreads();\n      SumTileQueries<Config>", "      SumTileQueries<Config>", "slices"),
    ("key sums: no barrier before a tile is divided", "cuda/channel_scan.cuh",
     "      __syncthreads();\n      DivideTile<Config>", "      DivideTile<Config>", "slices"),
    ("key sums: of channels not decayed", "cuda/channel_scan.cuh",
     "key_sum = fmaf(transition[c], key_sum, keys);", "key_sum += keys;", "slices"),
    ("key sums: of channels before a document go on", "cuda/channel_scan.cuh", "      key_sum = 0;\n", "",
     "slices"),
    ("key sums: the tile's own keys before its queries", "cuda/channel_scan.cuh",
     "  before[c] = key_sum;\n  key_sum = fmaf(transition[c], key_sum, keys);\n",
     "  key_sum = fmaf(transition[c], key_sum, keys);\n  before[c] = key_sum;\n", "slices"),
    ("normaliser: one slice of K divides", "cuda/normaliser.cu",
     "for (int i = 0; i < params.num_slices; ++i) denom +=", "for (int i = 0; i < 1; ++i) denom +=", "slices"),
    ("normaliser: segments know no row scale", "cuda/one_scan.cu", "  own.row_scales = scan.row_scales;\n",
     "  own.row_scales = {};\n", "slices"),
    ("normaliser: operands of channels know no row scale", "cuda/channel_operands.cuh",
     "args, one, params.row_scales);", "args, one, {});", "slices"),
    ("normaliser: gradients of a tile of channels know no row scale", "cuda/channel_gradients.cuh",
     "args, one, params.row_scales);", "args, one, {});", "slices"),
    ("normaliser: a constant decay's sums of the ones over those of V", "cuda/one_scan.cu",
     "first_decay * sums.count(args.num_heads);", "0;", "slices"),
    ("normaliser: its slice over the first of V", "cuda/centred_backward.cu",
     "PlacesOf(grads_, plan_, layout_, turn_, first)",
     "PlacesOf(grads_, plan_, layout_, turn_, 0)", "slices"),
    ("normaliser: its checkpoints over the state's", "cuda/one_scan.cu",
     "static_cast<char*>(args.checkpoints) + NormCheckpoints(args, plan)",
     "static_cast<char*>(args.checkpoints)", "slices"),
    ("turns: blocks know the first sequences alone", "cuda/tile.cuh",
     "place.sequence = shape.first_sequence + of_turn;", "place.sequence = of_turn;", "turns"),
    ("turns: sums where the batch has them", "cuda/one_scan.cu",
     "turn.first_row - int64_t{1} * first * turn.num_rows", "int64_t{0} - int64_t{1} * first * turn.num_rows",
     "turns"),
    ("turns: segments start from the first rows' states", "cuda/one_scan.cu",
     "int64_t{1} * scan.turn.first_sequence *", "int64_t{0} *", "turns"),
    ("turns: the last one's constant decay alone", "cuda/one_scan.cu",
     "int64_t{1} * turn.first_sequence * args.num_heads * sums.pieces", "0", "turns"),
    ("turns: shifts of the first rows' states", "cuda/centred_backward.cu",
     "static_cast<const float*>(norms) + before;", "static_cast<const float*>(norms);", "turns"),
    ("turns: token by token from the first sequence", "cuda/simt.cuh",
     "place.sequence = first_sequence + static_cast<int>", "place.sequence = static_cast<int>", "turns"),
    ("turns: tiles count from the batch's first chunk", "cuda/channel_tile.cuh",
     "(chunk - first_chunk) * step", "chunk * step", "turns"),
    ("turns: blocks of the chunks that a turn lacks have the next one's", "cuda/channel_tile.cuh",
     "  if (!one.in_turn) return one;\n", "", "turns"),
    ("turns: a constant decay's tiles are counted for each sequence", "cuda/workspace.cc",
     "return {1, args.num_chunks * (decay::kChunk", "return {args.num_sequences, args.num_chunks * (decay::kChunk", "turns"),
    ("simt: no barrier", "cuda/simt.cuh", "      __syncthreads();\n      if (output && before.token",
     "      if (output && before.token", "simt"),
    ("simt: normaliser's gradient dropped", "cuda/simt.cuh",
     "      dout = params.dnorm[FlatRow(args, chunk, token, head)];\n", "      dout = 0;\n",
     "simt"),
    ("simt: S R at the chunk's end dropped", "cuda/simt.cuh",
     "through = fmaf(state[c], adjoint[c], through);", "through = 0;", "simt"),
    ("simt: the chunk's last key counts for its decay", "cuda/simt.cuh",
     "if (token + 1 < chunk.length) through -=", "through -=", "simt"),
    ("step: negative slot writes slot 0", "cuda/step.cuh", "  if (slot < 0) {", "  if (false) {", "simt"),
    ("step: no barrier before the sums", "cuda/step.cuh",
     "    sums[first][column] = y;\n    __syncthreads();\n", "    sums[first][column] = y;\n", "simt"),
    ("far: a row's offset in 32 bits", "../cuda/tiles.cuh",
     "(int64_t{1} * chunk.row * view.stride_b + chunk.token * view.stride_t +\n               head",
     "static_cast<int>(chunk.row * view.stride_b + chunk.token * view.stride_t +\n               head", "far"),
    ("far: a decay's offset in 32 bits", "cuda/tile.cuh", "return data[chunk.row * view.stride_b +",
     "return data[(int)chunk.row * (int)view.stride_b +", "far"),
    ("far: rows of flat tensors counted in 32 bits", "partition.h", "constexpr int64_t FlatRow(",
     "constexpr int FlatRow(", "far"),
    ("far: a step's slot in 32 bits", "cuda/step.cuh", "const int64_t slot = ", "const int slot = ", "far"),
    ("far: a summed gradient's offset in 32 bits", "cuda/reduce.cu", "const int64_t target = row", "const int target = row",
     "far"),
]


def compile_command(source, target, kind, include):
    return ["g++", "-std=c++20", "-DHL_EMULATE=1", "-w", *FLAGS[kind].split(), f"-I{include}/src",
            f"-I{ROOT}/src", f"-I{ROOT}/tests", f"-I{ROOT}/cmake/cuda_shim", "-isystem",
            os.environ.get("CUDA_INCLUDE", "/usr/local/cuda/include"), "-x", "c++", "-c",
            str(source), "-o", str(target)]


# What a test of a shared header is linked with anew, beginnings of paths; the rest stays as it is.
INSTANCES = {"chunk_scan": ("cuda/instances/chunk_scan_", "cuda/instances/reverse_scan_"),
             "channel_scan": ("cuda/instances/channel_scan_", "cuda/instances/channel_tiles"),
             "channel_reverse_scan": ("cuda/instances/channel_reverse_scan_", "cuda/instances/channel_tiles"),
             "segment": ("cuda/instances/segment", "cuda/instances/channel_segment"),
             "bad_input": ("cuda/instances/segment", "cuda/instances/channel_segment"),
             "simt": "cuda/instances/simt_", "far": "cuda/instances/",
             "slices": ("cuda/instances/chunk_scan_", "cuda/instances/channel_", "cuda/instances/reverse_scan_",
                        "cuda/instances/segment"),
             "turns": ("cuda/instances/chunk_scan_", "cuda/instances/channel_", "cuda/instances/reverse_scan_")}

DECAY = Family(
    name="decay attention", folder="src/kernels/decay_attention",
    sources=["cuda/*.cu", "cuda/instances/*.cu", "cuda/route.cc", "cuda/turns.cc", "cuda/workspace.cc",
             "plan.cc", "reference.cc", "../chunks/chunk_table.cc"],
    tests={test: f"tests/kernels/decay_attention/cuda/{test}_test.cc" for test in TESTS_OF},
    instances={"partition.h": INSTANCES, "cuda/tile.cuh": INSTANCES, "../cuda/tiles.cuh": INSTANCES,
               "cuda/channel_tile.cuh": INSTANCES,
               "cuda/launch.h": {"channel_reverse_scan": "cuda/instances/channel_tiles"},
               "cuda/reverse.cuh": INSTANCES,
               "cuda/chunk_states_layout.cuh": {"warpgroup_gradients": ("cuda/instances/chunk_states",
                                                                 "cuda/instances/warpgroup_gradients")},
               "cuda/key_sums.cuh": {"slices": ("cuda/instances/chunk_scan_", "cuda/instances/channel_scan_")}},
    mutations=MUTATIONS)


def dependents(family, source, test):
    """Sources of the family that see `source`, as far as the test runs them."""
    instances = family.instances[source][test] if source in family.instances else ()
    sources = [path for pattern in family.sources for path in family.find(pattern)]
    folder = ROOT / family.folder
    return [path for path in sources
            if path == folder / source or f"/{source}" in path.read_text()
            or (instances and path.relative_to(folder).as_posix().startswith(instances))]


def object_name(source):
    return f"{source.parent.name}_{source.name}.o"


class Builder:
    def __init__(self, family, kind, jobs):
        self.family, self.kind, self.jobs = family, kind, jobs
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="mutations_"))
        self.tests = {test: ROOT / path for test, path in family.tests.items()}
        self.objects = {}

    def run_all(self, commands):
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            for result in pool.map(lambda c: subprocess.run(c, capture_output=True, text=True),
                                   commands):
                if result.returncode != 0:
                    raise RuntimeError(result.stderr[:2000])

    def build_base(self):
        sources = [path for pattern in self.family.sources for path in self.family.find(pattern)]
        sources += [ROOT / "src/core/error.cc", *(ROOT / "tools/cuda_emulator").glob("*.cc")]
        sources += self.tests.values()
        commands = []
        for source in sources:
            target = self.base / object_name(source)
            self.objects[source] = target
            command = compile_command(source, target, self.kind, ROOT)
            # The emulator's scheduler itself is never instrumented for races.
            if self.kind == "tsan" and source.parent.name == "emu" and source.name != "access.cc":
                command = [c for c in command if c != "-fsanitize=thread"] + ["-DHL_EMU_TSAN=1"]
            commands.append(command)
        self.run_all(commands)

    def link(self, objects, test, target):
        others = set(self.tests.values()) - {self.tests[test]}
        files = [str(path) for source, path in objects.items() if source not in others]
        sanitize = [f for f in FLAGS[self.kind].split() if f.startswith("-fsanitize")]
        result = subprocess.run(["g++", *sanitize, *files, "-o", str(target), "-lgmock", "-lgtest",
                                 "-lgtest_main", "-lpthread"], capture_output=True, text=True)
        if result.returncode != 0:
            raise RuntimeError(result.stderr[:2000])

    def build_mutant(self, source, text, test):
        """The test's binary with `source`, a path below the family's folder, replaced by `text`."""
        copy = pathlib.Path(tempfile.mkdtemp(dir=self.base))
        changed = pathlib.Path(os.path.normpath(copy / self.family.folder / source))
        changed.parent.mkdir(parents=True)
        changed.write_text(text)
        objects, commands = {}, []
        for path in dependents(self.family, source, test):
            origin = changed if path == ROOT / self.family.folder / source else path
            objects[path] = copy / object_name(path)
            commands.append(compile_command(origin, objects[path], self.kind, copy))
        if not commands:
            raise RuntimeError(f"no source of the {test} test sees it")
        self.run_all(commands)
        # Changed objects first: of an inline function that others hold too, the linker takes the first.
        others = {path: target for path, target in self.objects.items() if path not in objects}
        self.link({**objects, **others}, test, copy / "test")
        return copy / "test"


def verdict_of(binary, timeout):
    """(caught, by what)."""
    for order in ("forward", "random"):
        environment = dict(os.environ, HL_EMU_ORDER=order, TSAN_OPTIONS="halt_on_error=1")
        try:
            result = subprocess.run([str(binary)], capture_output=True, text=True, timeout=timeout,
                                    env=environment, errors="replace")
        except subprocess.TimeoutExpired:
            return True, f"no end within {timeout} s ({order} order)"
        text = result.stdout + result.stderr
        if result.returncode == 0:
            continue
        for pattern in (r"SUMMARY: (\w+Sanitizer: .*)", r"(runtime error: .*)",
                        r'description "([^"\n]{0,150})'):
            if match := re.search(pattern, text):
                failed = re.search(r"\[ RUN +\] (\S+)(?![\s\S]*\[ RUN)", text)
                return True, f"{match[1][:140]} ({failed[1] + ', ' if failed else ''}{order} order)"
        failed = sorted(set(re.findall(r"\[  FAILED  \] ([\w/]+\.\w+)", text)))
        if failed:
            return True, f"{failed[0]} and {len(failed) - 1} more ({order} order)"
        return True, f"exit {result.returncode} ({order} order)"
    return False, "nothing"


def try_mutation(builder, timeout, name, source, text, replacement, test):
    """Whether the test caught it; says how."""
    original = (ROOT / builder.family.folder / source).read_text()
    if original.count(text) != 1:
        print(f"STALE     {name}: matches {original.count(text)} times in {source}")
        return False
    try:
        binary = builder.build_mutant(source, original.replace(text, replacement), test)
        caught, what = verdict_of(binary, timeout)
        shutil.rmtree(binary.parent)
    except RuntimeError as error:
        caught, what = False, f"does not compile: {str(error)[:200]}"
    print(f"{'caught  ' if caught else 'SURVIVED'}  {name}: {what}", flush=True)
    return caught


def survivors_of(family, kind, mutations, options):
    builder = Builder(family, kind, options.jobs)
    start = time.time()
    builder.build_base()
    print(f"{family.name}, {kind}: unchanged sources built in {time.time() - start:.0f} s",
          flush=True)
    for test in sorted({m[4] for m in mutations}):
        binary = builder.base / test
        builder.link(builder.objects, test, binary)
        caught, what = verdict_of(binary, options.timeout)
        if caught:
            sys.exit(f"the unchanged {test} test fails: {what}")
    survivors = [m for m in mutations if not try_mutation(builder, options.timeout, *m)]
    shutil.rmtree(builder.base)
    return survivors


FAMILIES = (DECAY, STEP, ADAMW, POLYNOMIAL, FOCUS_POOL, SCANS, PAIRS)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutations with this in their name")
    parser.add_argument("--kind", choices=[*FLAGS, "all"], default="plain")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=120, help="seconds for a run of a test")
    options = parser.parse_args()
    kinds = list(FLAGS) if options.kind == "all" else [options.kind]
    survivors = []
    for family in FAMILIES:
        left = [m for m in family.mutations if options.only in m[0]]
        for kind in kinds:
            if left:
                left = survivors_of(family, kind, left, options)
        survivors += left
    print(f"{len(survivors)} survived" + "".join(f"\n  {m[0]}" for m in survivors))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
