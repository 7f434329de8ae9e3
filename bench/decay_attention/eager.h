// Decay attention as one would write it with LibTorch's operations and its autograd: in chunks,
// vectorised over the chunks, constant masks made once. What the kernels are compared with.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace halflife::bench {

struct EagerShape {
  int64_t seq_len = 0, chunk_size = 64;
  // Per channel. 0: keys are divided by their decay since the chunk's start, which is fastest and
  // overflows where a channel decays by more than e^88 within a chunk. Else exponents are never
  // positive: pairs of tokens this close are formed channel by channel.
  int64_t sub_chunk = 0;
};

// q, k, v, log_decay -> out [B, T, H, V]
using EagerForm = std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const at::Tensor& log_decay)>;

// A constant log_decay [H], read here once: every mask is a constant.
EagerForm MakeEagerPerHead(const EagerShape& shape, const at::Tensor& log_decay, double scale);
// log_decay [B, T, H, K]
EagerForm MakeEagerPerChannel(const EagerShape& shape, double scale);

}  // namespace halflife::bench
