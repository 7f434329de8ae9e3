#include "kernels/bias_map/args.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/sum_partials.h"
#include "kernels/host_device.h"

namespace halflife::kernels {
namespace {

using namespace rows;

static_assert(kBiasMapParts <= cuda::kSumPlaces);

// Threads of a block: packs of neighbouring columns x rows.
constexpr int kColumnPacks = 32, kRows = static_cast<int>(cuda::kBiasMapBlockRows);
constexpr int kThreads = kColumnPacks * kRows;
constexpr int64_t kForwardRows = 4 * kRows;  // of a block: one load of the bias serves 4
constexpr int64_t kMostRowBlocks = 65535;    // of a grid's second dimension

// What a launch knows beyond its arguments: of which parts all rows allow 16-byte accesses. Bits,
// as an array that is indexed by a variable would lie in a stack frame.
struct AlignedParts {
  HL_EVERYWHERE bool Has(int part) const { return (bits >> part & 1u) != 0; }
  unsigned bits = 0;
};

template <typename T>
HL_EVERYWHERE int64_t ColumnBlocks(int64_t width) {
  constexpr int64_t kColumns = int64_t{kColumnPacks} * kPack<T>;
  return (width + kColumns - 1) / kColumns;
}

// Where a thread works: the part, whose blocks of columns are neighbours in the grid; in it, the
// first column and how many of the pack exist; in all parts, that column; the first row.
template <typename T>
struct Place {
  template <typename Args>
  HL_DEVICE explicit Place(const Args& args) : row(static_cast<int>(threadIdx.x) / kColumnPacks) {
    int64_t block = blockIdx.x, before = 0;
    for (; block >= ColumnBlocks<T>(args.parts[part].width); ++part) {
      block -= ColumnBlocks<T>(args.parts[part].width);
      before += args.parts[part].width;
    }
    column = (kColumnPacks * block + threadIdx.x % kColumnPacks) * kPack<T>;
    count =
        static_cast<int>(min(max(args.parts[part].width - column, int64_t{0}), int64_t{kPack<T>}));
    of_all = before + column;
  }
  int part = 0;
  int64_t column, of_all;
  int count, row;
};

// fminf and fmaxf drop a NaN, comparisons that choose it do not.
HL_DEVICE float Map(ElementMap map, float x) {
  if (map == ElementMap::kIdentity) return x;
  return expf(fminf(x, 0.0f)) + (x <= 0.0f ? 0.0f : x);
}
HL_DEVICE float Slope(float feature) { return feature > 1.0f ? 1.0f : feature; }

// Grid: blocks of columns, part by part x blocks that stride over the rows.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    BiasMapForwardKernel(BiasMapArgs<T> args, AlignedParts schedule) {
  const Place<T> place(args);
  if (place.count == 0) return;
  const BiasMapColumns<T> part = args.parts[place.part];
  const bool aligned = schedule.Has(place.part);
  float bias[kPack<T>] = {};
  if (part.bias != nullptr) Load(part.bias + place.column, place.count, aligned, bias);
  const int64_t first = int64_t{kRows} * blockIdx.y + place.row,
                stride = int64_t{kRows} * gridDim.y;
  for (int64_t row = first; row < args.num_rows; row += stride) {
    float y[kPack<T>];
    Load(part.x + row * part.stride + place.column, place.count, aligned, y);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) y[i] = Map(part.map, y[i] + bias[i]);
    Store(part.out + row * part.width + place.column, place.count, aligned, y);
  }
}

// The gradient of a pack of a row.
template <typename T>
HL_DEVICE void LoadGradient(const BiasMapGradColumns<T>& part, int64_t at, int count, bool aligned,
                            float (&d)[kPack<T>]) {
  Load(part.dout + at, count, aligned, d);
  const bool mapped = part.map == ElementMap::kEluPlusOne;
  float feature[kPack<T>];
  Load(mapped ? part.out + at : part.dout, mapped ? count : 0, aligned, feature);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) d[i] *= mapped ? Slope(feature[i]) : 1.0f;
}

// Grid: blocks of columns, part by part x partial sums, whose blocks stride over the rows; partials
// [gridDim.y, columns of all parts].
template <typename T>
__global__ void __launch_bounds__(kThreads, 4)
    BiasMapBackwardKernel(BiasMapGradArgs<T> args, AlignedParts schedule, int64_t num_columns,
                          float* partials) {
  const Place<T> place(args);
  const BiasMapGradColumns<T> part = args.parts[place.part];
  const bool aligned = schedule.Has(place.part);
  float dbias[kPack<T>] = {};
  const int64_t first = int64_t{kRows} * blockIdx.y + place.row,
                stride = int64_t{kRows} * gridDim.y;
  for (int64_t row = first; place.count > 0 && row < args.num_rows; row += stride) {
    float d[kPack<T>];
    LoadGradient(part, row * part.width + place.column, place.count, aligned, d);
    if (part.dx != nullptr)
      Store(part.dx + row * part.stride + place.column, place.count, aligned, d);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) dbias[i] += d[i];
  }
  if (part.dbias == nullptr) return;  // of the whole block
  StoreColumnSums<kColumnPacks, kRows>(dbias, partials + blockIdx.y * num_columns + place.of_all,
                                       place.count);
}

template <typename T, typename Args>
unsigned ColumnBlocksOf(const Args& args) {
  int64_t blocks = 0;
  for (int i = 0; i < args.num_parts; ++i) blocks += ColumnBlocks<T>(args.parts[i].width);
  return static_cast<unsigned>(blocks);
}

template <typename T>
void Forward(const BiasMapArgs<T>& args, cudaStream_t stream) {
  const unsigned columns = ColumnBlocksOf<T>(args);
  if (columns == 0 || args.num_rows == 0) return;
  AlignedParts schedule;
  for (int i = 0; i < args.num_parts; ++i) {
    const BiasMapColumns<T>& part = args.parts[i];
    if (Aligned16<T>(part.width, part.x, part.bias, part.out) && part.stride % kPack<T> == 0)
      schedule.bits |= 1u << i;
  }
  const auto blocks = static_cast<unsigned>(
      std::min(kMostRowBlocks, (args.num_rows + kForwardRows - 1) / kForwardRows));
  Launch({dim3(columns, blocks), dim3(kThreads), 0, "biased map"}, stream, BiasMapForwardKernel<T>,
         args, schedule);
}

template <typename T>
void Backward(const BiasMapGradArgs<T>& args, float* partials, cudaStream_t stream) {
  const unsigned columns = ColumnBlocksOf<T>(args);
  if (columns == 0) return;
  AlignedParts schedule;
  cuda::SumPlaces sums;
  for (int i = 0; i < args.num_parts; ++i) {
    const BiasMapGradColumns<T>& part = args.parts[i];
    if (Aligned16<T>(part.width, part.out, part.dout, part.dx) && part.stride % kPack<T> == 0)
      schedule.bits |= 1u << i;
    sums.places[i] = {part.dbias, part.width, part.added};
  }
  const int64_t count = cuda::NumBiasMapPartials(args.num_rows), num_columns = args.num_columns();
  if (count > 0)
    Launch(
        {dim3(columns, static_cast<unsigned>(count)), dim3(kThreads), 0, "biased map's gradient"},
        stream, BiasMapBackwardKernel<T>, args, schedule, num_columns, partials);
  cuda::SumPartials(partials, count, sums, stream);
}

}  // namespace

namespace cuda {

void BiasMapForward(const BiasMapArgs<float>& args, cudaStream_t stream) { Forward(args, stream); }
void BiasMapForward(const BiasMapArgs<Bf16>& args, cudaStream_t stream) { Forward(args, stream); }
void BiasMapBackward(const BiasMapGradArgs<float>& args, float* partials, cudaStream_t stream) {
  Backward(args, partials, stream);
}
void BiasMapBackward(const BiasMapGradArgs<Bf16>& args, float* partials, cudaStream_t stream) {
  Backward(args, partials, stream);
}

}  // namespace cuda
}  // namespace halflife::kernels
