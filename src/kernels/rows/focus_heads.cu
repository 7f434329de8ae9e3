// A group of lanes has one head of a token, and each lane one pack of its channels. Sums over the
// channels are shuffles, and nothing is loaded twice. A block has one head of several tokens.
#include "kernels/common/cuda/rows.cuh"
#include "kernels/rows/focus_heads_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

constexpr int64_t kMostTokenBlocks = 4096;
constexpr int kSumWarps = 8;  // warps of the block that sums the gradient of a head's direction

struct Lanes {
  int lanes, tokens;  // lanes per group, and groups per block
};
template <typename T>
Lanes LanesOf(int64_t dim) {
  const RowShape shape = RowShapeOf<T>(dim);
  return {shape.lanes, shape.rows_per_block};
}

// The work of a thread. All threads of a group have the same token.
template <typename T>
struct Place {
  HL_DEVICE Place(const Lanes& of, int64_t num_tokens_in, int64_t dim)
      : lanes(of.lanes),
        group(static_cast<int>(threadIdx.x) / of.lanes),
        column(static_cast<int>(threadIdx.x) % of.lanes * kPack<T>),
        count(max(static_cast<int>(dim) - column, 0)),
        head(blockIdx.y),
        num_tokens(num_tokens_in),
        first(int64_t{1} * blockIdx.x * of.tokens),
        step(int64_t{1} * gridDim.x * of.tokens) {}
  // Returns the group's token in the block's tile that begins at token `begin`.
  HL_DEVICE int64_t Token(int64_t begin) const { return begin + group; }
  HL_DEVICE bool Exists(int64_t token) const { return token < num_tokens && count > 0; }

  int lanes, group, column, count;
  int64_t head, num_tokens, first, step;
};

// Returns the sum over a group's lanes, with the same bits in all of them. All lanes of the warp
// must take part.
HL_DEVICE float GroupSum(float x, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kFullWarp, x, offset);
  return x;
}

// A pack of channels, optionally standardized; zeros past the end.
template <int kWidth>
struct Channels {
  float y[kWidth] = {};
  float factor = 1, slope = 0;
};

template <int kWidth>
HL_DEVICE float Dot(const float (&a)[kWidth], const float (&b)[kWidth], int lanes) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum += a[i] * b[i];
  return GroupSum(sum, lanes);
}

template <int kWidth>
HL_DEVICE void Standardise(int64_t dim, float eps, int count, int lanes, Channels<kWidth>& c) {
  float sum = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum += c.y[i];
  const float mean = GroupSum(sum, lanes) / static_cast<float>(dim);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    c.y[i] = i < count ? c.y[i] - mean : 0.0f;
    squares += c.y[i] * c.y[i];
  }
  const RealNormScale scale = RealNormScale::Of(GroupSum(squares, lanes), dim, eps);
  c.factor = scale.factor, c.slope = scale.slope;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) c.y[i] *= scale.factor;
}

// Replaces d, the gradient of standardized channels, by the gradient of the original channels.
template <int kWidth>
HL_DEVICE void Unstandardise(const Channels<kWidth>& c, int64_t dim, int lanes,
                             float (&d)[kWidth]) {
  float sum = 0, dot = 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum += d[i], dot += d[i] * c.y[i];
  const float mean = GroupSum(sum, lanes) / static_cast<float>(dim);
  const float along = GroupSum(dot, lanes) * c.slope;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) d[i] = c.factor * (d[i] - mean - c.y[i] * along);
}

// Loads a head's pack of a token's row; zeros if there is none.
template <typename T, int kWidth>
HL_DEVICE void LoadRow(const FocusRows<const T>& rows, const Place<T>& place, int64_t token,
                       int64_t dim, bool aligned, float (&x)[kWidth]) {
  const bool exists = place.Exists(token);
  const int64_t at = exists ? token * rows.stride + place.head * dim + place.column : 0;
  Load(rows.data + at, exists ? place.count : 0, aligned, x);
}
template <typename T, int kWidth>
HL_DEVICE void StoreRow(const FocusRows<T>& rows, const Place<T>& place, int64_t token, int64_t dim,
                        bool aligned, const float (&x)[kWidth]) {
  if (place.Exists(token))
    Store(rows.data + token * rows.stride + place.head * dim + place.column, place.count, aligned,
          x);
}
// Returns the offset of the pack in [tokens, H, width], from channel `first` of a head on.
template <typename T>
HL_DEVICE int64_t Dense(const Place<T>& place, int64_t token, int64_t heads, int64_t width,
                        int64_t first) {
  return (token * heads + place.head) * width + first + place.column;
}

// k^ = x^ or (x times)^. x and times are kept unchanged.
template <typename T>
struct Leaf {
  float x[kPack<T>], times[kPack<T>];
  Channels<kPack<T>> k;

  HL_DEVICE void Load(const FocusLeavesShape<T>& shape, const Place<T>& place, int64_t token,
                      bool aligned) {
    LoadRow(shape.x, place, token, shape.dim, aligned, x);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) times[i] = 1;
    if (shape.times.data != nullptr) LoadRow(shape.times, place, token, shape.dim, aligned, times);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) k.y[i] = x[i] * times[i];
    if (shape.norm) Standardise(shape.dim, shape.eps, place.count, place.lanes, k);
  }
};

template <typename T>
HL_DEVICE void LoadDirection(const FocusLeavesShape<T>& shape, const Place<T>& place, int64_t token,
                             bool aligned, Channels<kPack<T>>& f) {
  LoadRow(shape.direction, place, token, shape.dim, aligned, f.y);
  if (shape.norm) Standardise(shape.dim, shape.eps, place.count, place.lanes, f);
}
template <typename T>
HL_DEVICE void LoadVector(const FocusLeavesShape<T>& shape, const Place<T>& place,
                          Channels<kPack<T>>& f) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i)
    f.y[i] = i < place.count ? shape.vector[place.head * shape.dim + place.column + i] : 0.0f;
  if (shape.norm) Standardise(shape.dim, shape.eps, place.count, place.lanes, f);
}

// Grid: blocks that stride over the tokens x heads.
template <typename T>
__global__ void __launch_bounds__(kGroupThreads)
    FocusLeavesForwardKernel(FocusLeavesShape<T> shape, FocusLeavesResults<T> results, Lanes lanes,
                             bool aligned) {
  const Place<T> place(lanes, shape.num_tokens, shape.dim);
  const int64_t heads = shape.num_heads, width = shape.payload();
  Channels<kPack<T>> f;
  if (shape.vector != nullptr) LoadVector(shape, place, f);
  for (int64_t begin = place.first; begin < place.num_tokens; begin += place.step) {
    const int64_t token = place.Token(begin);
    Leaf<T> leaf;
    leaf.Load(shape, place, token, aligned);
    if (shape.vector == nullptr) LoadDirection(shape, place, token, aligned, f);
    const float l = shape.scale * Dot(leaf.k.y, f.y, place.lanes);
    if (place.column == 0 && token < place.num_tokens)
      results.log_weight[token * heads + place.head] = shape.elu && l > 0 ? log1pf(l) : l;
    if (shape.pool_x && place.Exists(token))
      Store(results.payload + Dense(place, token, heads, width, 0), place.count, aligned, leaf.k.y);
    if (shape.value.data == nullptr) continue;
    Channels<kPack<T>> v;
    LoadRow(shape.value, place, token, shape.dim, aligned, v.y);
    if (shape.norm_value) Standardise(shape.dim, shape.eps, place.count, place.lanes, v);
    if (place.Exists(token))
      Store(results.payload + Dense(place, token, heads, width, shape.before_value()), place.count,
            aligned, v.y);
  }
}

// Stores a token's gradient of v, through the standardization.
template <typename T>
HL_DEVICE void StoreValueGradient(const FocusLeavesShape<T>& shape,
                                  const FocusLeavesGrads<T>& grads, const Place<T>& place,
                                  int64_t token, bool aligned) {
  Channels<kPack<T>> v;
  float d[kPack<T>];
  const bool exists = place.Exists(token);
  LoadRow(shape.value, place, token, shape.dim, aligned, v.y);
  Load(grads.dpayload +
           (exists ? Dense(place, token, shape.num_heads, shape.payload(), shape.before_value())
                   : 0),
       exists ? place.count : 0, aligned, d);
  if (shape.norm_value) {
    Standardise(shape.dim, shape.eps, place.count, place.lanes, v);
    Unstandardise(v, shape.dim, place.lanes, d);
  }
  StoreRow(grads.dvalue, place, token, shape.dim, aligned, d);
}

// Sums over the tokens of a block, [n], through shared memory. All threads of the block must take
// part.
template <typename T>
HL_DEVICE void StoreVectorSums(const Lanes& lanes, int64_t dim, const float (&sums)[kPack<T>],
                               float* shared, float* mine) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) shared[threadIdx.x * kPack<T> + i] = sums[i];
  __syncthreads();
  const int stride = lanes.lanes * kPack<T>;
  for (int c = static_cast<int>(threadIdx.x); c < dim; c += kGroupThreads) {
    float sum = 0;
    for (int group = 0; group < lanes.tokens; ++group) sum += shared[group * stride + c];
    mine[c] = sum;
  }
}

// Grid as above. partials [blocks, H, n] holds the gradient of the standardized direction.
template <typename T>
__global__ void __launch_bounds__(kGroupThreads)
    FocusLeavesBackwardKernel(FocusLeavesShape<T> shape, FocusLeavesGrads<T> grads, Lanes lanes,
                              bool aligned, float* partials) {
  HL_SHARED(columns, float[kGroupThreads * kPack<T>]);
  const Place<T> place(lanes, shape.num_tokens, shape.dim);
  const int64_t heads = shape.num_heads, width = shape.payload();
  Channels<kPack<T>> f;
  float of_vector[kPack<T>] = {};
  if (shape.vector != nullptr) LoadVector(shape, place, f);
  for (int64_t begin = place.first; begin < place.num_tokens; begin += place.step) {
    const int64_t token = place.Token(begin);
    const bool exists = place.Exists(token);
    Leaf<T> leaf;
    leaf.Load(shape, place, token, aligned);
    if (shape.vector == nullptr) LoadDirection(shape, place, token, aligned, f);
    const float l = shape.elu ? shape.scale * Dot(leaf.k.y, f.y, place.lanes) : 0.0f;
    const float dlog =
        token < place.num_tokens ? grads.dlog_weight[token * heads + place.head] : 0.0f;
    const float dl = shape.scale * dlog * FocusSlope(shape.elu, l);
    float dk[kPack<T>], df[kPack<T>];
    const bool pooled = exists && shape.pool_x;
    Load(grads.dpayload + (pooled ? Dense(place, token, heads, width, 0) : 0),
         pooled ? place.count : 0, aligned, dk);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      dk[i] += dl * f.y[i];
      df[i] = dl * leaf.k.y[i];
      of_vector[i] += df[i];
    }
    if (shape.norm) Unstandardise(leaf.k, shape.dim, place.lanes, dk);
    if (shape.times.data != nullptr) {
      float dtimes[kPack<T>];
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) dtimes[i] = dk[i] * leaf.x[i], dk[i] *= leaf.times[i];
      StoreRow(grads.dtimes, place, token, shape.dim, aligned, dtimes);
    }
    StoreRow(grads.dx, place, token, shape.dim, aligned, dk);
    if (shape.vector == nullptr) {
      if (shape.norm) Unstandardise(f, shape.dim, place.lanes, df);
      StoreRow(grads.ddirection, place, token, shape.dim, aligned, df);
    }
    if (shape.value.data != nullptr) StoreValueGradient(shape, grads, place, token, aligned);
  }
  if (shape.vector != nullptr)
    StoreVectorSums<T>(lanes, shape.dim, of_vector, columns,
                       partials + (blockIdx.x * heads + place.head) * shape.dim);
}

// Grid: heads. All warps add up partials; the first warp holds the head's direction, 4 channels per
// lane.
__global__ void __launch_bounds__(32 * kSumWarps)
    FocusVectorBackwardKernel(FocusLeavesShape<float> shape, const float* partials, int64_t count,
                              float* dvector, bool added) {
  constexpr int kWidth = 4;
  static_assert(32 * kWidth == kFocusHeadDim);
  HL_SHARED(shared, float[kSumWarps][kFocusHeadDim]);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int column = lane * kWidth, exist = max(static_cast<int>(shape.dim) - column, 0);
  const int64_t at = blockIdx.x * shape.dim + column;
  float d[kWidth] = {};
  for (int64_t p = warp; p < count; p += kSumWarps)
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      if (i < exist) d[i] += partials[p * shape.num_heads * shape.dim + at + i];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) shared[warp][column + i] = d[i];
  __syncthreads();
  if (warp != 0) return;
  for (int other = 1; other < kSumWarps; ++other)
#pragma unroll
    for (int i = 0; i < kWidth; ++i) d[i] += shared[other][column + i];
  if (shape.norm) {
    Channels<kWidth> f;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) f.y[i] = i < exist ? shape.vector[at + i] : 0.0f;
    Standardise(shape.dim, shape.eps, exist, 32, f);
    Unstandardise(f, shape.dim, 32, d);
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i)
    if (i < exist) dvector[at + i] = d[i] + (added ? dvector[at + i] : 0.0f);
}

// q^ of a token's head, the channels that enter the gate, and the gate.
template <typename T>
struct Gate {
  Channels<kPack<T>> q;
  float seen[kPack<T>], value;

  HL_DEVICE void Load(const FocusGateShape<T>& shape, const Place<T>& place, int64_t token,
                      bool aligned) {
    const bool exists = place.Exists(token);
    LoadRow(shape.query, place, token, shape.dim, aligned, q.y);
    if (shape.norm) Standardise(shape.dim, shape.eps, place.count, place.lanes, q);
    rows::Load(shape.pooled + (exists ? Dense(place, token, shape.num_heads, shape.width, 0) : 0),
               exists ? place.count : 0, aligned, seen);
    value = Sigmoid(shape.scale * Dot(q.y, seen, place.lanes));
  }
};

template <typename T>
__global__ void __launch_bounds__(kGroupThreads)
    FocusGateForwardKernel(FocusGateShape<T> shape, Lanes lanes, bool aligned, T* out) {
  const Place<T> place(lanes, shape.num_tokens, shape.dim);
  const int64_t heads = shape.num_heads, dim = shape.dim;
  for (int64_t begin = place.first; begin < place.num_tokens; begin += place.step) {
    const int64_t token = place.Token(begin);
    Gate<T> gate;
    gate.Load(shape, place, token, aligned);
    if (!place.Exists(token)) continue;
    float pass[kPack<T>];
    Load(shape.pooled + Dense(place, token, heads, shape.width, shape.width - dim), place.count,
         aligned, pass);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) pass[i] *= gate.value;
    Store(out + Dense(place, token, heads, dim, 0), place.count, aligned, pass);
  }
}

template <typename T>
__global__ void __launch_bounds__(kGroupThreads)
    FocusGateBackwardKernel(FocusGateShape<T> shape, FocusGateGrads<T> grads, Lanes lanes,
                            bool aligned) {
  const Place<T> place(lanes, shape.num_tokens, shape.dim);
  const int64_t heads = shape.num_heads, dim = shape.dim, width = shape.width;
  const bool apart = width > dim;
  for (int64_t begin = place.first; begin < place.num_tokens; begin += place.step) {
    const int64_t token = place.Token(begin);
    const bool exists = place.Exists(token);
    const int count = exists ? place.count : 0;
    Gate<T> gate;
    gate.Load(shape, place, token, aligned);
    float dout[kPack<T>], pass[kPack<T>];
    Load(grads.dout + (exists ? Dense(place, token, heads, dim, 0) : 0), count, aligned, dout);
    Load(shape.pooled + (exists ? Dense(place, token, heads, width, width - dim) : 0), count,
         aligned, pass);
    const float g = gate.value;
    const float dl = shape.scale * g * (1.0f - g) * Dot(dout, pass, place.lanes);
    float dq[kPack<T>];
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      dq[i] = dl * gate.seen[i];
      pass[i] = dl * gate.q.y[i];  // gradient of the channels that enter the gate
      dout[i] = g * dout[i] + (apart ? 0.0f : pass[i]);
    }
    if (shape.norm) Unstandardise(gate.q, dim, place.lanes, dq);
    StoreRow(grads.dquery, place, token, dim, aligned, dq);
    if (!exists) continue;
    Store(grads.dpooled + Dense(place, token, heads, width, width - dim), count, aligned, dout);
    if (apart) Store(grads.dpooled + Dense(place, token, heads, width, 0), count, aligned, pass);
  }
}

template <typename T>
bool IsAligned(const FocusRows<T>& rows) {
  return rows.data == nullptr ||
         (rows.stride % kPack<std::remove_const_t<T>> == 0 && IsAligned16(rows.data));
}
void CheckDim(int64_t dim) {
  HL_CHECK(dim >= 1 && dim <= kFocusHeadDim, "focus heads of ", dim, " channels. Use 1 to ",
           kFocusHeadDim, ".");
}
// Grid: blocks of tokens x heads.
template <typename T>
LaunchShape LaunchOf(int64_t num_tokens, int64_t heads, int64_t dim, int64_t most,
                     const char* name) {
  const int64_t tokens = LanesOf<T>(dim).tokens;
  const int64_t blocks = std::min(most, (num_tokens + tokens - 1) / tokens);
  return {dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(heads)), dim3(kGroupThreads), 0,
          name};
}

}  // namespace

namespace cuda {

template <typename T>
void FocusLeavesForward(const FocusLeavesShape<T>& shape, const FocusLeavesResults<T>& results,
                        cudaStream_t stream) {
  CheckDim(shape.dim);
  if (shape.num_tokens == 0 || shape.num_heads == 0) return;
  const bool aligned = Aligned16<T>(shape.dim, results.payload) && IsAligned(shape.x) &&
                       IsAligned(shape.times) && IsAligned(shape.direction) &&
                       IsAligned(shape.value);
  Launch(
      LaunchOf<T>(shape.num_tokens, shape.num_heads, shape.dim, kMostTokenBlocks, "focus leaves"),
      stream, FocusLeavesForwardKernel<T>, shape, results, LanesOf<T>(shape.dim), aligned);
}

template <typename T>
void FocusLeavesBackward(const FocusLeavesShape<T>& shape, const FocusLeavesGrads<T>& grads,
                         float* partials, cudaStream_t stream) {
  CheckDim(shape.dim);
  if (shape.num_heads == 0) return;
  const bool aligned = Aligned16<T>(shape.dim, grads.dpayload) && IsAligned(shape.x) &&
                       IsAligned(shape.times) && IsAligned(shape.direction) &&
                       IsAligned(shape.value) && IsAligned(grads.dx) && IsAligned(grads.dtimes) &&
                       IsAligned(grads.ddirection) && IsAligned(grads.dvalue);
  const bool sums = shape.vector != nullptr;
  const LaunchShape launch =
      LaunchOf<T>(shape.num_tokens, shape.num_heads, shape.dim,
                  sums ? cuda::kFocusMaxBlocks : kMostTokenBlocks, "focus leaves' gradient");
  if (shape.num_tokens > 0)
    Launch(launch, stream, FocusLeavesBackwardKernel<T>, shape, grads, LanesOf<T>(shape.dim),
           aligned, partials);
  if (!sums) return;
  FocusLeavesShape<float> of_vector;
  of_vector.vector = shape.vector, of_vector.num_heads = shape.num_heads;
  of_vector.dim = shape.dim, of_vector.norm = shape.norm, of_vector.eps = shape.eps;
  Launch({dim3(static_cast<unsigned>(shape.num_heads)), dim3(32 * kSumWarps), 0,
          "focus vectors' gradient"},
         stream, FocusVectorBackwardKernel, of_vector, partials,
         shape.num_tokens > 0 ? int64_t{launch.grid.x} : 0, grads.dvector, grads.vector_added);
}

template <typename T>
void FocusGateForward(const FocusGateShape<T>& shape, T* out, cudaStream_t stream) {
  CheckDim(shape.dim);
  if (shape.num_tokens == 0 || shape.num_heads == 0) return;
  const bool aligned = Aligned16<T>(shape.dim, shape.pooled, out) && IsAligned(shape.query);
  Launch(LaunchOf<T>(shape.num_tokens, shape.num_heads, shape.dim, kMostTokenBlocks, "focus gate"),
         stream, FocusGateForwardKernel<T>, shape, LanesOf<T>(shape.dim), aligned, out);
}

template <typename T>
void FocusGateBackward(const FocusGateShape<T>& shape, const FocusGateGrads<T>& grads,
                       cudaStream_t stream) {
  CheckDim(shape.dim);
  if (shape.num_tokens == 0 || shape.num_heads == 0) return;
  const bool aligned = Aligned16<T>(shape.dim, shape.pooled, grads.dout, grads.dpooled) &&
                       IsAligned(shape.query) && IsAligned(grads.dquery);
  Launch(LaunchOf<T>(shape.num_tokens, shape.num_heads, shape.dim, kMostTokenBlocks,
                     "focus gate's gradient"),
         stream, FocusGateBackwardKernel<T>, shape, grads, LanesOf<T>(shape.dim), aligned);
}

template void FocusLeavesForward(const FocusLeavesShape<float>&, const FocusLeavesResults<float>&,
                                 cudaStream_t);
template void FocusLeavesForward(const FocusLeavesShape<Bf16>&, const FocusLeavesResults<Bf16>&,
                                 cudaStream_t);
template void FocusLeavesBackward(const FocusLeavesShape<float>&, const FocusLeavesGrads<float>&,
                                  float*, cudaStream_t);
template void FocusLeavesBackward(const FocusLeavesShape<Bf16>&, const FocusLeavesGrads<Bf16>&,
                                  float*, cudaStream_t);
template void FocusGateForward(const FocusGateShape<float>&, float*, cudaStream_t);
template void FocusGateForward(const FocusGateShape<Bf16>&, Bf16*, cudaStream_t);
template void FocusGateBackward(const FocusGateShape<float>&, const FocusGateGrads<float>&,
                                cudaStream_t);
template void FocusGateBackward(const FocusGateShape<Bf16>&, const FocusGateGrads<Bf16>&,
                                cudaStream_t);

}  // namespace cuda
}  // namespace halflife::kernels
