// Products of up to 8 rows with bf16 weights. Reading the weights once takes most of the time, so
// the kernel keeps many bytes in flight. A warp owns 2 or 4 output columns, which are rows of the
// weight, and requests the first 1,024 or 512 elements of each before it waits for the input. Every
// block then stages the input rows in shared memory, and norms them there if there is a norm.
//
// Shared memory: num_rows (rounded up to a power of two) x min(D, 4096) bf16.
#include <algorithm>

#include "kernels/common/cuda/rows.cuh"
#include "kernels/linear/row_products_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

constexpr int kProductPack = kPack<Bf16>;
static_assert(kProductPack == kProductPackElements);
constexpr int kWarpElements = 32 * kProductPack;  // elements of a weight's row per step of a warp
constexpr int kSliceElements = 4096;              // channels that are staged at a time
static_assert(kMaxNormedDepth <= kSliceElements);
constexpr int kProductThreads = 256;  // at most
constexpr int kWarpsOfManyGroups = 8, kWarpsOfFewGroups = 4, kManyGroups = 1024;

// How a launch divides the columns: each product has groups of columns, and each warp has one
// group.
struct ProductSchedule {
  int first_group[kMaxRowProducts];
  int num_groups;
  int norm_lanes;  // threads per group in NormForward, whose order of sums the norm keeps
};

constexpr int CeilDivide(int x, int y) { return (x + y - 1) / y; }
// A group of SwiGLU has half as many columns, each with a row of both weights.
HL_DEVICE int ColumnsOfGroup(const RowProduct& product, int num_columns) {
  return product.up == nullptr ? num_columns : num_columns / 2;
}

// The rows of the weights that a warp multiplies. Columns past the end repeat the last one.
template <int kColumns>
struct WeightRows {
  HL_DEVICE WeightRows(const RowProduct& product, int first_column, int depth) {
    const bool pairs = product.up != nullptr;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int column = min(first_column + (pairs ? c / 2 : c), product.columns - 1);
      row[c] = (pairs && c % 2 == 1 ? product.up : product.weight) + int64_t{1} * column * depth;
    }
  }
  // Loads the packs that start at element k of each row, if the rows are that long.
  HL_DEVICE void Load(int k, int depth, uint4 (&words)[kColumns]) const {
    if (k >= depth) return;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) words[c] = *reinterpret_cast<const uint4*>(row[c] + k);
  }
  const Bf16* row[kColumns];
};

// Copies channels [begin, end) of the rows to `staged` [kRows, stride], with zeros in missing rows.
template <int kRows>
HL_DEVICE void StageRows(const RowProductsArgs& args, int begin, int end, Bf16* staged,
                         int stride) {
#pragma unroll 1
  for (int row = 0; row < kRows; ++row)
    for (int k = static_cast<int>(threadIdx.x) * kProductPack; k < end - begin;
         k += static_cast<int>(blockDim.x) * kProductPack) {
      uint4 words = make_uint4(0, 0, 0, 0);
      if (row < args.num_rows)
        words = *reinterpret_cast<const uint4*>(args.x + row * args.x_stride + begin + k);
      *reinterpret_cast<uint4*>(staged + row * stride + k) = words;
    }
}

// How the warps share the sums of squares. A warp does the work of one warp of NormForward at a
// time.
struct NormSums {
  HL_DEVICE NormSums(const RowProductsArgs& args, int norm_lanes)
      : width(args.depth / args.norm_groups),
        warps(max(1, norm_lanes / 32)),
        step(max(32, norm_lanes) * kProductPack) {}
  int width, warps, step;  // channels and warps of a group; channels per step of its warps
};
constexpr int kMaxNormSums = std::max(kMaxNormGroups, kMaxRowWarps);

// Stages the rows, or the sums with the branch, which are stored once per launch. Returns the sums
// of squares in `squares` [row][group, warp].
HL_DEVICE void StageSums(const RowProductsArgs& args, const NormSums& norm, Bf16* staged,
                         float (*squares)[kMaxNormSums]) {
  const int num_warps = static_cast<int>(blockDim.x) / 32, per_row = args.norm_groups * norm.warps;
  for (int task = WarpId(); task < args.num_rows * per_row; task += num_warps) {
    const int row = task / per_row, of_row = task % per_row;
    const int64_t begin = int64_t{1} * row * args.depth + of_row / norm.warps * norm.width;
    float sum = 0;
    for (int k = (of_row % norm.warps * 32 + LaneId()) * kProductPack; k < norm.width;
         k += norm.step) {
      float x[kProductPack];
      Load(args.x + begin + k, kProductPack, true, x);
      if (args.branch != nullptr) {
        float branch[kProductPack];
        Load(args.branch + begin + k, kProductPack, true, branch);
#pragma unroll
        for (int i = 0; i < kProductPack; ++i) x[i] = FromStorage(Narrow<Bf16>(x[i] + branch[i]));
        if (blockIdx.x == 0) Store(args.sum + begin + k, kProductPack, true, x);
      }
#pragma unroll
      for (int i = 0; i < kProductPack; ++i) sum += x[i] * x[i];
      Store(staged + begin + k, kProductPack, true, x);
    }
    sum = WarpSum(sum);
    if (LaneId() == 0) squares[row][of_row] = sum;
  }
}

// Replaces a pack of a staged row by its norm: x / sqrt(mean(x^2) + eps) * weight * f(gate).
HL_DEVICE void NormPack(const RowProductsArgs& args, const NormSums& norm, const float* squares,
                        int row, int k, float (&x)[kProductPack]) {
  const int group = k / norm.width;
  float sum = 0;
  for (int warp = 0; warp < norm.warps; ++warp) sum += squares[group * norm.warps + warp];
  const float inverse_rms = 1.0f / sqrtf(sum / static_cast<float>(norm.width) + args.norm_eps);
  float weight[kProductPack];
  LoadFloats(args.norm_weight + k - group * norm.width, kProductPack, true, weight);
#pragma unroll
  for (int i = 0; i < kProductPack; ++i) x[i] *= inverse_rms * weight[i];
  if (args.gate == nullptr) return;
  float gate[kProductPack];
  Load(args.gate + row * args.gate_stride + k, kProductPack, true, gate);
#pragma unroll
  for (int i = 0; i < kProductPack; ++i)
    x[i] *= GateFactor(args.gate_kind, gate[i], Sigmoid(gate[i]));
}

// Stages the norm of the rows, and stores it once per launch.
template <int kRows>
HL_DEVICE void StageNormed(const RowProductsArgs& args, int norm_lanes, Bf16* staged) {
  HL_SHARED(squares, float[kMaxProductRows][kMaxNormSums]);
  const NormSums norm(args, norm_lanes);
  StageSums(args, norm, staged, squares);
  __syncthreads();
#pragma unroll 1
  for (int row = 0; row < kRows; ++row)
    for (int k = static_cast<int>(threadIdx.x) * kProductPack; k < args.depth;
         k += static_cast<int>(blockDim.x) * kProductPack) {
      const int64_t place = int64_t{1} * row * args.depth + k;
      float x[kProductPack] = {};
      if (row < args.num_rows) {
        Load(staged + place, kProductPack, true, x);
        NormPack(args, norm, squares[row], row, k, x);
        if (blockIdx.x == 0 && args.normed != nullptr)
          Store(args.normed + place, kProductPack, true, x);
      }
      Store(staged + place, kProductPack, true, x);
    }
}

// sums[r][c] += the products of one pack of each row with one pack of each column, in order.
template <int kRows, int kColumns>
HL_DEVICE void MultiplyAddPacks(const Bf16* staged, int stride, const uint4 (&words)[kColumns],
                                float (&sums)[kRows][kColumns]) {
  float weight[kColumns][kProductPack];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) Unpack(words[c], weight[c]);
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    float x[kProductPack];
    Unpack(*reinterpret_cast<const uint4*>(staged + row * stride), x);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < kProductPack; ++i) sums[row][c] = fmaf(x[i], weight[c][i], sums[row][c]);
    }
  }
}

// Adds up the lanes' sums. Lane row * kColumns + j returns output j of the group in that row.
template <int kRows, int kColumns>
HL_DEVICE float GroupOutput(const float (&sums)[kRows][kColumns], bool pairs) {
  float output = 0;
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    float total[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) total[c] = WarpSum(sums[row][c]);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      float y = total[j];
      if (pairs) {
        const float gate = FromStorage(Narrow<Bf16>(total[2 * j % kColumns]));
        const float up = FromStorage(Narrow<Bf16>(total[(2 * j + 1) % kColumns]));
        y = up * (gate * Sigmoid(gate));
      }
      if (LaneId() == row * kColumns + j) output = y;
    }
  }
  return output;
}

// Grid: blocks of groups. Each warp computes one group of columns for all rows.
template <int kRows, int kColumns>
__global__ void __launch_bounds__(kProductThreads, kRows == 8 ? 1 : 2)
    RowProductsKernel(HL_GRID_CONSTANT const RowProductsArgs args,
                      HL_GRID_CONSTANT const ProductSchedule schedule) {
  constexpr int kAhead = 8 / kColumns;  // steps that are requested before they are used
  static_assert(kSliceElements % (kAhead * kWarpElements) == 0);
  static_assert(kRows * kColumns <= 32);
  HL_DYNAMIC_SMEM(smem);
  const int depth = args.depth, stride = min(depth, kSliceElements), lane = LaneId();
  SmemCarver carver(smem);
  Bf16* const staged = carver.Take<Bf16>(kRows * stride);

  const int own = static_cast<int>(blockIdx.x) * (static_cast<int>(blockDim.x) / 32) + WarpId();
  const int group = min(own, schedule.num_groups - 1);  // warps without a group repeat the last one
  int index = 0;
#pragma unroll
  for (int i = 1; i < kMaxRowProducts; ++i)
    if (i < args.num_products && group >= schedule.first_group[i]) index = i;
  const RowProduct& product = args.products[index];
  const int width = ColumnsOfGroup(product, kColumns);
  const int first_column = (group - schedule.first_group[index]) * width;
  const WeightRows<kColumns> weights(product, first_column, depth);

  uint4 words[kAhead][kColumns];
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
    weights.Load(lane * kProductPack + i * kWarpElements, depth, words[i]);
  float sums[kRows][kColumns] = {};
  for (int begin = 0; begin < depth; begin += kSliceElements) {
    const int end = min(depth, begin + kSliceElements);
    if (begin > 0) __syncthreads();
    if (args.norm_weight != nullptr) {
      StageNormed<kRows>(args, schedule.norm_lanes, staged);
    } else {
      StageRows<kRows>(args, begin, end, staged, stride);
    }
    __syncthreads();
    for (int k = begin + lane * kProductPack; k < end; k += kAhead * kWarpElements) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int now = k + i * kWarpElements;
        if (now >= end) continue;
        MultiplyAddPacks(staged + now - begin, stride, words[i], sums);
        weights.Load(now + kAhead * kWarpElements, depth, words[i]);
      }
    }
  }

  const float output = GroupOutput(sums, product.up != nullptr);
  const int row = lane / kColumns, column = lane % kColumns;
  if (own != group || row >= args.num_rows || lane >= kRows * kColumns || column >= width ||
      first_column + column >= product.columns)
    return;
  const int64_t place = int64_t{1} * row * product.columns + first_column + column;
  if (product.wide) {
    static_cast<float*>(product.out)[place] = output;
  } else {
    static_cast<Bf16*>(product.out)[place] = Narrow<Bf16>(output);
  }
}

template <int kRows, int kColumns>
void LaunchProducts(const RowProductsArgs& args, cudaStream_t stream) {
  ProductSchedule schedule = {};
  schedule.norm_lanes = RowShapeOf<Bf16>(args.depth / args.norm_groups).lanes;
  for (int i = 0; i < args.num_products; ++i) {
    schedule.first_group[i] = schedule.num_groups;
    const int width = args.products[i].up == nullptr ? kColumns : kColumns / 2;
    schedule.num_groups += CeilDivide(args.products[i].columns, width);
  }
  const int warps = schedule.num_groups >= kManyGroups ? kWarpsOfManyGroups : kWarpsOfFewGroups;
  const int smem_bytes =
      kRows * std::min(args.depth, kSliceElements) * static_cast<int>(sizeof(Bf16));
  Launch({dim3(static_cast<unsigned>(CeilDivide(schedule.num_groups, warps))), dim3(32 * warps),
          smem_bytes, "products of a few rows"},
         stream, RowProductsKernel<kRows, kColumns>, args, schedule);
}

}  // namespace

namespace cuda {

void RowProducts(const RowProductsArgs& args, cudaStream_t stream) {
  HL_CHECK(args.num_rows >= 1 && args.num_rows <= kMaxProductRows && args.num_products >= 1 &&
               args.num_products <= kMaxRowProducts && args.depth >= kProductPack &&
               args.depth % kProductPack == 0 && args.x_stride % kProductPack == 0,
           "products of ", args.num_rows, " rows of ", args.depth, " channels, ", args.x_stride,
           " apart, with ", args.num_products, " weights. Use 1 to ", kMaxProductRows,
           " rows, 1 to ", kMaxRowProducts, " weights, and multiples of ", kProductPack,
           " channels.");
  HL_CHECK(args.norm_weight == nullptr || (args.depth <= kMaxNormedDepth && args.norm_groups >= 1 &&
                                           args.norm_groups <= kMaxNormGroups &&
                                           args.depth % (args.norm_groups * kProductPack) == 0 &&
                                           (args.num_rows == 1 || args.x_stride == args.depth)),
           "a norm of rows of ", args.depth, " channels in ", args.norm_groups, " groups, ",
           args.x_stride, " apart. Use contiguous rows of at most ", kMaxNormedDepth,
           " channels, and at most ", kMaxNormGroups, " groups of a multiple of ", kProductPack,
           " channels.");
  HL_CHECK(args.branch == nullptr || (args.norm_weight != nullptr && args.sum != nullptr),
           "a branch is added only before a norm. Give both, and a place for the sum.");
  if (args.num_rows == 1) return LaunchProducts<1, 2>(args, stream);
  if (args.num_rows == 2) return LaunchProducts<2, 2>(args, stream);
  if (args.num_rows <= 4) return LaunchProducts<4, 4>(args, stream);
  LaunchProducts<8, 4>(args, stream);
}

}  // namespace cuda
}  // namespace halflife::kernels
