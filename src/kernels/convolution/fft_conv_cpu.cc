#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/common/cpu/vectorised.h"
#include "kernels/convolution/fft_conv_args.h"

namespace halflife::kernels::cpu {
namespace {

using fft::Complex;

constexpr int64_t kLanes = kFftConvLanes;

// One point of the transforms of a group's channels.
struct alignas(64) Point {
  float re[kLanes], im[kLanes];
};
static_assert(sizeof(Point) == 2 * kLanes * sizeof(float));

// The channels of a group, of which `count` exist.
struct Group {
  int64_t first, count;
  Group(int64_t number, int64_t dim)
      : first(number * kLanes), count(std::min(kLanes, dim - first)) {}
};

// ---- transforms ----

struct Transform {
  const Complex* twist;  // [length]
  const Complex* roots;  // [length]
  int64_t length;
  explicit Transform(const FftConvFilter& filter)
      : twist(filter.tables), roots(filter.tables + filter.length), length(filter.length) {}
};

template <bool kForward>
HL_INLINE void FourPoints(Point* __restrict a, Point* __restrict b, Point* __restrict c,
                          Point* __restrict d, const fft::Roots& root) {
#pragma omp simd
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const fft::Points in = {{a->re[lane], a->im[lane]},
                            {b->re[lane], b->im[lane]},
                            {c->re[lane], c->im[lane]},
                            {d->re[lane], d->im[lane]}};
    const fft::Points out = kForward ? fft::Split(in, root) : fft::Join(in, root);
    a->re[lane] = out.a.re, a->im[lane] = out.a.im;
    b->re[lane] = out.b.re, b->im[lane] = out.b.im;
    c->re[lane] = out.c.re, c->im[lane] = out.c.im;
    d->re[lane] = out.d.re, d->im[lane] = out.d.im;
  }
}

// One stage on blocks of n points.
template <bool kForward>
HL_INLINE void Stage(const Transform& of, int64_t n, Point* points) {
  const int64_t quarter = n / 4, step = of.length / n;
  for (int64_t begin = 0; begin < of.length; begin += n) {
    Point* const block = points + begin;
    for (int64_t j = 0; j < quarter; ++j)
      FourPoints<kForward>(block + j, block + j + quarter, block + j + 2 * quarter,
                           block + j + 3 * quarter,
                           {of.roots[j * step], of.roots[2 * j * step], of.roots[3 * j * step]});
  }
}

HL_INLINE void Pairs(int64_t length, Point* points) {
  for (int64_t i = 0; i + 1 < length; i += 2) {
    Point *const a = points + i, *const b = points + i + 1;
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float re = a->re[lane], im = a->im[lane];
      a->re[lane] = re + b->re[lane], a->im[lane] = im + b->im[lane];
      b->re[lane] = re - b->re[lane], b->im[lane] = im - b->im[lane];
    }
  }
}

HL_INLINE void Forward(const Transform& of, Point* points) {
  int64_t n = of.length;
  for (; n >= 4; n /= 4) Stage<true>(of, n, points);
  if (n == 2) Pairs(of.length, points);
}
// Returns length times the inverse transform.
HL_INLINE void Inverse(const Transform& of, Point* points) {
  const bool with_pairs = std::countr_zero(static_cast<uint64_t>(of.length)) % 2 == 1;
  if (with_pairs) Pairs(of.length, points);
  for (int64_t n = with_pairs ? 8 : 4; n <= of.length; n *= 4) Stage<false>(of, n, points);
}

// ---- rows ----

// A token's values for a group; zeros for channels that do not exist.
struct Lanes {
  alignas(64) float at[kLanes];
};
template <typename T>
HL_INLINE Lanes Load(const T* from, const Group& group) {
  Lanes values = {};
  if (group.count == kLanes) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) values.at[lane] = Widen(from[lane]);
  } else {
    for (int64_t lane = 0; lane < group.count; ++lane) values.at[lane] = Widen(from[lane]);
  }
  return values;
}
template <typename T>
HL_INLINE void Store(const Lanes& values, const Group& group, T* to) {
  if (group.count == kLanes) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) to[lane] = Narrow<T>(values.at[lane]);
  } else {
    for (int64_t lane = 0; lane < group.count; ++lane) to[lane] = Narrow<T>(values.at[lane]);
  }
}

// Stores the values of a token, twisted, as a point.
HL_INLINE void Twist(const Lanes& values, Complex twist, Point* point) {
#pragma omp simd
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    point->re[lane] = values.at[lane] * twist.re;
    point->im[lane] = values.at[lane] * twist.im;
  }
}
// Returns the real part of a point, twisted back and scaled.
HL_INLINE Lanes Untwisted(const Point& point, Complex twist, float scale) {
  const Complex back = {twist.re * scale, twist.im * scale};
  Lanes values;
#pragma omp simd
  for (int64_t lane = 0; lane < kLanes; ++lane)
    values.at[lane] = point.re[lane] * back.re + point.im[lane] * back.im;
  return values;
}

// Returns e^(t w) for a group's channels.
HL_INLINE Lanes Window(const FftConvFilter& filter, const Group& group, int64_t token) {
  Lanes window;
  const auto t = static_cast<float>(token);
#pragma omp simd
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const auto channel = static_cast<float>(group.first + lane);
    window.at[lane] = Exp(t * (filter.window_first + channel * filter.window_step));
  }
  return window;
}

// The inputs of a row.
template <typename T>
struct Row {
  const FftConvArgs<T>& args;
  Group group;
  int64_t begin;  // offset, in x and the gates, of its first token and the group's first channel

  HL_INLINE Row(const FftConvArgs<T>& of, const Group& channels, int64_t row)
      : args(of), group(channels), begin(row * of.filter.seq_len * of.stride + channels.first) {}
  HL_INLINE int64_t At(int64_t token) const { return begin + token * args.stride; }
  HL_INLINE Lanes Gate(const T* gate, int64_t token) const { return Load(gate + At(token), group); }
  // Returns u.
  HL_INLINE Lanes Input(int64_t token) const {
    Lanes u = Load(args.x + At(token), group);
    if (args.x_gate == nullptr) return u;
    const Lanes gate = Gate(args.x_gate, token);
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane)
      u.at[lane] = Widen(Narrow<T>(u.at[lane] * gate.at[lane]));
    return u;
  }
};

HL_INLINE void ScaleBy(const Lanes& factor, Lanes& values) {
#pragma omp simd
  for (int64_t lane = 0; lane < kLanes; ++lane) values.at[lane] *= factor.at[lane];
}
HL_INLINE void AddProduct(const Lanes& a, const Lanes& b, Lanes& sum) {
#pragma omp simd
  for (int64_t lane = 0; lane < kLanes; ++lane) sum.at[lane] += a.at[lane] * b.at[lane];
}

HL_INLINE void FillZeros(Point* begin, Point* end) {
  std::fill(reinterpret_cast<float*>(begin), reinterpret_cast<float*>(end), 0.0f);
}

// Computes the spectrum of value(token), with zeros past the row.
template <typename Value>
HL_INLINE void FillSpectrum(const FftConvFilter& filter, Point* spectrum, const Value& value) {
  const Transform transform(filter);
  for (int64_t t = 0; t < filter.seq_len; ++t) Twist(value(t), transform.twist[t], spectrum + t);
  FillZeros(spectrum + filter.seq_len, spectrum + filter.length);
  Forward(transform, spectrum);
}

HL_INLINE void FilterSpectrum(const FftConvFilter& filter, const Group& group, Point* spectrum) {
  FillSpectrum(filter, spectrum, [&](int64_t token) HL_LAMBDA_INLINE {
    Lanes h = Load(filter.filter + token * filter.dim + group.first, group);
    ScaleBy(Window(filter, group, token), h);
    return h;
  });
}

template <typename T>
HL_INLINE void InputSpectrum(const Row<T>& row, Point* spectrum) {
  FillSpectrum(row.args.filter, spectrum,
               [&](int64_t token) HL_LAMBDA_INLINE { return row.Input(token); });
}

// Computes a = a b, or a conj(b) if kConjugate.
template <bool kConjugate>
HL_INLINE void Multiply(Point* __restrict a, const Point* __restrict b, int64_t length) {
  for (int64_t i = 0; i < length; ++i) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const Complex left = {a[i].re[lane], a[i].im[lane]}, right = {b[i].re[lane], b[i].im[lane]};
      const Complex product = kConjugate ? fft::TimesConjugate(left, right) : left * right;
      a[i].re[lane] = product.re, a[i].im[lane] = product.im;
    }
  }
}
// Computes sum += a conj(b).
HL_INLINE void AddTimesConjugate(const Point* __restrict a, const Point* __restrict b,
                                 Point* __restrict sum, int64_t length) {
  for (int64_t i = 0; i < length; ++i) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const Complex product =
          fft::TimesConjugate({a[i].re[lane], a[i].im[lane]}, {b[i].re[lane], b[i].im[lane]});
      sum[i].re[lane] += product.re, sum[i].im[lane] += product.im;
    }
  }
}

HL_INLINE Lanes SkipOf(const FftConvFilter& filter, const Group& group) {
  return filter.skip == nullptr ? Lanes{} : Load(filter.skip + group.first, group);
}

template <typename T>
HL_INLINE void ForwardLoop(const FftConvArgs<T>& args, int64_t number, T* y, float* scratch) {
  const FftConvFilter& filter = args.filter;
  const Group group(number, filter.dim);
  const Transform transform(filter);
  auto* const of_filter = reinterpret_cast<Point*>(scratch);
  Point* const points = of_filter + filter.length;
  FilterSpectrum(filter, group, of_filter);
  const Lanes skip = SkipOf(filter, group);
  const float scale = 1.0f / static_cast<float>(filter.length);
  for (int64_t b = 0; b < args.batch; ++b) {
    const Row<T> row(args, group, b);
    InputSpectrum(row, points);
    Multiply<false>(points, of_filter, filter.length);
    Inverse(transform, points);
    T* const to = y + b * filter.seq_len * filter.dim + group.first;
    for (int64_t t = 0; t < filter.seq_len; ++t) {
      Lanes sum = Untwisted(points[t], transform.twist[t], scale);
      AddProduct(skip, row.Input(t), sum);
      if (args.y_gate != nullptr) ScaleBy(row.Gate(args.y_gate, t), sum);
      Store(sum, group, to + t * filter.dim);
    }
  }
}

// Returns ds of a token, computed from its dy.
template <typename T>
HL_INLINE Lanes SumGradient(const Row<T>& row, const T* dy, int64_t token) {
  Lanes ds = Load(dy + token * row.args.filter.dim, row.group);
  if (row.args.y_gate != nullptr) ScaleBy(row.Gate(row.args.y_gate, token), ds);
  return ds;
}

// The spectra of a group.
struct Spectra {
  Point *filter, *input, *gradient, *sum;
  Spectra(float* scratch, int64_t length)
      : filter(reinterpret_cast<Point*>(scratch)),
        input(filter + length),
        gradient(input + length),
        sum(gradient + length) {}
};

// Computes the gradients of a row's inputs from the sums s and the correlations of ds, and the
// row's part of dskip.
template <typename T>
HL_INLINE void StoreRowGradients(const Row<T>& row, const FftConvGrads<T>& grads, int64_t number,
                                 const Spectra& spectra, const Lanes& skip, Lanes& dskip) {
  const FftConvArgs<T>& args = row.args;
  const FftConvFilter& filter = args.filter;
  const Transform transform(filter);
  const Group& group = row.group;
  const float scale = 1.0f / static_cast<float>(filter.length);
  const T* const dy = grads.dy + number * filter.seq_len * filter.dim + group.first;
  const int64_t begin = number * filter.seq_len * grads.stride + group.first;
  Lanes of_row = {};
  for (int64_t t = 0; t < filter.seq_len; ++t) {
    const int64_t at = begin + t * grads.stride;
    const Lanes u = row.Input(t), ds = SumGradient(row, dy, t);
    if (args.y_gate != nullptr) {
      Lanes dz = Untwisted(spectra.input[t], transform.twist[t], scale);
      AddProduct(skip, u, dz);
      ScaleBy(Load(dy + t * filter.dim, group), dz);
      Store(dz, group, grads.dz + at);
    }
    Lanes du = Untwisted(spectra.gradient[t], transform.twist[t], scale);
    AddProduct(skip, ds, du);
    AddProduct(u, ds, of_row);
    if (args.x_gate != nullptr) {
      Lanes dg = du;
      ScaleBy(Load(args.x + row.At(t), group), dg);
      Store(dg, group, grads.dg + at);
      ScaleBy(row.Gate(args.x_gate, t), du);
    }
    Store(du, group, grads.dx + at);
  }
#pragma omp simd
  for (int64_t lane = 0; lane < kLanes; ++lane) dskip.at[lane] += of_row.at[lane];
}

HL_INLINE void StoreOrAdd(const Lanes& values, const Group& group, bool added, float* to) {
  Lanes sum = values;
  if (added) {
    const Lanes before = Load(to, group);
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) sum.at[lane] += before.at[lane];
  }
  Store(sum, group, to);
}

template <typename T>
HL_INLINE void BackwardLoop(const FftConvArgs<T>& args, const FftConvGrads<T>& grads,
                            int64_t number, float* scratch) {
  const FftConvFilter& filter = args.filter;
  const Group group(number, filter.dim);
  const Transform transform(filter);
  const Spectra spectra(scratch, filter.length);
  FilterSpectrum(filter, group, spectra.filter);
  FillZeros(spectra.sum, spectra.sum + filter.length);
  const Lanes skip = SkipOf(filter, group);
  Lanes dskip = {};
  for (int64_t b = 0; b < args.batch; ++b) {
    const Row<T> row(args, group, b);
    const T* const dy = grads.dy + b * filter.seq_len * filter.dim + group.first;
    InputSpectrum(row, spectra.input);
    FillSpectrum(filter, spectra.gradient,
                 [&](int64_t token) HL_LAMBDA_INLINE { return SumGradient(row, dy, token); });
    if (grads.learned.dfilter != nullptr)
      AddTimesConjugate(spectra.gradient, spectra.input, spectra.sum, filter.length);
    Multiply<true>(spectra.gradient, spectra.filter, filter.length);
    Inverse(transform, spectra.gradient);
    if (args.y_gate != nullptr) {
      Multiply<false>(spectra.input, spectra.filter, filter.length);
      Inverse(transform, spectra.input);
    }
    StoreRowGradients(row, grads, b, spectra, skip, dskip);
  }
  if (grads.learned.dskip != nullptr)
    StoreOrAdd(dskip, group, grads.learned.skip_added, grads.learned.dskip + group.first);
  if (grads.learned.dfilter == nullptr) return;
  Inverse(transform, spectra.sum);
  const float scale = 1.0f / static_cast<float>(filter.length);
  for (int64_t t = 0; t < filter.seq_len; ++t) {
    Lanes dfilter = Untwisted(spectra.sum[t], transform.twist[t], scale);
    ScaleBy(Window(filter, group, t), dfilter);
    StoreOrAdd(dfilter, group, grads.learned.filter_added,
               grads.learned.dfilter + t * filter.dim + group.first);
  }
}

}  // namespace

void FftConvForward(const FftConvArgs<float>& args, int64_t group, float* y, float* scratch) {
  RunVectorised([&]() HL_LAMBDA_INLINE { ForwardLoop(args, group, y, scratch); });
}
void FftConvForward(const FftConvArgs<Bf16>& args, int64_t group, Bf16* y, float* scratch) {
  RunVectorised([&]() HL_LAMBDA_INLINE { ForwardLoop(args, group, y, scratch); });
}
void FftConvBackward(const FftConvArgs<float>& args, const FftConvGrads<float>& grads,
                     int64_t group, float* scratch) {
  RunVectorised([&]() HL_LAMBDA_INLINE { BackwardLoop(args, grads, group, scratch); });
}
void FftConvBackward(const FftConvArgs<Bf16>& args, const FftConvGrads<Bf16>& grads, int64_t group,
                     float* scratch) {
  RunVectorised([&]() HL_LAMBDA_INLINE { BackwardLoop(args, grads, group, scratch); });
}

}  // namespace halflife::kernels::cpu
