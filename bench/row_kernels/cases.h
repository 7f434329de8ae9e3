// What the benchmark of the row families runs: each family's call beside the same formula in
// LibTorch's operations.
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
// Operands to results, in one order for both forms of a pass. Some passes update operands in place,
// and return those.
using Form = std::function<Tensors(const Tensors&)>;

struct Pass {
  std::string name;  // forward, forward_backward, backward, update, step
  Form ours;
  Form eager;  // the fastest that LibTorch's operations give; takes fp64 operands as well
  // That no schedule avoids: each operand read and each result written once a pass.
  double bytes = 0;
  // none: the matmul bounds the pass, and a share of memory would say nothing
  std::optional<MemoryCeiling::Kind> ceiling = MemoryCeiling::Kind::kCopy;
};

struct Case {
  std::string family, shape;
  std::function<Tensors()> make;  // random operands
  std::vector<Pass> passes;
  // Largest relative RMS error of results in fp32: some roundings of 2^-24 and sums of up to 10^5
  // terms in blocks, or more where what was summed had been rounded to bf16.
  double max_error = 5e-6;
};

struct CaseOptions {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;  // of activations: fp32 or bf16
  bool large = false;                 // no operand stays in a cache; else a layer of a 6 x 256 step
};

// RMS norm (plain, after a sum, gated), rotary encoding, SwiGLU, short convolution: with gradients.
// Linear layers: their weights' gradients.
std::vector<Case> MakeLayerCases(const CaseOptions& options);
// AdamW, sum of squares, rows of cross entropy, the decode step of decay attention: in place.
std::vector<Case> MakeUpdateCases(const CaseOptions& options);

}  // namespace halflife::bench
