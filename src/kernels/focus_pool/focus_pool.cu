#include <cmath>

#include "kernels/common/cuda/device.h"
#include "kernels/focus_pool/focus_pool_args.h"
#include "kernels/focus_pool/focus_pool_plan.h"

namespace halflife::kernels {
namespace {

// Each has a column of the rows; with more columns it processes several, one after another.
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr float kNothing = -INFINITY;  // log weight of an absent leaf

HL_DEVICE float FromStorage(float x) { return x; }
HL_DEVICE float FromStorage(Bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
template <typename T>
HL_DEVICE T ToStorage(float x);
template <>
HL_DEVICE float ToStorage<float>(float x) {
  return x;
}
template <>
HL_DEVICE Bf16 ToStorage<Bf16>(float x) {
  return {static_cast<uint16_t>(PackBf16(x, 0.0f))};
}

// Returns the larger; NaN if either is NaN.
HL_DEVICE float Larger(float a, float b) { return b <= a || a != a ? a : b; }
// Returns exp(x - max). If max is -inf, the weight is that of x itself, which is 0.
HL_DEVICE float Weight(float x, float max) { return expf(x - (max == kNothing ? 0.0f : max)); }

// ---- sources of a scan: tokens, or in the backward the rows that read them ----
// cpu/focus_pool_isa.cc has the same.

template <typename T>
struct Tokens {
  FocusPoolShape<T> shape;
  FocusPoolResults<T> results;
  static constexpr bool kBackward = false;

  HL_DEVICE int64_t Halo(const FocusRun& run) const {
    return run.sequence >= 0 && shape.tail_log_weight != nullptr ? shape.window - 1 : 0;
  }
  // Places are indices of (token, head) in the rows; those of the tail count downwards from -1.
  HL_DEVICE int64_t Place(const FocusRun& run, int64_t leaf, int64_t head) const {
    const int64_t halo = Halo(run);
    if (leaf < halo) return -1 - ((run.sequence * halo + leaf) * shape.num_heads + head);
    return (run.row * shape.seq_len + run.begin + leaf - halo) * shape.num_heads + head;
  }
  HL_DEVICE void Leaf(int64_t place, float* key, float* mass, float* scale) const {
    *key = place < 0 ? shape.tail_log_weight[-1 - place] : shape.log_weight[place];
    *mass = *scale = 1;
  }
  HL_DEVICE const T* Row(int64_t place) const {
    return place < 0 ? shape.tail_u + (-1 - place) * shape.dim : shape.u + place * shape.dim;
  }
  // Returns the factor of a row's sums.
  HL_DEVICE float Finish(int64_t place, float max, float mass, float*) const {
    const bool nothing = max == kNothing;
    const auto eps = static_cast<float>(shape.eps);
    const float sum = nothing ? 0.0f : mass + (eps > 0 ? eps * expf(-max) : 0.0f);
    results.row_max[place] = max;
    results.row_sum[place] = sum;
    return nothing ? 0.0f : 1.0f / sum;
  }
  // Stores column p of a row. Returns the value that is summed over the columns.
  HL_DEVICE float Store(int64_t place, int64_t p, float sum) const {
    results.out[place * shape.dim + p] = ToStorage<T>(sum);
    return 0;
  }
  HL_DEVICE void StoreDot(int64_t, float, float) const {}

  HL_DEVICE bool Before(const FocusRun& run, int64_t head, float* max, float* mass) const {
    if (run.sequence < 0 || shape.log_scale == nullptr) return false;
    const int64_t at = run.sequence * shape.num_heads + head;
    *max = shape.log_scale[at], *mass = shape.mass[at];
    return *mass != 0;
  }
  HL_DEVICE float SumBefore(const FocusRun& run, int64_t head, int64_t p) const {
    return shape.sum[(run.sequence * shape.num_heads + head) * shape.dim + p];
  }
  HL_DEVICE void After(const FocusRun& run, int64_t head, int64_t p, float max, float mass,
                       float sum) const {
    if (run.final_state < 0 || results.log_scale == nullptr) return;
    const int64_t at = run.final_state * shape.num_heads + head;
    if (p == 0) results.log_scale[at] = max == kNothing ? 0.0f : max, results.mass[at] = mass;
    results.sum[at * shape.dim + p] = sum;
  }
};

template <typename T>
struct Readers {
  FocusPoolShape<T> shape;
  FocusPoolResults<T> results;
  FocusPoolGrads<T> grads;
  const float* delta;
  static constexpr bool kBackward = true;

  HL_DEVICE int64_t Halo(const FocusRun&) const { return 0; }
  HL_DEVICE int64_t Place(const FocusRun& run, int64_t leaf, int64_t head) const {
    const int64_t token = run.length - 1 - leaf;
    if (token < 0)
      return -1 -
             ((run.sequence * (shape.window - 1) + shape.window - 1 + token) * shape.num_heads +
              head);
    return (run.row * shape.seq_len + run.begin + token) * shape.num_heads + head;
  }
  HL_DEVICE void Leaf(int64_t place, float* key, float* mass, float* scale) const {
    const float max = place < 0 ? kNothing : results.row_max[place];
    const bool nothing = max == kNothing;
    *key = nothing ? kNothing : -max;
    *scale = nothing ? 0.0f : 1.0f / results.row_sum[place];
    *mass = nothing ? 0.0f : delta[place] * *scale;
  }
  HL_DEVICE const T* Row(int64_t place) const { return grads.dout + place * shape.dim; }
  HL_DEVICE float LogWeight(int64_t place) const {
    return place < 0 ? shape.tail_log_weight[-1 - place] : shape.log_weight[place];
  }
  HL_DEVICE float Finish(int64_t place, float max, float mass, float* rho) const {
    const float log_weight = LogWeight(place);
    const bool nothing = log_weight == kNothing || max == kNothing;
    const float factor = nothing ? 0.0f : expf(log_weight + max);
    *rho = factor * mass;
    return factor;
  }
  HL_DEVICE float Store(int64_t place, int64_t p, float sum) const {
    const bool masked = LogWeight(place) == kNothing;  // u of a masked token is not read
    const int64_t at = (place < 0 ? -1 - place : place) * shape.dim + p;
    (place < 0 ? grads.dtail_u : grads.du)[at] = ToStorage<T>(masked ? 0.0f : sum);
    return masked ? 0.0f : sum * FromStorage((place < 0 ? shape.tail_u : shape.u)[at]);
  }
  HL_DEVICE void StoreDot(int64_t place, float dot, float rho) const {
    const float gradient = LogWeight(place) == kNothing ? 0.0f : dot - rho;
    (place < 0 ? grads.dtail_log_weight[-1 - place] : grads.dlog_weight[place]) = gradient;
  }

  HL_DEVICE bool Before(const FocusRun& run, int64_t head, float* max, float* mass) const {
    if (run.final_state < 0 || grads.dsum == nullptr) return false;
    const int64_t at = run.final_state * shape.num_heads + head;
    *max = -results.log_scale[at], *mass = -grads.dmass[at];
    return results.mass[at] != 0;
  }
  HL_DEVICE float SumBefore(const FocusRun& run, int64_t head, int64_t p) const {
    return grads.dsum[(run.final_state * shape.num_heads + head) * shape.dim + p];
  }
  HL_DEVICE void After(const FocusRun& run, int64_t head, int64_t p, float max, float mass,
                       float sum) const {
    if (run.sequence < 0 || grads.dinitial_sum == nullptr) return;
    const int64_t at = run.sequence * shape.num_heads + head;
    const bool nothing = shape.mass[at] == 0 || max == kNothing;
    const float weight = nothing ? 0.0f : expf(shape.log_scale[at] + max);
    if (p == 0) grads.dinitial_mass[at] = -weight * mass;
    grads.dinitial_sum[at * shape.dim + p] = weight * sum;
  }
};

// ---- device functions of a block ----

// Running sums of up to a chunk of leaves. Element i combines the leaves up to the i-th.
struct Running {
  int64_t place[kFocusChunk];  // negative for those of the tail
  float key[kFocusChunk];
  // sum_i = keep[i] sum_{i-1} + add[i] row_i
  float max[kFocusChunk], mass[kFocusChunk], keep[kFocusChunk], add[kFocusChunk];
};

// Scans n leaves: first, first + step, ... Ends with a barrier.
template <typename Source>
HL_DEVICE void Scan(const Source& source, const FocusRun& run, int64_t head, int64_t first,
                    int step, int n, Running& r) {
  const int i = static_cast<int>(threadIdx.x);
  float mass = 0, scale = 0;
  if (i < n) {
    r.place[i] = source.Place(run, first + int64_t{step} * i, head);
    source.Leaf(r.place[i], &r.key[i], &mass, &scale);
  }
  __syncthreads();
  if (i < n) {
    float before = kNothing;
    for (int j = 0; j < i; ++j) before = Larger(before, r.key[j]);
    const float max = Larger(before, r.key[i]);
    const float add = Weight(r.key[i], max);
    r.max[i] = max;
    r.keep[i] = Weight(before, max);
    r.mass[i] = add * mass;
    r.add[i] = add * scale;
  }
  __syncthreads();
  if (i == 0)
    for (int j = 1; j < n; ++j) r.mass[j] += r.keep[j] * r.mass[j - 1];
  __syncthreads();
}

// Adds column p of the next row to a running sum. The row of a masked leaf is not read.
template <typename Source>
HL_DEVICE float Take(const Source& source, const Running& r, int i, int64_t p, float sum) {
  const float x = r.key[i] == kNothing ? 0.0f : FromStorage(source.Row(r.place[i])[p]);
  return r.keep[i] * sum + r.add[i] * x;
}

// Adds the sum of x over each warp to the warp's element of `sums`.
HL_DEVICE void AddOverWarp(float x, float* sums) {
  x = WarpSum(x);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] += x;
}

// ---- kernels ----

// Computes delta = dout . out of each (token, head), one warp each.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    FocusDeltaKernel(const T* out, const T* dout, int64_t count, int64_t dim, float* delta) {
  const int64_t place = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  float sum = 0;
  if (place < count)
    for (int64_t p = threadIdx.x % 32; p < dim; p += 32)
      sum += FromStorage(out[place * dim + p]) * FromStorage(dout[place * dim + p]);
  sum = WarpSum(sum);
  if (place < count && threadIdx.x % 32 == 0) delta[place] = sum;
}

// Returns the total of a chunk's leaves: max, mass, then P sums.
HL_DEVICE float* TotalOf(float* totals, int64_t chunk, int64_t head, int64_t num_heads,
                         int64_t dim) {
  return totals + (chunk * num_heads + head) * (dim + 2);
}

// Grid: chunks x heads.
template <typename Source>
__global__ void __launch_bounds__(kThreads)
    FocusTotalsKernel(HL_GRID_CONSTANT const Source source, cuda::FocusWork work) {
  HL_SHARED(running, Running);
  const int64_t head = blockIdx.y, dim = source.shape.dim;
  const FocusChunk chunk = work.chunks[blockIdx.x];
  const FocusRun run = work.runs[chunk.run];
  float* const total = TotalOf(work.totals, blockIdx.x, head, source.shape.num_heads, dim);
  Scan(source, run, head, chunk.first, 1, chunk.length, running);
  const int last = chunk.length - 1;
  if (threadIdx.x == 0) {
    total[0] = last < 0 ? kNothing : running.max[last];
    total[1] = last < 0 ? 0.0f : running.mass[last];
  }
  for (int64_t p = threadIdx.x; p < dim; p += kThreads) {
    float sum = 0;
    for (int i = 0; i < chunk.length; ++i) sum = Take(source, running, i, p, sum);
    total[2 + p] = sum;
  }
}

// A column of an element of the monoid, with the max and mass that all columns share.
struct Column {
  float max = kNothing, mass = 0, sum = 0;
};
HL_DEVICE Column Combine(const Column& a, const Column& b) {
  const float max = Larger(a.max, b.max), left = Weight(a.max, max), right = Weight(b.max, max);
  return {max, left * a.mass + right * b.mass, left * a.sum + right * b.sum};
}
HL_DEVICE Column LoadColumn(const float* total, int64_t p) {
  return {total[0], total[1], total[2 + p]};
}

// For each chunk of a block, computes what lies between the two chunks that its rows scan: the rest
// of the previous block, and the earlier chunks of its own block. Grid: blocks x heads x groups of
// 128 columns. All columns compute the same max and mass.
template <typename Source>
__global__ void __launch_bounds__(kThreads)
    FocusOuterKernel(HL_GRID_CONSTANT const Source source, cuda::FocusWork work) {
  const int64_t head = blockIdx.y, dim = source.shape.dim, heads = source.shape.num_heads;
  const int64_t p = int64_t{blockIdx.z} * kThreads + threadIdx.x;
  if (p >= dim) return;
  const FocusBlock block = work.blocks[blockIdx.x];
  const FocusRun run = work.runs[block.run];
  const auto store = [&](float* totals, int c, const Column& x) {
    float* const to = TotalOf(totals, block.first_chunk + c, head, heads, dim);
    if (p == 0) to[0] = x.max, to[1] = x.mass;
    to[2 + p] = x.sum;
  };
  const auto load = [&](int64_t chunk) {
    return LoadColumn(TotalOf(work.totals, chunk, head, heads, dim), p);
  };
  Column rest;
  for (int c = block.num_before - 1; c >= 0; --c) {
    if (c < block.num_chunks) store(work.rest, c, rest);
    rest = Combine(rest, load(block.first_before + c));
  }
  Column carry;
  if (source.shape.window == 0) {
    float max = 0, mass = 0;
    if (source.Before(run, head, &max, &mass)) carry = {max, mass, source.SumBefore(run, head, p)};
  }
  for (int c = 0; c < block.num_chunks; ++c) {
    store(work.carry, c, carry);
    carry = Combine(carry, load(block.first_chunk + c));
  }
  if (source.shape.window == 0) source.After(run, head, p, carry.max, carry.mass, carry.sum);
}

// The factors of the sums of a chunk's rows.
struct RowWeights {
  float of_prefix[kFocusChunk], of_outer[kFocusChunk], of_suffix[kFocusChunk];
  float rho[kFocusChunk];
  float dots[kFocusChunk][kWarps];
};

// Returns column p of the part between the two scans; all columns share the max and mass.
template <typename Source>
HL_DEVICE Column OuterOf(const Source& source, const cuda::FocusWork& work, const FocusChunk& chunk,
                         int64_t p) {
  const int64_t heads = source.shape.num_heads, dim = source.shape.dim;
  const Column carry = LoadColumn(TotalOf(work.carry, blockIdx.x, blockIdx.y, heads, dim), p);
  if (chunk.opposite == 0) return carry;
  return Combine(carry, LoadColumn(TotalOf(work.rest, blockIdx.x, blockIdx.y, heads, dim), p));
}

template <typename Source>
HL_DEVICE void Weigh(const Source& source, const FocusChunk& chunk, const Column& outer,
                     const Running& prefix, const Running& suffix, RowWeights& weights) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < chunk.length) {
    const int leaves = chunk.opposite - 1 - i;  // leaves of the previous block within the window
    const float near_max = leaves > 0 ? suffix.max[leaves - 1] : kNothing;
    const float near_mass = leaves > 0 ? suffix.mass[leaves - 1] : 0.0f;
    const float max = Larger(Larger(outer.max, near_max), prefix.max[i]);
    const float of_prefix = Weight(prefix.max[i], max), of_outer = Weight(outer.max, max),
                of_suffix = Weight(near_max, max);
    const float mass = of_prefix * prefix.mass[i] + of_outer * outer.mass + of_suffix * near_mass;
    const float factor = source.Finish(prefix.place[i], max, mass, &weights.rho[i]);
    weights.of_prefix[i] = factor * of_prefix;
    weights.of_outer[i] = factor * of_outer;
    weights.of_suffix[i] = factor * of_suffix;
    for (int warp = 0; warp < kWarps; ++warp) weights.dots[i][warp] = 0;
  }
  __syncthreads();
}

// Stores the scalars of the rows, from the sums of each warp.
template <typename Source>
HL_DEVICE void StoreDots(const Source& source, int n, const int64_t* place,
                         const RowWeights& weights) {
  if (!Source::kBackward) return;
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i >= n) return;
  float dot = 0;
  for (int warp = 0; warp < kWarps; ++warp) dot += weights.dots[i][warp];
  source.StoreDot(place[i], dot, weights.rho[i]);
}

constexpr int kSuffixBytes = kFocusChunk * kThreads * static_cast<int>(sizeof(float));

// Grid: chunks x heads. Dynamic shared memory: the suffixes of the opposite chunk, one column per
// thread; row i combines the leaves from the i-th on.
template <typename Source>
__global__ void __launch_bounds__(kThreads)
    FocusRowsKernel(HL_GRID_CONSTANT const Source source, cuda::FocusWork work) {
  HL_DYNAMIC_SMEM(smem);
  SmemCarver carver(smem);
  float* const suffixes = carver.Take<float>(kFocusChunk * kThreads);
  HL_SHARED(prefix, Running);
  HL_SHARED(suffix, Running);
  HL_SHARED(weights, RowWeights);
  const int64_t head = blockIdx.y, dim = source.shape.dim;
  const FocusChunk chunk = work.chunks[blockIdx.x];
  if (chunk.has_rows == 0) return;
  const FocusRun run = work.runs[chunk.run];
  Scan(source, run, head, chunk.first, 1, chunk.length, prefix);
  // Number of leaves in the suffixes.
  const int behind = chunk.opposite > 0 ? chunk.opposite - 1 : 0;
  Scan(source, run, head, chunk.first - source.shape.window + behind, -1, behind, suffix);
  Weigh(source, chunk, OuterOf(source, work, chunk, 0), prefix, suffix, weights);
  for (int64_t first = 0; first < dim; first += kThreads) {
    const int64_t p = first + threadIdx.x;
    const bool exists = p < dim;
    float* const column = suffixes + threadIdx.x;
    float sum = 0;
    for (int i = 0; i < behind && exists; ++i) {
      sum = Take(source, suffix, i, p, sum);
      column[(behind - i) * kThreads] = sum;
    }
    const float outer = exists ? OuterOf(source, work, chunk, p).sum : 0.0f;
    sum = 0;
    for (int i = 0; i < chunk.length; ++i) {
      float dot = 0;
      if (exists) {
        sum = Take(source, prefix, i, p, sum);
        const float near = i < behind ? column[(i + 1) * kThreads] : 0.0f;
        const float total =
            weights.of_prefix[i] * sum + weights.of_outer[i] * outer + weights.of_suffix[i] * near;
        dot = source.Store(prefix.place[i], p, total);
      }
      if (Source::kBackward) AddOverWarp(dot, weights.dots[i]);
    }
  }
  StoreDots(source, chunk.length, prefix.place, weights);
}

// The leaves of a chunk, preceded by those that its first row sees.
struct NarrowLeaves {
  int64_t place[kFocusChunk + kFocusNarrow];
  float key[kFocusChunk + kFocusNarrow];
  float mass[kFocusChunk + kFocusNarrow], scale[kFocusChunk + kFocusNarrow];
  float weight[kFocusNarrow][kFocusChunk];
};

// Windows that are summed directly. Grid: chunks x heads.
template <typename Source>
__global__ void __launch_bounds__(kThreads)
    FocusNarrowKernel(HL_GRID_CONSTANT const Source source, cuda::FocusWork work) {
  HL_SHARED(leaves, NarrowLeaves);
  HL_SHARED(weights, RowWeights);
  const int64_t head = blockIdx.y, dim = source.shape.dim;
  const FocusChunk chunk = work.chunks[blockIdx.x];
  const FocusRun run = work.runs[chunk.run];
  const int window = static_cast<int>(source.shape.window), n = chunk.length;
  const int before = static_cast<int>(chunk.first < window - 1 ? chunk.first : window - 1);
  const int i = static_cast<int>(threadIdx.x);
  if (i < n + before) {
    leaves.place[i] = source.Place(run, chunk.first - before + i, head);
    source.Leaf(leaves.place[i], &leaves.key[i], &leaves.mass[i], &leaves.scale[i]);
  }
  __syncthreads();
  const int reach =
      i + before < window - 1 ? i + before : window - 1;  // number of leaves that row i looks back
  if (i < n) {
    float max = kNothing, mass = 0;
    for (int back = 0; back <= reach; ++back) max = Larger(max, leaves.key[i + before - back]);
    for (int back = 0; back <= reach; ++back) {
      const float weight = Weight(leaves.key[i + before - back], max);
      mass += weight * leaves.mass[i + before - back];
      leaves.weight[back][i] = weight * leaves.scale[i + before - back];
    }
    const float factor = source.Finish(leaves.place[i + before], max, mass, &weights.rho[i]);
    for (int back = 0; back <= reach; ++back) leaves.weight[back][i] *= factor;
    for (int warp = 0; warp < kWarps; ++warp) weights.dots[i][warp] = 0;
  }
  __syncthreads();
  for (int64_t first = 0; first < dim; first += kThreads) {
    const int64_t p = first + threadIdx.x;
    for (int row = 0; row < n; ++row) {
      float dot = 0;
      if (p < dim) {
        float sum = 0;
        for (int back = 0; back < window && back <= row + before; ++back) {
          const int leaf = row + before - back;
          if (leaves.key[leaf] != kNothing)
            sum += leaves.weight[back][row] * FromStorage(source.Row(leaves.place[leaf])[p]);
        }
        dot = source.Store(leaves.place[row + before], p, sum);
      }
      if (Source::kBackward) AddOverWarp(dot, weights.dots[row]);
    }
  }
  StoreDots(source, n, leaves.place + before, weights);
}

template <typename Source>
void Pool(const Source& source, const cuda::FocusWork& work, cudaStream_t stream) {
  if (work.num_chunks == 0 || source.shape.dim == 0) return;
  const unsigned chunks = GridBlocks(work.num_chunks, "focus pooling");
  const auto heads = static_cast<unsigned>(source.shape.num_heads);
  const dim3 grid(chunks, heads), threads(kThreads);
  if (IsNarrow(source.shape.window)) {
    Launch({grid, threads, 0, "focus pooling, narrow"}, stream, FocusNarrowKernel<Source>, source,
           work);
    return;
  }
  Launch({grid, threads, 0, "focus pooling, totals"}, stream, FocusTotalsKernel<Source>, source,
         work);
  const dim3 blocks(GridBlocks(work.num_blocks, "focus pooling"), heads,
                    static_cast<unsigned>((source.shape.dim + kThreads - 1) / kThreads));
  Launch({blocks, threads, 0, "focus pooling, between chunks"}, stream, FocusOuterKernel<Source>,
         source, work);
  Launch({grid, threads, kSuffixBytes, "focus pooling, rows"}, stream, FocusRowsKernel<Source>,
         source, work);
}

}  // namespace

namespace cuda {

template <typename T>
void FocusPoolForward(const FocusPoolShape<T>& shape, const FocusPoolResults<T>& results,
                      const FocusWork& work, cudaStream_t stream) {
  Pool(Tokens<T>{shape, results}, work, stream);
}

template <typename T>
void FocusPoolBackward(const FocusPoolShape<T>& shape, const FocusPoolResults<T>& results,
                       const FocusPoolGrads<T>& grads, const FocusWork& work, cudaStream_t stream) {
  const int64_t rows = shape.batch * shape.seq_len * shape.num_heads;
  if (rows == 0) return;
  Launch({dim3(GridBlocks((rows + kWarps - 1) / kWarps, "focus pooling")), dim3(kThreads), 0,
          "focus pooling, delta"},
         stream, FocusDeltaKernel<T>, results.out, grads.dout, rows, shape.dim, work.delta);
  Pool(Readers<T>{shape, results, grads, work.delta}, work, stream);
}

#define HL_FOCUS_POOL(T)                                                                \
  template void FocusPoolForward(const FocusPoolShape<T>&, const FocusPoolResults<T>&,  \
                                 const FocusWork&, cudaStream_t);                       \
  template void FocusPoolBackward(const FocusPoolShape<T>&, const FocusPoolResults<T>&, \
                                  const FocusPoolGrads<T>&, const FocusWork&, cudaStream_t);
HL_FOCUS_POOL(float)
HL_FOCUS_POOL(Bf16)
#undef HL_FOCUS_POOL

}  // namespace cuda
}  // namespace halflife::kernels
