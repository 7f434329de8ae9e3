// Arguments of the long convolution, shared by its LibTorch side, CPU loops and CUDA kernels. For
// each row and channel, with gates g and z that are 1 if absent:
//
//   u_t = g_t x_t, rounded to T,   h_t = filter_t e^(t w),   w = window_first + channel window_step
//   s_t = sum over r <= t of h_{t-r} u_r,   y_t = z_t (s_t + skip u_t)
//
//   ds_t = z_t dy_t,   dz_t = dy_t (s_t + skip u_t),   dg_t = x_t du_t,   dx_t = g_t du_t
//   du_t = sum over r >= t of h_{r-t} ds_r + skip ds_t
//   dfilter_t = e^(t w) sum over rows and r of ds_{r+t} u_r,   dskip = sum of ds_t u_t
//
// The sums are products of polynomials modulo X^M - i, where M is the smallest power of two that is
// not below T. What exceeds X^M wraps around multiplied by i, so the real part is the causal sum,
// and no row needs padding. Multiplying coefficient n by e^(i pi n / (2 M)) turns this into a
// cyclic convolution of M points, which Fourier transforms compute. With the conjugate of one
// spectrum, the real part is the correlation (the right-angle convolution of Crandall and Fagin,
// Discrete weighted transforms, 1994).
//
// T is float or Bf16; arithmetic is fp32. C++17 without LibTorch, because CUDA sources include it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/bfloat16.h"
#include "kernels/common/host_device.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels::fft {

// Fourier transforms of a power of two of points, in place and without a permutation. The forward
// uses decimation in frequency, radix 4, and leaves the spectrum in permuted order. The inverse
// undoes the steps from last to first. A convolution only multiplies spectra element by element,
// for which the order does not matter.
//
// Split() turns a block of n points, at first all of them, into four blocks of n / 4, until one or
// two points are left. Two points become their sum and their difference. Shared by the CPU loops
// and the CUDA kernels. C++17.
struct Complex {
  float re, im;
};
HL_EVERYWHERE constexpr Complex operator+(Complex a, Complex b) {
  return {a.re + b.re, a.im + b.im};
}
HL_EVERYWHERE constexpr Complex operator-(Complex a, Complex b) {
  return {a.re - b.re, a.im - b.im};
}
HL_EVERYWHERE constexpr Complex operator*(Complex a, Complex b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
// Returns a conj(b).
HL_EVERYWHERE constexpr Complex TimesConjugate(Complex a, Complex b) {
  return {a.re * b.re + a.im * b.im, a.im * b.re - a.re * b.im};
}
HL_EVERYWHERE constexpr Complex TimesI(Complex a) { return {-a.im, a.re}; }

// Points a quarter of a block apart: j, j + n / 4, j + n / 2 and j + 3 n / 4.
struct Points {
  Complex a, b, c, d;
};
struct Roots {
  Complex first, second, third;  // e^(-2 pi i j / n) to the powers of 1, 2 and 3
};

HL_EVERYWHERE constexpr Points Split(const Points& p, const Roots& root) {
  const Complex sum_ac = p.a + p.c, difference_ac = p.a - p.c;
  const Complex sum_bd = p.b + p.d, turned_bd = TimesI(p.d - p.b);
  return {sum_ac + sum_bd, (sum_ac - sum_bd) * root.second,
          (difference_ac + turned_bd) * root.first, (difference_ac - turned_bd) * root.third};
}
// Returns 4 times the points that Split() was given.
HL_EVERYWHERE constexpr Points Join(const Points& p, const Roots& root) {
  const Complex b = TimesConjugate(p.b, root.second), c = TimesConjugate(p.c, root.first),
                d = TimesConjugate(p.d, root.third);
  const Complex sum_ac = p.a + b, sum_bd = p.a - b;
  const Complex difference_ac = c + d, turned_bd = TimesI(c - d);
  return {sum_ac + difference_ac, sum_bd + turned_bd, sum_ac - difference_ac, sum_bd - turned_bd};
}

}  // namespace halflife::kernels::fft

namespace halflife::kernels {

// The parameters that do not depend on the rows.
struct FftConvFilter {
  const float* filter = nullptr;  // [T, D]
  const float* skip = nullptr;    // [D]; null: 0
  float window_first = 0, window_step = 0;
  // [2, M] complex numbers: e^(i pi n / (2 M)), then e^(-2 pi i n / M).
  const fft::Complex* tables = nullptr;
  int64_t seq_len = 0, dim = 0;  // T >= 1
  int64_t length = 0;            // M
};

template <typename T>
struct FftConvArgs {
  FftConvFilter filter;
  const T* x = nullptr;       // [B, T, D], like the gates; tokens are `stride` apart
  const T* x_gate = nullptr;  // g; null: 1
  const T* y_gate = nullptr;  // z; null: 1
  int64_t stride = 0, batch = 0;
};

// Gradients of the parameters, summed over the rows. `added`: add to their contents.
struct FftConvFilterGrads {
  float* dfilter = nullptr;  // [T, D]; null: not wanted
  float* dskip = nullptr;    // [D]; null: not wanted, or there is no skip
  bool filter_added = false, skip_added = false;
};

template <typename T>
struct FftConvGrads {
  const T* dy = nullptr;  // [B, T, D], dense
  // Tokens are `stride` apart. dg and dz are null if there are no such gates.
  T *dx = nullptr, *dg = nullptr, *dz = nullptr;
  int64_t stride = 0;
  FftConvFilterGrads learned;
};

namespace cpu {
// Number of channels that are processed together, a group.
constexpr int64_t kFftConvLanes = 16;
inline int64_t FftConvGroups(int64_t dim) { return (dim + kFftConvLanes - 1) / kFftConvLanes; }
inline int64_t FftConvScratchBytes(int64_t length, bool backward) {
  const int64_t spectra = backward ? 4 : 2;
  return spectra * length * 2 * kFftConvLanes * static_cast<int64_t>(sizeof(float));
}
// Processes the channels of a group, in all rows. y is [B, T, D], dense.
void FftConvForward(const FftConvArgs<float>& args, int64_t group, float* y, float* scratch);
void FftConvForward(const FftConvArgs<Bf16>& args, int64_t group, Bf16* y, float* scratch);
void FftConvBackward(const FftConvArgs<float>& args, const FftConvGrads<float>& grads,
                     int64_t group, float* scratch);
void FftConvBackward(const FftConvArgs<Bf16>& args, const FftConvGrads<Bf16>& grads, int64_t group,
                     float* scratch);
}  // namespace cpu

namespace cuda {
// FftConvFits() returns true if a block's shared memory holds the transforms of forward and
// backward. FftConvWorkspaceBytes() returns the workspace size of a call (fft_conv_plan.cc).
bool FftConvFits(int64_t length, int64_t shared_memory_bytes);
int64_t FftConvWorkspaceBytes(const FftConvFilter& filter, int64_t batch, bool backward);
// `workspace` must be aligned to 16 bytes.
void FftConvForward(const FftConvArgs<float>& args, float* y, void* workspace, cudaStream_t stream);
void FftConvForward(const FftConvArgs<Bf16>& args, Bf16* y, void* workspace, cudaStream_t stream);
void FftConvBackward(const FftConvArgs<float>& args, const FftConvGrads<float>& grads,
                     void* workspace, cudaStream_t stream);
void FftConvBackward(const FftConvArgs<Bf16>& args, const FftConvGrads<Bf16>& grads,
                     void* workspace, cudaStream_t stream);
}  // namespace cuda

// The plan of a call: the length and tables of its transforms, and the division of its work on a
// GPU. These are pure functions (fft_conv_plan.cc).
//
// Return FftConvFilter's length and tables for rows of seq_len tokens.
int64_t FftConvLength(int64_t seq_len);
std::vector<fft::Complex> FftConvTables(int64_t length);

// The grid has blocks of `channels` channels, a power of two, in x, and `splits` blocks of rows in
// y, each with its own partial sums of the filter's gradient. It depends only on shapes, and so do
// the bits of the result.
struct FftConvLayout {
  int channels = 1, log2_channels = 0, splits = 1;
  int64_t rows_per_split = 0;
};
// `transforms` is the number of transforms that a block holds at a time.
FftConvLayout LayoutOf(const FftConvFilter& filter, int64_t batch, int transforms);

// Returns the bytes of shared memory for the transforms of one channel.
constexpr int64_t TransformBytes(int64_t length, int transforms) {
  return length * transforms * static_cast<int64_t>(sizeof(fft::Complex));
}

}  // namespace halflife::kernels
