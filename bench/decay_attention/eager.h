// Decay attention with LibTorch's operations and autograd, for comparison with the kernels: in
// chunks, vectorised over the chunks, with constant masks that are made once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace halflife::bench {

struct EagerShape {
  int64_t seq_len = 0, chunk_size = 64;
  // For decays per channel. 0: keys are divided by their decay since the start of the chunk. This
  // is fastest, and overflows if a channel decays by more than e^88 within a chunk. Otherwise
  // exponents are never positive, and pairs of tokens within such a sub-chunk are computed channel
  // by channel.
  int64_t sub_chunk = 0;
};

// q, k, v, log_decay -> out [B, T, H, V]
using EagerForm = std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const at::Tensor& log_decay)>;

// log_decay [H] is constant and read once, so every mask is a constant.
EagerForm MakeEagerPerHead(const EagerShape& shape, const at::Tensor& log_decay, double scale);
// log_decay [B, T, H, K]
EagerForm MakeEagerPerChannel(const EagerShape& shape, double scale);

}  // namespace halflife::bench
