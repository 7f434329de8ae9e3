// The contract of the long convolution between its binding, its CPU loops and its CUDA kernels. For
// each row and channel, with gates g and z that are 1 where there are none:
//
//   u_t = g_t x_t, rounded to T,   h_t = filter_t e^(t w),   w = window_first + channel window_step
//   s_t = sum over r <= t of h_{t-r} u_r,   y_t = z_t (s_t + skip u_t)
//
//   ds_t = z_t dy_t,   dz_t = dy_t (s_t + skip u_t),   dg_t = x_t du_t,   dx_t = g_t du_t
//   du_t = sum over r >= t of h_{r-t} ds_r + skip ds_t
//   dfilter_t = e^(t w) sum over rows and r of ds_{r+t} u_r,   dskip = sum of ds_t u_t
//
// The sums are products of polynomials modulo X^M - i, M the least power of two not below T: what
// passes X^M comes back times i, so that the real part is the causal sum and no row is padded.
// Coefficient n times e^(i pi n / (2 M)) makes that the cyclic convolution of M points, by their
// Fourier transforms; with the conjugate of one spectrum the real part is the correlation (the
// right-angle convolution of Crandall and Fagin, Discrete weighted transforms, 1994).
//
// T: float or Bf16; arithmetic is fp32. C++17, no LibTorch: CUDA sources include it.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"
#include "kernels/convolution/fft_conv_butterfly.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

// What does not depend on the rows.
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
  const T* x = nullptr;       // [B, T, D], as the gates are: tokens' rows `stride` apart
  const T* x_gate = nullptr;  // g; null: 1
  const T* y_gate = nullptr;  // z; null: 1
  int64_t stride = 0, batch = 0;
};

// Of what is learned, summed over the rows; `added`: to what they hold.
struct FftConvFilterGrads {
  float* dfilter = nullptr;  // [T, D]; null: nobody wants it
  float* dskip = nullptr;    // [D]; null likewise, or there is none
  bool filter_added = false, skip_added = false;
};

template <typename T>
struct FftConvGrads {
  const T* dy = nullptr;  // [B, T, D], dense
  // Tokens' rows `stride` apart; of gates where there are some.
  T *dx = nullptr, *dg = nullptr, *dz = nullptr;
  int64_t stride = 0;
  FftConvFilterGrads learned;
};

namespace cpu {
// Channels that are worked through side by side, a group.
constexpr int64_t kFftConvLanes = 16;
inline int64_t FftConvGroups(int64_t dim) { return (dim + kFftConvLanes - 1) / kFftConvLanes; }
inline int64_t FftConvScratchBytes(int64_t length, bool backward) {
  const int64_t spectra = backward ? 4 : 2;
  return spectra * length * 2 * kFftConvLanes * static_cast<int64_t>(sizeof(float));
}
// The channels of a group, of all rows. y [B, T, D], dense.
void FftConvForward(const FftConvArgs<float>& args, int64_t group, float* y, float* scratch);
void FftConvForward(const FftConvArgs<Bf16>& args, int64_t group, Bf16* y, float* scratch);
void FftConvBackward(const FftConvArgs<float>& args, const FftConvGrads<float>& grads,
                     int64_t group, float* scratch);
void FftConvBackward(const FftConvArgs<Bf16>& args, const FftConvGrads<Bf16>& grads, int64_t group,
                     float* scratch);
}  // namespace cpu

namespace cuda {
// Whether a block has room for what it transforms, forward and backward; what a call borrows
// (plan.h).
bool FftConvFits(int64_t length, int64_t shared_memory_bytes);
int64_t FftConvWorkspaceBytes(const FftConvFilter& filter, int64_t batch, bool backward);
// `workspace` is aligned to 16 bytes.
void FftConvForward(const FftConvArgs<float>& args, float* y, void* workspace, cudaStream_t stream);
void FftConvForward(const FftConvArgs<Bf16>& args, Bf16* y, void* workspace, cudaStream_t stream);
void FftConvBackward(const FftConvArgs<float>& args, const FftConvGrads<float>& grads,
                     void* workspace, cudaStream_t stream);
void FftConvBackward(const FftConvArgs<Bf16>& args, const FftConvGrads<Bf16>& grads,
                     void* workspace, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
