// The cases of the row kernel benchmark: each family's call, and the same formula in LibTorch's
// operations.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "support/measure.h"

namespace halflife::bench {

using Tensors = std::vector<at::Tensor>;
// Maps operands to results, in one order for both forms of a pass. Some passes update operands in
// place and return those.
using Form = std::function<Tensors(const Tensors&)>;

struct Pass {
  std::string name;  // forward, forward_backward, backward, update or step.
  Form ours;
  Form eager;  // The fastest form in LibTorch's operations. Also accepts fp64 operands.
  // Bytes that every schedule must move: each operand is read and each result written once per
  // pass.
  double bytes = 0;
  // Empty: the matmul limits the pass, so a fraction of the memory bandwidth has no meaning.
  std::optional<MemoryCeiling::Kind> ceiling = MemoryCeiling::Kind::kCopy;
};

struct Case {
  std::string family, shape;
  std::function<Tensors()> make;  // Random operands.
  std::vector<Pass> passes;
  // Largest relative RMS error of fp32 results: a few roundings of 2^-24 and sums of up to 10^5
  // terms in blocks, or more if the terms were rounded to bf16.
  double max_error = 5e-6;
};

struct CaseOptions {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;  // The activations': fp32 or bf16.
  bool large = false;  // Operands exceed the caches; otherwise a layer of a 6 x 256 step.
};

// Returns the cases of a layer: RMS norm (plain, after a sum, gated), rotary encoding, SwiGLU and
// short convolution with gradients, and the weight gradients of linear layers.
std::vector<Case> MakeLayerCases(const CaseOptions& options);
// Returns the cases that write in place: AdamW, sum of squares, rows of cross entropy, and the
// decode step of decay attention.
std::vector<Case> MakeUpdateCases(const CaseOptions& options);

}  // namespace halflife::bench
