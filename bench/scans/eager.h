// RWKV-4's time mixing and Mamba's selective scan in LibTorch's operations, differentiable: what
// the kernels are measured against. Of each the fastest form is to be taken. Without documents or
// state.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ops/scans/selective_scan.h"
#include "ops/scans/wkv4.h"

namespace halflife::bench {

using Tensors = std::vector<at::Tensor>;

// Operands of one scan, [B, T, ...] first, to its outputs [B, T, D].
struct EagerForm {
  std::string name;
  std::function<at::Tensor(const Tensors&)> run;
};

// Of k, v, log_decay, bonus. In chunks: sums over a chunk's tokens as cumulative sums under the
// chunk's largest exponent, which fp32 can hold for the decays of a benchmark, not for all; and the
// states of chunks one after the other. Or token by token.
std::vector<EagerForm> EagerWkv();
// Of x, delta, delta_bias, a, b, c, skip. The same two.
std::vector<EagerForm> EagerScan();

}  // namespace halflife::bench
