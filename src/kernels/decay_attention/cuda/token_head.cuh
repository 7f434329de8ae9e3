// Kernels with one warp per token of a head, whose lanes handle the channels: the warp's token and
// head, and the grid size.
#pragma once

#include "kernels/common/cuda/device.h"
#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels::decay {

constexpr int kRowWarps = 4;  // per block

HL_DEVICE int64_t WarpRow() { return int64_t{1} * blockIdx.x * kRowWarps + WarpId(); }

HL_DEVICE void StoreRounded(bf16* target, float x) { *target = ToBf16(x); }
HL_DEVICE void StoreRounded(float* target, float x) { *target = x; }

// The indices of a row of [B, T, heads].
struct TokenHead {
  int64_t row;
  int batch, token, head;

  HL_DEVICE TokenHead(int64_t index, int seq_len, int num_heads) : row(index) {
    head = static_cast<int>(index % num_heads);
    index /= num_heads;
    token = static_cast<int>(index % seq_len);
    batch = static_cast<int>(index / seq_len);
  }
  // `of_head`: one of the tensor's own heads.
  template <typename T>
  HL_DEVICE T* In(const TensorView& view, int of_head) const {
    return static_cast<T*>(view.data) + batch * view.stride_b + token * view.stride_t +
           of_head * view.stride_h;
  }
  template <typename T>
  HL_DEVICE T* In(const TensorView& view) const {
    return In<T>(view, head);
  }
};

inline LaunchShape ShapeForRows(int64_t rows, const char* name) {
  return {GridBlocks((rows + kRowWarps - 1) / kRowWarps, name), 32 * kRowWarps, 0, name};
}
// Launches a kernel with a warp per row, the one for the type of q.
template <typename Params>
void LaunchForRows(int64_t rows, const char* name, cudaStream_t stream, const Params& params,
                   void (*bf16_kernel)(Params), void (*fp32_kernel)(Params)) {
  Launch(ShapeForRows(rows, name), stream,
         params.args.q.dtype == DType::kF32 ? fp32_kernel : bf16_kernel, params);
}

}  // namespace halflife::kernels::decay
