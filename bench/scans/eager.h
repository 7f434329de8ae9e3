// RWKV-4's time mixing and Mamba's selective scan in LibTorch's operations, differentiable, for
// comparison with the kernels. Use the fastest form of each. Documents and states are not
// supported.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ops/scans/selective_scan.h"
#include "ops/scans/wkv4.h"
#include "support/operation_times.h"

namespace halflife::bench {

// Maps the operands of one scan, [B, T, ...] first, to its outputs [B, T, D].
struct EagerForm {
  std::string name;
  std::function<at::Tensor(const Tensors&)> run;
};

// Returns two forms of WKV with the operands k, v, log_decay, bonus. The first works in chunks:
// cumulative sums relative to the chunk's largest exponent, which fp32 can represent for the
// benchmark's decays but not for all, and a loop over the chunks' states. The second works token by
// token.
std::vector<EagerForm> EagerWkv();
// Returns the same two forms of the selective scan, with the operands x, delta, delta_bias, a, b,
// c, skip.
std::vector<EagerForm> EagerScan();

}  // namespace halflife::bench
