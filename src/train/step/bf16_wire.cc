#include "train/step/bf16_wire.h"

#include <ATen/ops/empty_like.h>

#include "ops/torch/tensor_ref.h"

namespace halflife::train {

bool SumsInBf16(const RunConfig& config, int num_ranks) {
  return num_ranks > 1 && config.parallel.grad_reduce == "bf16";
}

Bf16Wire::Bf16Wire(const at::Tensor& gradients)
    : gradients_(gradients),
      travelling_(at::empty_like(gradients, gradients.options().dtype(at::kBFloat16))) {}

TensorRef Bf16Wire::Load(int64_t begin, int64_t count) {
  const at::Tensor part = travelling_.narrow(0, begin, count);
  part.copy_(gradients_.narrow(0, begin, count));
  return ops::RefOf(part);
}

void Bf16Wire::Store(int64_t begin, int64_t count) {
  gradients_.narrow(0, begin, count).copy_(travelling_.narrow(0, begin, count));
}

}  // namespace halflife::train
