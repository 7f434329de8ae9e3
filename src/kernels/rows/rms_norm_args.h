// Arguments of the root-mean-square norm and of the scaling to norm 1, shared by their LibTorch
// side, CPU loops and CUDA kernels. C++17 without LibTorch, because CUDA sources include it.
//
// The root-mean-square norm:
//
//   out = n weight f(gate),   n = x / rms(x),   rms(x) = sqrt(mean(x^2) + eps)
//   dx = (m weight - n mean(m weight n)) / rms,   dweight = sum of m n over rows,
//   m = dout f(gate)
//
// where f is SiLU or the logistic function.
//
// Rows are contiguous, except those of the gate and of its gradient, which may be columns of a
// wider matrix: groups of `gate_rows` rows (the heads of a token) are contiguous, and consecutive
// groups begin `gate_stride` elements apart. T is float or Bf16; arithmetic is fp32.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/bfloat16.h"
#include "kernels/common/host_device.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

// The function f of a gate g, from the sigmoid of g.
enum class NormGate : uint8_t { kSilu, kSigmoid };
HL_EVERYWHERE constexpr float GateFactor(NormGate kind, float g, float sigmoid) {
  return kind == NormGate::kSilu ? g * sigmoid : sigmoid;
}
HL_EVERYWHERE constexpr float GateSlope(NormGate kind, float g, float sigmoid) {
  return kind == NormGate::kSilu ? sigmoid * (1.0f + g * (1.0f - sigmoid))
                                 : sigmoid * (1.0f - sigmoid);
}

// The memory layout of the rows of a gate or of its gradient.
struct NormGatePlace {
  int64_t gate_rows = 1, gate_stride = 0;  // a stride of 0 means contiguous
  HL_EVERYWHERE constexpr int64_t of(int64_t row, int64_t dim) const {
    return gate_stride == 0 ? row * dim : row / gate_rows * gate_stride + row % gate_rows * dim;
  }
};

template <typename T>
struct NormRows {
  const T* x = nullptr;         // [rows, dim]
  const T* residual = nullptr;  // [rows, dim]; null: the norm of x itself
  const T* gate = nullptr;      // [rows, dim]; null: no gate
  NormGatePlace gate_place;
  NormGate gate_kind = NormGate::kSilu;
  const float* weight = nullptr;  // [dim]
  // [rows, dim]: x + residual as stored, which is the norm's input; only with `residual`.
  T* sum = nullptr;
  T* out = nullptr;              // [rows, dim]
  float* inverse_rms = nullptr;  // [rows]
  int64_t num_rows = 0, dim = 0;
  float eps = 0;
};

template <typename T>
struct NormGradRows {
  const T* x = nullptr;     // [rows, dim], the input of the norm
  const T* gate = nullptr;  // [rows, dim]; null: no gate
  NormGatePlace gate_place;
  NormGate gate_kind = NormGate::kSilu;
  const float* weight = nullptr;
  const float* inverse_rms = nullptr;  // [rows]
  const T* dout = nullptr;
  // [rows, dim], added to dx: the gradient of x from its other use; null: none
  const T* dsum = nullptr;
  T* dx = nullptr;
  T* dgate = nullptr;  // only with `gate`
  NormGatePlace dgate_place;
  int64_t num_rows = 0, dim = 0;
};

// The scaling of rows to Euclidean norm 1:
//
//   y = f x,   f = 1 / sqrt(sum(x^2) + eps)
//   dx = f (dy - y dot(dy, y))
//
// One pass handles several matrices of the same size, such as queries and keys. Rows are
// contiguous. T is float or Bf16; arithmetic is fp32.

constexpr int kUnitNormParts = 2;  // maximum parts of a pass

template <typename T>
struct UnitNormPart {
  const T* x = nullptr;     // [rows, dim]
  T* out = nullptr;         // [rows, dim]
  float* factor = nullptr;  // [rows], f
};
template <typename T>
struct UnitNormArgs {
  UnitNormPart<T> parts[kUnitNormParts];
  int num_parts = 0;
  int64_t num_rows = 0, dim = 0;
  float eps = 0;
};

template <typename T>
struct UnitNormGradPart {
  const T* out = nullptr;         // [rows, dim], y
  const float* factor = nullptr;  // [rows]
  const T* dout = nullptr;        // [rows, dim]
  T* dx = nullptr;                // [rows, dim]
};
template <typename T>
struct UnitNormGradArgs {
  UnitNormGradPart<T> parts[kUnitNormParts];
  int num_parts = 0;
  int64_t num_rows = 0, dim = 0;
};

namespace cpu {
// Processes rows [begin, end).
template <typename T>
void NormForward(const NormRows<T>& rows, int64_t begin, int64_t end);
// Computes the gradients of rows [begin, end) and adds theirs to dweight [dim]. `scratch` holds dim
// floats.
template <typename T>
void NormBackward(const NormGradRows<T>& rows, int64_t begin, int64_t end, float* dweight,
                  float* scratch);

// Processes rows [begin, end) of every part.
template <typename T>
void UnitNormForward(const UnitNormArgs<T>& args, int64_t begin, int64_t end);
template <typename T>
void UnitNormBackward(const UnitNormGradArgs<T>& args, int64_t begin, int64_t end);
}  // namespace cpu

namespace cuda {
// The maximum number of partial sums of the weight's gradient: one per block.
constexpr int64_t kNormMaxBlocks = 768;
inline int64_t NormWorkspaceFloats(int64_t num_rows, int64_t dim) {
  return std::min(kNormMaxBlocks, num_rows) * dim;
}

template <typename T>
void NormForward(const NormRows<T>& rows, cudaStream_t stream);
// Overwrites dweight [dim] or, if `added`, adds to it. `workspace` holds NormWorkspaceFloats()
// floats.
template <typename T>
void NormBackward(const NormGradRows<T>& rows, float* dweight, bool added, float* workspace,
                  cudaStream_t stream);

template <typename T>
void UnitNormForward(const UnitNormArgs<T>& args, cudaStream_t stream);
template <typename T>
void UnitNormBackward(const UnitNormGradArgs<T>& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
