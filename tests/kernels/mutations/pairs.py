"""Bugs for the CUDA kernels on pairs of tiles, in softmax attention; MUTATIONS as in run.py."""

from family import Family

FOLDER = "cuda/pair_attention"
PAIR, FORWARD = f"{FOLDER}/tile_pair.cuh", f"{FOLDER}/forward.cuh"
QUERIES, KEYS = f"{FOLDER}/query_gradient.cuh", f"{FOLDER}/key_gradient.cuh"
BIAS, ENTRIES = f"{FOLDER}/bias_gradient.cuh", f"{FOLDER}/pair_attention.cu"
TEST = "softmax"

MUTATIONS = [
    ("pairs: sums are not scaled when the maximum rises", FORWARD,
     "    running.sum[half] *= factor;\n", "", TEST),
    ("pairs: outputs are not scaled when the maximum rises", FORWARD,
     "out[n][2 * half] *= factor, out[n][2 * half + 1] *= factor;", ";", TEST),
    ("pairs: before its first key a query weighs all", FORWARD,
     "const bool none = scores[n][i] == kNever;", "const bool none = false;", TEST),
    ("pairs: the next tile lands in this one's stage", FORWARD,
     "LoadStep(smem, args, place, walk.tile(), 1 - stage);",
     "LoadStep(smem, args, place, walk.tile(), stage);", TEST),
    ("pairs: no barrier where a tile starts", FORWARD,
     "    CpAsyncWait<0>();\n    __syncthreads();", "    CpAsyncWait<0>();", TEST),
    ("pairs: no barrier before rows are staged", FORWARD,
     "  __syncthreads();  // the last tile of v", "  // the last tile of v", TEST),
    ("pairs: every slice has the first of V", FORWARD,
     "args, place.row, place.head, tile, place.slice);", "args, place.row, place.head, tile, 0);", TEST),
    ("pairs: a query sees one key too many", PAIR,
     "return key < query.end &&", "return key <= query.end &&", TEST),
    ("pairs: sinks are not seen", PAIR,
     "(key >= query.first || (key >= query.sinks && key < query.sinks + num_sinks))",
     "key >= query.first", TEST),
    ("pairs: tiles of sinks are passed over", PAIR,
     "(begin < span.sinks_end && end > span.sinks)", "false", TEST),
    ("pairs: a tile that some see is one that all see", PAIR,
     "return kTile * tile >= span.all_first &&", "return kTile * tile >= span.first &&", TEST),
    ("pairs: rows past the last query see all", PAIR, "      span.all_end = 0;\n", "", TEST),
    ("pairs: the bias of the next distance", PAIR,
     "pair.bias[c - r + kTile - 1]", "pair.bias[c - r + kTile - 2]", TEST),
    ("pairs: biases beyond the table are read", PAIR,
     "CpAsync4(bias + i, valid ? table + first + i : table, valid);",
     "CpAsync4(bias + i, table + first + i, true);", TEST),
    ("pairs: dS without dO . O", PAIR, "return {of.weight, of.slope * (dweight - query.delta)};", "return {of.weight, of.slope * dweight};", TEST),
    ("pairs: a square's slope is its root", PAIR, "{positive * fmaxf(score, 0.0f), 2 * positive}", "{positive * fmaxf(score, 0.0f), positive}", TEST),
    ("pairs: a square over the keys but the sinks' number", PAIR,
     "max(0, query.end - query.first) + max(0, behind)", "query.end - query.first", TEST),
    ("pairs: dP of the last slice alone", QUERIES,
     "if (this_slice == 0) Clear(dscores);", "Clear(dscores);", TEST),
    ("pairs: dq without the scale", QUERIES,
     "StoreRows<kD>(dq, args.scale,", "StoreRows<kD>(dq, 1.0f,", TEST),
    ("pairs: of heads that share keys the first alone", KEYS,
     "end_head_ = head_ + group_;", "end_head_ = head_ + 1;", TEST),
    ("pairs: a head's last queries are passed over", KEYS,
     "++head_, tile_ = 0)", "++head_, tile_ = 1)", TEST),
    ("pairs: tables of the next tile over this one's", KEYS,
     "LoadTable(smem.tables[at.tile_stage()],", "LoadTable(smem.tables[0],", TEST),
    ("pairs: dv by dS", KEYS,
     "MultiplyWeights<kV>(sums.dv, products, dout, first, columns_v);",
     "MultiplyWeights<kV>(sums.dv, dweights[part], dout, first, columns_v);", TEST),
    ("pairs: dbias without the queries' factors", BIAS,
     "dscores[n][i] * queries[i / 2].bias_scale;", "dscores[n][i];", TEST),
    ("pairs: no barrier before a pair's dS is read", BIAS,
     "    __syncthreads();\n    for (int r = max", "    for (int r = max", TEST),
    ("pairs: of a distance's two bands one", ENTRIES,
     "if (ahead >= 0 && within > 0 && band + 1 < num_bands)", "if (false)", TEST)]

_ALL = {TEST: f"{FOLDER}/"}
PAIRS = Family(
    name="pairs of tiles", folder="src/kernels",
    sources=[f"{FOLDER}/*.cu", f"{FOLDER}/instances/*.cu", "softmax_attention/cuda/*.cu",
             "softmax_attention/cuda/route.cc",
             "../../tests/kernels/softmax_attention/cuda/pairs_reference.cc"],
    tests={TEST: "tests/kernels/softmax_attention/cuda/softmax_attention_test.cc"},
    instances={PAIR: _ALL, FORWARD: _ALL, QUERIES: _ALL, KEYS: _ALL, BIAS: _ALL},
    mutations=MUTATIONS)
