// Kernels with one warp per token of a head, whose lanes handle the channels: the warp's token and
// head, and the grid size.
#pragma once

#include "kernels/common/cuda/device.h"
#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels::decay {

constexpr int kRowWarps = 4;  // per block

HL_DEVICE int64_t WarpRow() { return int64_t{1} * blockIdx.x * kRowWarps + WarpId(); }

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
  HL_DEVICE bf16* In(const TensorView& view, int of_head) const {
    return static_cast<bf16*>(view.data) + batch * view.stride_b + token * view.stride_t +
           of_head * view.stride_h;
  }
  HL_DEVICE bf16* In(const TensorView& view) const { return In(view, head); }
};

inline LaunchShape ShapeForRows(int64_t rows, const char* name) {
  return {GridBlocks((rows + kRowWarps - 1) / kRowWarps, name), 32 * kRowWarps, 0, name};
}

}  // namespace halflife::kernels::decay
