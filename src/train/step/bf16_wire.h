// fp32 gradients that travel between ranks in bf16 (parallel.grad_reduce): half the bytes. Each
// rank's share is rounded to nearest, and so is the sum: on the CPU once, of fp32 additions; NCCL
// adds two at a time, and rounds each time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dist/gradient_wire.h"
#include "train/config/run_config.h"

namespace halflife::train {

// Whether sums over so many ranks are: of one there is nothing to send.
bool SumsInBf16(const RunConfig& config, int num_ranks);

class Bf16Wire : public dist::GradientWire {
 public:
  // gradients [n] fp32, which stay in place; as many elements of bf16 are allocated beside them.
  explicit Bf16Wire(const at::Tensor& gradients);

  TensorRef Load(int64_t begin, int64_t count) override;
  void Store(int64_t begin, int64_t count) override;
  int64_t bytes() const { return static_cast<int64_t>(travelling_.nbytes()); }

 private:
  at::Tensor gradients_, travelling_;
};

}  // namespace halflife::train
