// Sends fp32 gradients between ranks in bf16 (parallel.grad_reduce), which halves the bytes. Each
// rank's share is rounded to nearest, and so is the sum. On the CPU, the sum is computed in fp32
// and rounded once. NCCL rounds after every addition of two shares.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dist/gradient_reducer.h"
#include "train/config/run_config.h"

namespace halflife::train {

// Returns whether sums over `num_ranks` ranks use bf16. One rank sends nothing.
bool SumsInBf16(const RunConfig& config, int num_ranks);

class Bf16Wire : public dist::GradientWire {
 public:
  // gradients [n] fp32, which stay in place. Allocates another n elements of bf16.
  explicit Bf16Wire(const at::Tensor& gradients);

  TensorRef Load(int64_t begin, int64_t count) override;
  void Store(int64_t begin, int64_t count) override;
  int64_t bytes() const { return static_cast<int64_t>(travelling_.nbytes()); }

 private:
  at::Tensor gradients_, travelling_;
};

}  // namespace halflife::train
