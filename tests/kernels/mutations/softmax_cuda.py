"""Bugs for the CUDA kernels of softmax attention; MUTATIONS as in run.py."""

from family import Family

PAIR, FORWARD = "cuda/tile_pair.cuh", "cuda/forward.cuh"
QUERIES, KEYS = "cuda/query_gradient.cuh", "cuda/key_gradient.cuh"
BIAS, ENTRIES = "cuda/bias_gradient.cuh", "cuda/softmax_attention.cu"
TEST = "softmax"

MUTATIONS = [
    ("softmax: sums are not scaled when the maximum rises", FORWARD,
     "    running.sum[half] *= factor;\n", "", TEST),
    ("softmax: outputs are not scaled when the maximum rises", FORWARD,
     "out[n][2 * half] *= factor, out[n][2 * half + 1] *= factor;", ";", TEST),
    ("softmax: before its first key a query weighs all", FORWARD,
     "const bool none = scores[n][i] == kNever;", "const bool none = false;", TEST),
    ("softmax: the next tile lands in this one's stage", FORWARD,
     "LoadKeys(smem, args, place, walk.tile(), 1 - stage);",
     "LoadKeys(smem, args, place, walk.tile(), stage);", TEST),
    ("softmax: no barrier where a tile starts", FORWARD,
     "    CpAsyncWait<0>();\n    __syncthreads();", "    CpAsyncWait<0>();", TEST),
    ("softmax: no barrier before rows are staged", FORWARD,
     "  __syncthreads();  // the last tile of v", "  // the last tile of v", TEST),
    ("softmax: every slice has the first of V", FORWARD,
     "RowsOf(args.v, tokens, kv_head, kV * place.slice,", "RowsOf(args.v, tokens, kv_head, 0,", TEST),
    ("softmax: a query sees one key too many", PAIR,
     "return key < query.end &&", "return key <= query.end &&", TEST),
    ("softmax: sinks are not seen", PAIR,
     "(key >= query.first || (key >= query.sinks && key < query.sinks + num_sinks))",
     "key >= query.first", TEST),
    ("softmax: tiles of sinks are passed over", PAIR,
     "(begin < span.sinks_end && end > span.sinks)", "false", TEST),
    ("softmax: a tile that some see is one that all see", PAIR,
     "return kTile * tile >= span.all_first &&", "return kTile * tile >= span.first &&", TEST),
    ("softmax: rows past the last query see all", PAIR, "      span.all_end = 0;\n", "", TEST),
    ("softmax: the bias of the next distance", PAIR,
     "pair.bias[c - r + kTile - 1]", "pair.bias[c - r + kTile - 2]", TEST),
    ("softmax: biases beyond the table are read", PAIR,
     "CpAsync4(bias + i, valid ? table + first + i : table, valid);",
     "CpAsync4(bias + i, table + first + i, true);", TEST),
    ("softmax: dS without dO . O", PAIR, "weight * (dweight - query.delta)", "weight * dweight", TEST),
    ("softmax: a square's slope is its root", PAIR, "2 * slope * dweight", "slope * dweight", TEST),
    ("softmax: a square over the keys but the sinks' number", PAIR,
     "max(0, query.end - query.first) + max(0, behind)", "query.end - query.first", TEST),
    ("softmax: dP of the last slice alone", QUERIES,
     "if (this_slice == 0) Clear(dscores);", "Clear(dscores);", TEST),
    ("softmax: dq without the scale", QUERIES,
     "StoreRows<kD>(dq, static_cast<float>(args.scale),", "StoreRows<kD>(dq, 1.0f,", TEST),
    ("softmax: of heads that share keys the first alone", KEYS,
     "end_head_ = head_ + group_;", "end_head_ = head_ + 1;", TEST),
    ("softmax: a head's last queries are passed over", KEYS,
     "++head_, tile_ = 0)", "++head_, tile_ = 1)", TEST),
    ("softmax: tables of the next tile over this one's", KEYS,
     "LoadTable(smem.tables[at.tile_stage()],", "LoadTable(smem.tables[0],", TEST),
    ("softmax: dv by dS", KEYS,
     "MultiplyWeights<kV>(sums.dv, products, dout, first);",
     "MultiplyWeights<kV>(sums.dv, dweights[part], dout, first);", TEST),
    ("softmax: dbias without the queries' factors", BIAS,
     "dscores[n][i] * queries[i / 2].bias_scale;", "dscores[n][i];", TEST),
    ("softmax: no barrier before a pair's dS is read", BIAS,
     "    __syncthreads();\n    for (int r = max", "    for (int r = max", TEST),
    ("softmax: of a distance's two bands one", ENTRIES,
     "if (ahead >= 0 && within > 0 && band + 1 < num_bands)", "if (false)", TEST)]

_ALL = {TEST: "cuda/"}
SOFTMAX = Family(
    name="softmax attention", folder="src/kernels/softmax_attention",
    sources=["cuda/*.cu", "cuda/instances/*.cu", "cuda/route.cc",
             "../../../tests/kernels/softmax_attention/cuda/pairs_reference.cc"],
    tests={TEST: "tests/kernels/softmax_attention/cuda/softmax_attention_test.cc"},
    instances={PAIR: _ALL, FORWARD: _ALL, QUERIES: _ALL, KEYS: _ALL, BIAS: _ALL},
    mutations=MUTATIONS)
