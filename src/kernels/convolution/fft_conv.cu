#include "kernels/common/cuda/device.h"
#include "kernels/common/cuda/rows.cuh"
#include "kernels/convolution/fft_conv_args.h"

namespace halflife::kernels {
namespace {

using fft::Complex;
using rows::FromStorage;
using rows::Narrow;

constexpr int kThreads = 256;

// ---- transforms of a block: points [length][channels] in shared memory, computed by all threads
// ----

// A block's channels, and the tables.
struct Block {
  const Complex* twist;
  const Complex* roots;
  int length, seq_len, channels, shift;
  int64_t first;  // index of the first channel
  int count;      // number of its channels that exist
  float scale;    // 1 / length

  HL_DEVICE Block(const FftConvFilter& filter, const FftConvLayout& layout)
      : twist(filter.tables),
        roots(filter.tables + filter.length),
        length(static_cast<int>(filter.length)),
        seq_len(static_cast<int>(filter.seq_len)),
        channels(layout.channels),
        shift(layout.log2_channels),
        first(int64_t{1} * blockIdx.x * layout.channels),
        count(static_cast<int>(min(int64_t{1} * layout.channels, filter.dim - first))),
        scale(1.0f / static_cast<float>(filter.length)) {}
  // The point (or token) and the channel of an item.
  HL_DEVICE int Point(int item) const { return item >> shift; }
  HL_DEVICE int Channel(int item) const { return item & (channels - 1); }
};

template <bool kForward>
HL_DEVICE void Stage(const Block& block, int n, Complex* points) {
  const int quarter = n / 4, step = block.length / n;
  const int distance = quarter << block.shift;
  for (int item = static_cast<int>(threadIdx.x); item < (block.length / 4) << block.shift;
       item += kThreads) {
    const int group = block.Point(item), j = group & (quarter - 1);
    const int begin = (group - j) * 4 + j;
    Complex* const a = points + (begin << block.shift) + block.Channel(item);
    const fft::Roots root = {block.roots[j * step], block.roots[2 * j * step],
                             block.roots[3 * j * step]};
    const fft::Points in = {a[0], a[distance], a[2 * distance], a[3 * distance]};
    const fft::Points out = kForward ? fft::Split(in, root) : fft::Join(in, root);
    a[0] = out.a, a[distance] = out.b, a[2 * distance] = out.c, a[3 * distance] = out.d;
  }
  __syncthreads();
}

HL_DEVICE void Pairs(const Block& block, Complex* points) {
  for (int item = static_cast<int>(threadIdx.x); item < (block.length / 2) << block.shift;
       item += kThreads) {
    Complex* const a = points + (2 * block.Point(item) << block.shift) + block.Channel(item);
    Complex* const b = a + block.channels;
    const Complex sum = *a + *b, difference = *a - *b;
    *a = sum, *b = difference;
  }
  __syncthreads();
}

// Replaces points by their spectrum. A barrier must separate the writes of the points from the
// call; the same holds for the result.
HL_DEVICE void Forward(const Block& block, Complex* points) {
  int n = block.length;
  for (; n >= 4; n /= 4) Stage<true>(block, n, points);
  if (n == 2) Pairs(block, points);
}
// Returns length times the inverse transform.
HL_DEVICE void Inverse(const Block& block, Complex* points) {
  int n = block.length;
  while (n >= 4) n /= 4;
  const bool with_pairs = n == 2;
  if (with_pairs) Pairs(block, points);
  for (n = with_pairs ? 8 : 4; n <= block.length; n *= 4) Stage<false>(block, n, points);
}

HL_DEVICE Complex Twisted(float value, Complex twist) {
  return {value * twist.re, value * twist.im};
}
HL_DEVICE float Untwisted(Complex point, Complex twist, float scale) {
  return (point.re * twist.re + point.im * twist.im) * scale;
}

// Sets points[item] = value(token, channel), twisted; zeros past the row and the channels. Ends
// with a barrier.
template <typename Value>
HL_DEVICE void LoadPoints(const Block& block, Complex* points, const Value& value) {
  for (int item = static_cast<int>(threadIdx.x); item < block.length << block.shift;
       item += kThreads) {
    const int token = block.Point(item), channel = block.Channel(item);
    const bool exists = token < block.seq_len && channel < block.count;
    points[item] = exists ? Twisted(value(token, channel), block.twist[token]) : Complex{0, 0};
  }
  __syncthreads();
}

// Calls visit(token, channel, item) for all that exist. A thread must only read the points that it
// writes in LoadPoints, because there is no barrier between the end of a row and the beginning of
// the next.
template <typename Visit>
HL_DEVICE void ForEachToken(const Block& block, const Visit& visit) {
  for (int item = static_cast<int>(threadIdx.x); item < block.seq_len << block.shift;
       item += kThreads) {
    const int channel = block.Channel(item);
    if (channel < block.count) visit(block.Point(item), channel, item);
  }
}

HL_DEVICE float WindowAt(const FftConvFilter& filter, int token, int64_t channel) {
  const float rate = filter.window_first + static_cast<float>(channel) * filter.window_step;
  return expf(static_cast<float>(token) * rate);
}

// Returns the offset of an item in spectra stored as [length, dim].
HL_DEVICE int64_t SpectrumAt(const Block& block, const FftConvFilter& filter, int item) {
  return block.Point(item) * filter.dim + block.first + block.Channel(item);
}

__global__ void __launch_bounds__(kThreads)
    SpectrumKernel(FftConvFilter filter, FftConvLayout layout, Complex* spectra) {
  HL_DYNAMIC_SMEM(smem);
  const Block block(filter, layout);
  SmemCarver carver(smem);
  Complex* const points = carver.Take<Complex>(block.length << block.shift);
  LoadPoints(block, points, [&](int token, int channel) {
    const int64_t at = block.first + channel;
    return filter.filter[token * filter.dim + at] * WindowAt(filter, token, at);
  });
  Forward(block, points);
  for (int item = static_cast<int>(threadIdx.x); item < block.length << block.shift;
       item += kThreads)
    if (block.Channel(item) < block.count) spectra[SpectrumAt(block, filter, item)] = points[item];
}

// The rows of a block.
struct Rows {
  int64_t begin, end;
  HL_DEVICE Rows(int64_t batch, const FftConvLayout& layout)
      : begin(blockIdx.y * layout.rows_per_split), end(min(batch, begin + layout.rows_per_split)) {}
};

// A row of a block's channels.
template <typename T>
struct Row {
  const FftConvArgs<T>& args;
  int64_t begin;
  HL_DEVICE Row(const FftConvArgs<T>& of, const Block& block, int64_t row)
      : args(of), begin(row * of.filter.seq_len * of.stride + block.first) {}
  HL_DEVICE int64_t At(int token, int channel) const {
    return begin + token * args.stride + channel;
  }
  // Returns u.
  HL_DEVICE float Input(int token, int channel) const {
    const int64_t at = At(token, channel);
    const float x = FromStorage(args.x[at]);
    if (args.x_gate == nullptr) return x;
    return FromStorage(Narrow<T>(x * FromStorage(args.x_gate[at])));
  }
  HL_DEVICE float OutputGate(int token, int channel) const {
    return args.y_gate == nullptr ? 1.0f : FromStorage(args.y_gate[At(token, channel)]);
  }
};

HL_DEVICE float SkipAt(const FftConvFilter& filter, int64_t channel) {
  return filter.skip == nullptr ? 0.0f : filter.skip[channel];
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    FftConvForwardKernel(FftConvArgs<T> args, FftConvLayout layout, const Complex* spectra, T* y) {
  HL_DYNAMIC_SMEM(smem);
  const FftConvFilter& filter = args.filter;
  const Block block(filter, layout);
  SmemCarver carver(smem);
  Complex* const points = carver.Take<Complex>(block.length << block.shift);
  const Rows rows(args.batch, layout);
  for (int64_t b = rows.begin; b < rows.end; ++b) {
    const Row<T> row(args, block, b);
    LoadPoints(block, points, [&](int token, int channel) { return row.Input(token, channel); });
    Forward(block, points);
    for (int item = static_cast<int>(threadIdx.x); item < block.length << block.shift;
         item += kThreads)
      if (block.Channel(item) < block.count)
        points[item] = points[item] * spectra[SpectrumAt(block, filter, item)];
    __syncthreads();
    Inverse(block, points);
    T* const to = y + b * filter.seq_len * filter.dim + block.first;
    ForEachToken(block, [&](int token, int channel, int item) {
      const float sum = Untwisted(points[item], block.twist[token], block.scale) +
                        SkipAt(filter, block.first + channel) * row.Input(token, channel);
      to[token * filter.dim + channel] = Narrow<T>(row.OutputGate(token, channel) * sum);
    });
  }
}

// Sums over the rows of a block, in global memory: spectra of dfilter [splits, length, dim] and
// dskip [splits, dim].
struct Partials {
  Complex* spectra;
  float* skips;
};

// Multiplies the spectra of a row's u and ds: ds conj(u) is added to the block's partial sum, u is
// replaced by the spectrum of s, and ds by that of du.
HL_DEVICE void MultiplySpectra(const Block& block, const FftConvFilter& filter, bool is_first,
                               const Complex* spectra, Complex* sums, Complex* inputs,
                               Complex* gradients) {
  for (int item = static_cast<int>(threadIdx.x); item < block.length << block.shift;
       item += kThreads) {
    if (block.Channel(item) >= block.count) continue;
    const int64_t at = SpectrumAt(block, filter, item);
    const Complex u = inputs[item], ds = gradients[item], h = spectra[at];
    const Complex product = fft::TimesConjugate(ds, u);
    sums[at] = is_first ? product : sums[at] + product;
    inputs[item] = u * h;
    gradients[item] = fft::TimesConjugate(ds, h);
  }
  __syncthreads();
}

// Stores the sums over the threads of each channel, in order, in skips [channel].
HL_DEVICE void StoreSkips(const Block& block, float dskip, float* skips) {
  HL_SHARED(sums, float[kThreads]);
  sums[threadIdx.x] = dskip;
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= block.count) return;
  float total = 0;
  for (int thread = static_cast<int>(threadIdx.x); thread < kThreads; thread += block.channels)
    total += sums[thread];
  skips[threadIdx.x] = total;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    FftConvBackwardKernel(FftConvArgs<T> args, FftConvGrads<T> grads, FftConvLayout layout,
                          const Complex* spectra, Partials partials) {
  HL_DYNAMIC_SMEM(smem);
  const FftConvFilter& filter = args.filter;
  const Block block(filter, layout);
  SmemCarver carver(smem);
  Complex* const inputs = carver.Take<Complex>(block.length << block.shift);
  Complex* const gradients = carver.Take<Complex>(block.length << block.shift);
  Complex* const sums = partials.spectra + blockIdx.y * filter.length * filter.dim;
  const Rows rows(args.batch, layout);
  float dskip = 0;
  for (int64_t b = rows.begin; b < rows.end; ++b) {
    const Row<T> row(args, block, b);
    const T* const dy = grads.dy + b * filter.seq_len * filter.dim + block.first;
    const auto sum_gradient = [&](int token, int channel) {
      return FromStorage(dy[token * filter.dim + channel]) * row.OutputGate(token, channel);
    };
    LoadPoints(block, inputs, [&](int token, int channel) { return row.Input(token, channel); });
    Forward(block, inputs);
    LoadPoints(block, gradients, sum_gradient);
    Forward(block, gradients);
    MultiplySpectra(block, filter, b == rows.begin, spectra, sums, inputs, gradients);
    if (args.y_gate != nullptr) Inverse(block, inputs);
    Inverse(block, gradients);
    const int64_t first = b * filter.seq_len * grads.stride + block.first;
    ForEachToken(block, [&](int token, int channel, int item) {
      const int64_t to = first + token * grads.stride + channel;
      const float u = row.Input(token, channel), ds = sum_gradient(token, channel);
      const float skip = SkipAt(filter, block.first + channel);
      const Complex twist = block.twist[token];
      if (args.y_gate != nullptr) {
        const float s = Untwisted(inputs[item], twist, block.scale) + skip * u;
        grads.dz[to] = Narrow<T>(FromStorage(dy[token * filter.dim + channel]) * s);
      }
      const float du = Untwisted(gradients[item], twist, block.scale) + skip * ds;
      dskip += u * ds;
      float gate = 1;
      if (args.x_gate != nullptr) {
        const int64_t at = row.At(token, channel);
        grads.dg[to] = Narrow<T>(du * FromStorage(args.x[at]));
        gate = FromStorage(args.x_gate[at]);
      }
      grads.dx[to] = Narrow<T>(du * gate);
    });
  }
  StoreSkips(block, dskip, partials.skips + blockIdx.y * filter.dim + block.first);
}

// Adds up the partial sums in order, and computes dfilter and dskip.
__global__ void __launch_bounds__(kThreads)
    FilterGradientKernel(FftConvFilter filter, FftConvFilterGrads grads, FftConvLayout layout,
                         int splits, Partials partials) {
  HL_DYNAMIC_SMEM(smem);
  const Block block(filter, layout);
  SmemCarver carver(smem);
  Complex* const points = carver.Take<Complex>(block.length << block.shift);
  const int64_t size = filter.length * filter.dim;
  for (int item = static_cast<int>(threadIdx.x); item < block.length << block.shift;
       item += kThreads) {
    Complex sum = {0, 0};
    if (block.Channel(item) < block.count) {
      const int64_t at = SpectrumAt(block, filter, item);
      for (int split = 0; split < splits; ++split) sum = sum + partials.spectra[split * size + at];
    }
    points[item] = sum;
  }
  __syncthreads();
  Inverse(block, points);
  ForEachToken(block, [&](int token, int channel, int item) {
    const int64_t to = token * filter.dim + block.first + channel;
    const float dfilter = Untwisted(points[item], block.twist[token], block.scale) *
                          WindowAt(filter, token, block.first + channel);
    if (grads.dfilter != nullptr)
      grads.dfilter[to] = grads.filter_added ? grads.dfilter[to] + dfilter : dfilter;
  });
  if (static_cast<int>(threadIdx.x) >= block.count || grads.dskip == nullptr) return;
  const int64_t channel = block.first + threadIdx.x;
  float dskip = grads.skip_added ? grads.dskip[channel] : 0.0f;
  for (int split = 0; split < splits; ++split)
    dskip += partials.skips[split * filter.dim + channel];
  grads.dskip[channel] = dskip;
}

// ---- launches ----

LaunchShape ShapeOf(const FftConvFilter& filter, const FftConvLayout& layout, int splits,
                    int transforms, const char* name) {
  const int64_t blocks = (filter.dim + layout.channels - 1) / layout.channels;
  const int64_t transform_bytes = layout.channels * TransformBytes(filter.length, 1);
  // One allocation of SmemCarver: a transform rounded up to 16 bytes.
  const int64_t cut_bytes = (transform_bytes + 15) / 16 * 16;
  return {dim3(GridBlocks(blocks, name), static_cast<unsigned>(splits)), dim3(kThreads),
          static_cast<int>(transforms * cut_bytes), name};
}

void LaunchSpectrum(const FftConvFilter& filter, Complex* spectra, cudaStream_t stream) {
  const FftConvLayout layout = LayoutOf(filter, /*batch=*/1, /*transforms=*/1);
  Launch(ShapeOf(filter, layout, 1, 1, "long convolution's filter"), stream, SpectrumKernel, filter,
         layout, spectra);
}

template <typename T>
void RunForward(const FftConvArgs<T>& args, T* y, void* workspace, cudaStream_t stream) {
  auto* const spectra = static_cast<Complex*>(workspace);
  LaunchSpectrum(args.filter, spectra, stream);
  const FftConvLayout layout = LayoutOf(args.filter, args.batch, /*transforms=*/1);
  Launch(ShapeOf(args.filter, layout, layout.splits, 1, "long convolution"), stream,
         FftConvForwardKernel<T>, args, layout, spectra, y);
}

template <typename T>
void RunBackward(const FftConvArgs<T>& args, const FftConvGrads<T>& grads, void* workspace,
                 cudaStream_t stream) {
  const FftConvFilter& filter = args.filter;
  auto* const spectra = static_cast<Complex*>(workspace);
  LaunchSpectrum(filter, spectra, stream);
  const FftConvLayout layout = LayoutOf(filter, args.batch, /*transforms=*/2);
  const int64_t size = filter.length * filter.dim;
  const Partials partials = {spectra + size,
                             reinterpret_cast<float*>(spectra + (1 + layout.splits) * size)};
  Launch(ShapeOf(filter, layout, layout.splits, 2, "long convolution's gradient"), stream,
         FftConvBackwardKernel<T>, args, grads, layout, spectra, partials);
  if (grads.learned.dfilter == nullptr && grads.learned.dskip == nullptr) return;
  const FftConvLayout of_filter = LayoutOf(filter, /*batch=*/1, /*transforms=*/1);
  Launch(ShapeOf(filter, of_filter, 1, 1, "long convolution's filter gradient"), stream,
         FilterGradientKernel, filter, grads.learned, of_filter, layout.splits, partials);
}

}  // namespace

namespace cuda {

void FftConvForward(const FftConvArgs<float>& args, float* y, void* workspace,
                    cudaStream_t stream) {
  RunForward(args, y, workspace, stream);
}
void FftConvForward(const FftConvArgs<Bf16>& args, Bf16* y, void* workspace, cudaStream_t stream) {
  RunForward(args, y, workspace, stream);
}
void FftConvBackward(const FftConvArgs<float>& args, const FftConvGrads<float>& grads,
                     void* workspace, cudaStream_t stream) {
  RunBackward(args, grads, workspace, stream);
}
void FftConvBackward(const FftConvArgs<Bf16>& args, const FftConvGrads<Bf16>& grads,
                     void* workspace, cudaStream_t stream) {
  RunBackward(args, grads, workspace, stream);
}

}  // namespace cuda
}  // namespace halflife::kernels
