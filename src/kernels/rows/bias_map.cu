#include "kernels/common/cuda/rows.cuh"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/bias_map_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

static_assert(kBiasMapParts <= cuda::kSumPlaces);

// For each part, whether all of its rows allow 16-byte accesses. Stored as bits, because an array
// with a variable index would be placed in local memory.
struct AlignedParts {
  HL_EVERYWHERE bool Has(int part) const { return (bits >> part & 1u) != 0; }
  unsigned bits = 0;
};

// The work of a thread. The blocks of columns of a part are adjacent in the grid. `column` is the
// first column within `part`, of which `count` exist up to a whole pack. The place also has that
// column counted over all parts, and the first row.
template <typename T>
struct Place {
  template <typename Args>
  HL_DEVICE explicit Place(const Args& args) : row(static_cast<int>(threadIdx.x) / kColumnLanes) {
    int64_t block = blockIdx.x, before = 0;
    for (; block >= ColumnBlocks(args.parts[part].width, kPack<T>); ++part) {
      block -= ColumnBlocks(args.parts[part].width, kPack<T>);
      before += args.parts[part].width;
    }
    column = (kColumnLanes * block + threadIdx.x % kColumnLanes) * kPack<T>;
    count =
        static_cast<int>(min(max(args.parts[part].width - column, int64_t{0}), int64_t{kPack<T>}));
    of_all = before + column;
  }
  int part = 0;
  int64_t column, of_all;
  int count, row;
};

// Uses comparisons because fminf and fmaxf drop a NaN.
HL_DEVICE float Map(ElementMap map, float x) {
  if (map == ElementMap::kIdentity) return x;
  if (map == ElementMap::kSilu) return x * Sigmoid(x);
  return expf(fminf(x, 0.0f)) + (x <= 0.0f ? 0.0f : x);
}
HL_DEVICE float Slope(float feature) { return feature > 1.0f ? 1.0f : feature; }
HL_DEVICE float SlopeOfSilu(float y) {
  const float s = Sigmoid(y);
  return s * (1.0f + y * (1.0f - s));
}
// Loads gain [column ..], or 1 if there is none.
template <int kWidth>
HL_DEVICE void LoadGain(const float* gain, int64_t column, int count, bool aligned,
                        float (&x)[kWidth]) {
  if (gain != nullptr) {
    LoadFloats(gain + column, count, aligned, x);
    return;
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) x[i] = 1.0f;
}

// Grid: blocks of columns, part by part x blocks that stride over the rows.
template <typename T>
__global__ void __launch_bounds__(kColumnThreads)
    BiasMapForwardKernel(BiasMapArgs<T> args, AlignedParts schedule) {
  const Place<T> place(args);
  if (place.count == 0) return;
  const BiasMapColumns<T> part = args.parts[place.part];
  const bool aligned = schedule.Has(place.part);
  float bias[kPack<T>] = {}, gain[kPack<T>];
  if (part.bias != nullptr) Load(part.bias + place.column, place.count, aligned, bias);
  LoadGain(part.gain, place.column, place.count, aligned, gain);
  const int64_t first = int64_t{kBlockRows} * blockIdx.y + place.row,
                stride = int64_t{kBlockRows} * gridDim.y;
  for (int64_t row = first; row < args.num_rows; row += stride) {
    float y[kPack<T>];
    Load(part.x + row * part.stride + place.column, place.count, aligned, y);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) y[i] = Map(part.map, fmaf(y[i], gain[i], bias[i]));
    Store(part.out + row * part.width + place.column, place.count, aligned, y);
  }
}

// Per-column data that a thread keeps.
template <typename T>
struct GradientColumns {
  float bias[kPack<T>] = {}, gain[kPack<T>];
  float dbias[kPack<T>] = {}, dgain[kPack<T>] = {};
};

// Loads the gradient of a pack before its gain, and adds it to the sums.
template <typename T>
HL_DEVICE void LoadGradient(const BiasMapGradColumns<T>& part, int64_t row, int64_t column,
                            int count, bool aligned, GradientColumns<T>& sums,
                            float (&d)[kPack<T>]) {
  const int64_t at = row * part.width + column;
  const bool is_elu = part.map == ElementMap::kEluPlusOne, is_silu = part.map == ElementMap::kSilu;
  const bool reads_x = is_silu || part.dgain != nullptr;
  Load(part.dout + at, count, aligned, d);
  float other[kPack<T>];  // out or x
  const T* const from = is_elu ? part.out + at : part.x + row * part.x_stride + column;
  Load(is_elu || reads_x ? from : part.dout, is_elu || reads_x ? count : 0, aligned, other);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    if (is_elu) d[i] *= Slope(other[i]);
    if (is_silu) d[i] *= SlopeOfSilu(other[i] + sums.bias[i]);
    sums.dbias[i] += d[i];
    if (part.dgain != nullptr) sums.dgain[i] = fmaf(d[i], other[i], sums.dgain[i]);
  }
}

// Grid: blocks of columns, part by part x partial sums, whose blocks stride over the rows. partials
// is [gridDim.y, num_columns()].
template <typename T>
__global__ void __launch_bounds__(kColumnThreads, 3)
    BiasMapBackwardKernel(BiasMapGradArgs<T> args, AlignedParts schedule, int64_t num_columns,
                          float* partials) {
  const Place<T> place(args);
  const BiasMapGradColumns<T> part = args.parts[place.part];
  const bool aligned = schedule.Has(place.part);
  GradientColumns<T> sums;
  if (part.bias != nullptr) Load(part.bias + place.column, place.count, aligned, sums.bias);
  LoadGain(part.gain, place.column, place.count, aligned, sums.gain);
  const int64_t first = int64_t{kBlockRows} * blockIdx.y + place.row,
                stride = int64_t{kBlockRows} * gridDim.y;
  for (int64_t row = first; place.count > 0 && row < args.num_rows; row += stride) {
    float d[kPack<T>];
    LoadGradient(part, row, place.column, place.count, aligned, sums, d);
    if (part.dx == nullptr) continue;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) d[i] *= sums.gain[i];
    Store(part.dx + row * part.stride + place.column, place.count, aligned, d);
  }
  float* const to = partials + blockIdx.y * num_columns;
  if (part.dbias != nullptr)  // the condition is the same for the whole block
    StoreColumnSums(sums.dbias, to + place.of_all, place.count);
  if (part.dgain == nullptr) return;
  __syncthreads();  // all threads have read the other sums
  StoreColumnSums(sums.dgain, to + args.gain_column(place.part) + place.column, place.count);
}

template <typename T, typename Args>
unsigned ColumnBlocksOf(const Args& args) {
  int64_t blocks = 0;
  for (int i = 0; i < args.num_parts; ++i) blocks += ColumnBlocks(args.parts[i].width, kPack<T>);
  return static_cast<unsigned>(blocks);
}

}  // namespace

namespace cuda {

template <typename T>
void BiasMapForward(const BiasMapArgs<T>& args, cudaStream_t stream) {
  const unsigned columns = ColumnBlocksOf<T>(args);
  if (columns == 0 || args.num_rows == 0) return;
  AlignedParts schedule;
  for (int i = 0; i < args.num_parts; ++i) {
    const BiasMapColumns<T>& part = args.parts[i];
    if (Aligned16<T>(part.width, part.x, part.bias, part.out) &&
        Aligned16<float>(part.width, part.gain) && part.stride % kPack<T> == 0)
      schedule.bits |= 1u << i;
  }
  const auto blocks = static_cast<unsigned>(
      std::min(kMostRowBlocks, (args.num_rows + kForwardRows - 1) / kForwardRows));
  Launch({dim3(columns, blocks), dim3(kColumnThreads), 0, "biased map"}, stream,
         BiasMapForwardKernel<T>, args, schedule);
}

template <typename T>
void BiasMapBackward(const BiasMapGradArgs<T>& args, float* partials, cudaStream_t stream) {
  const unsigned columns = ColumnBlocksOf<T>(args);
  if (columns == 0) return;
  AlignedParts schedule;
  cuda::SumPlaces sums;
  int gains = 0;
  for (int i = 0; i < args.num_parts; ++i) {
    const BiasMapGradColumns<T>& part = args.parts[i];
    if (Aligned16<T>(part.width, part.out, part.dout, part.dx, part.x, part.bias) &&
        Aligned16<float>(part.width, part.gain) && part.stride % kPack<T> == 0 &&
        part.x_stride % kPack<T> == 0)
      schedule.bits |= 1u << i;
    sums.places[i] = {part.dbias, part.width, part.added};
    if (part.dgain == nullptr) continue;
    HL_CHECK(args.num_parts + gains < cuda::kSumPlaces, "biased map: ", args.num_parts,
             " parts and more than ", gains, " gains. Use at most ", cuda::kSumPlaces,
             " of both together.");
    sums.places[args.num_parts + gains++] = {part.dgain, part.width, part.gain_added};
  }
  const int64_t count = cuda::NumRowPartials(args.num_rows), num_columns = args.num_columns();
  if (count > 0)
    Launch({dim3(columns, static_cast<unsigned>(count)), dim3(kColumnThreads), 0,
            "biased map's gradient"},
           stream, BiasMapBackwardKernel<T>, args, schedule, num_columns, partials);
  cuda::SumPartials(partials, count, sums, stream);
}

template void BiasMapForward(const BiasMapArgs<float>&, cudaStream_t);
template void BiasMapForward(const BiasMapArgs<Bf16>&, cudaStream_t);
template void BiasMapBackward(const BiasMapGradArgs<float>&, float*, cudaStream_t);
template void BiasMapBackward(const BiasMapGradArgs<Bf16>&, float*, cudaStream_t);

}  // namespace cuda
}  // namespace halflife::kernels
