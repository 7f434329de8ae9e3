// Host functions of attention by pairs of tiles: workspace, checks and launches. Also the kernels
// that run before and after the loops over tiles.
#include "kernels/common/cuda/device.h"
#include "kernels/common/cuda/pair_attention/tile_pair.cuh"

namespace halflife::kernels::pairs {
namespace {

constexpr int kSumThreads = 256;

HL_DEVICE float DotOfRows(const TensorView& x, const TensorView& y, int row, int token, int head,
                          int width) {
  const auto row_of = [&](const TensorView& view) {
    return static_cast<const bf16*>(view.data) + row * view.stride_b + token * view.stride_t +
           head * view.stride_h;
  };
  const bf16 *const a = row_of(x), *const b = row_of(y);
  float sum = 0;
  for (int i = LaneId(); i < width; i += 32) sum = fmaf(ToFloat(a[i]), ToFloat(b[i]), sum);
  return WarpSum(sum);
}

// Computes, once per tile of queries, the span of keys that they see, and dO . O of each head; all
// blocks of the backward read them. A block has one tile of a row.
__global__ void __launch_bounds__(kThreads)
    PrepareKernel(const HL_GRID_CONSTANT BackwardParams params, int num_tiles) {
  const PairAttentionGradArgs& grads = params.grads;
  const PairAttentionArgs& args = grads.forward;
  const int row = static_cast<int>(blockIdx.x) / num_tiles;
  const int tile = static_cast<int>(blockIdx.x) % num_tiles;
  if (WarpId() == 0) {
    const TileSpan span = SpanOf(args, row, tile);
    if (LaneId() == 0) params.spans[blockIdx.x] = span;
  }
  if (params.deltas == nullptr) return;
  const int rows = min(kTile, args.num_queries - kTile * tile);
  for (int i = WarpId(); i < rows * args.num_heads; i += kThreads / 32) {
    const int query = kTile * tile + i / args.num_heads, head = i % args.num_heads;
    const float delta = DotOfRows(grads.dout, args.out, row, query, head, args.head_dim_v);
    if (LaneId() == 0)
      params.deltas[(int64_t{1} * row * args.num_queries + query) * args.num_heads + head] = delta;
  }
}

// Computes dbias of one head of a row: for each distance, the sum from the two bands that contain
// it.
__global__ void __launch_bounds__(kSumThreads)
    SumBandsKernel(const HL_GRID_CONSTANT BackwardParams params, int num_tiles, int num_bands) {
  const PairAttentionArgs& args = params.grads.forward;
  const int64_t index = int64_t{kSumThreads} * blockIdx.x + threadIdx.x;
  const int64_t row_head = index / args.bias_stride, place = index % args.bias_stride;
  if (row_head >= int64_t{1} * args.batch * args.num_heads) return;
  // The distance as a key's index in its tile minus the query's, and the number of tiles that the
  // key is ahead. `band` is the first of the two bands that contain it.
  const int64_t ahead = place - args.bias_zero + args.num_past + int64_t{kTile} * num_tiles;
  // Band 0 is that of the first tile of keys and the last of queries.
  const int64_t band = ahead / kTile - 1;
  const int within = static_cast<int>(ahead % kTile);
  const float* const sums = params.bands + row_head * num_bands * kBiasTile;
  float sum = 0;
  if (ahead >= kTile && band < num_bands) sum += sums[band * kBiasTile + within + kTile - 1];
  if (ahead >= 0 && within > 0 && band + 1 < num_bands)
    sum += sums[(band + 1) * kBiasTile + within - 1];
  params.grads.dbias[index] = sum;
}

void CheckCall(const PairAttentionArgs& args) {
  HL_CHECK(args.q.dtype == DType::kBF16 && args.head_dim <= kMaxBlock, "pairs of tiles: heads of ",
           args.head_dim, " channels of ", Name(args.q.dtype), ". Use bf16 and at most ", kMaxBlock,
           " channels.");
}

// Calls function.operator()<kD, kV>() with the block sizes for a head.
template <typename Function>
void WithBlock(const PairAttentionArgs& args, const Function& function) {
  const bool narrow = BlockOf(args.head_dim_v) == 64;
  if (BlockOf(args.head_dim) == 64) {
    narrow ? function.template operator()<64, 64>() : function.template operator()<64, 128>();
  } else {
    narrow ? function.template operator()<128, 64>() : function.template operator()<128, 128>();
  }
}

struct ForwardLauncher {
  const PairAttentionArgs& args;
  cudaStream_t stream;
  template <int kD, int kV>
  void operator()() const {
    LaunchForward<kD, kV>(args, stream);
  }
};
struct BackwardLauncher {
  const BackwardParams& params;
  cudaStream_t stream;
  template <int kD, int kV>
  void operator()() const {
    LaunchBackward<kD, kV>(params, stream);
  }
};

// The arrays of a backward's workspace, each aligned to 16 bytes.
struct Workspace {
  int64_t spans, deltas, bands;  // bytes

  explicit Workspace(const PairAttentionGradArgs& grads) {
    const PairAttentionArgs& args = grads.forward;
    const int64_t heads = int64_t{1} * args.batch * args.num_heads;
    spans = Padded(int64_t{1} * args.batch * NumQueryTiles(args) * sizeof(TileSpan));
    deltas = args.divides() ? Padded(heads * args.num_queries * sizeof(float)) : 0;
    bands = grads.dbias == nullptr ? 0 : heads * NumBands(args) * kBiasTile * sizeof(float);
  }
  static int64_t Padded(int64_t bytes) { return (bytes + 15) / 16 * 16; }
};

}  // namespace

size_t WorkspaceBytes(const PairAttentionGradArgs& grads) {
  const Workspace bytes(grads);
  return static_cast<size_t>(bytes.spans + bytes.deltas + bytes.bands);
}

void Forward(const PairAttentionArgs& args, cudaStream_t stream) {
  CheckCall(args);
  if (args.batch == 0 || args.num_queries == 0) return;
  WithBlock(args, ForwardLauncher{args, stream});
}

void Backward(const PairAttentionGradArgs& grads, cudaStream_t stream) {
  const PairAttentionArgs& args = grads.forward;
  CheckCall(args);
  if (args.batch == 0) return;
  HL_CHECK(args.num_queries > 0,
           "pairs of tiles: a backward without queries. Use at least one query.");
  HL_CHECK(grads.workspace != nullptr, "pairs of tiles: a backward needs ", WorkspaceBytes(grads),
           " bytes of workspace, got none. Pass a workspace.");
  const Workspace bytes(grads);
  char* const workspace = static_cast<char*>(grads.workspace);
  BackwardParams params;
  params.grads = grads;
  params.spans = reinterpret_cast<TileSpan*>(workspace);
  if (bytes.deltas > 0) params.deltas = reinterpret_cast<float*>(workspace + bytes.spans);
  if (bytes.bands > 0)
    params.bands = reinterpret_cast<float*>(workspace + bytes.spans + bytes.deltas);
  const int num_tiles = NumQueryTiles(args);
  Launch({dim3(GridBlocks(int64_t{1} * args.batch * num_tiles, "spans of tiles")), dim3(kThreads),
          0, "spans of tiles"},
         stream, PrepareKernel, params, num_tiles);
  WithBlock(args, BackwardLauncher{params, stream});
  if (params.bands == nullptr) return;
  const int64_t size = int64_t{1} * args.batch * args.num_heads * args.bias_stride;
  Launch({dim3(GridBlocks((size + kSumThreads - 1) / kSumThreads, "bands of dbias")),
          dim3(kSumThreads), 0, "bands of dbias"},
         stream, SumBandsKernel, params, num_tiles, NumBands(args));
}

}  // namespace halflife::kernels::pairs
