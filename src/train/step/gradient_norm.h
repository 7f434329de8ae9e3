// The global norm's sum of squares. It has the same bits for any number of threads, and for any
// number of ranks if each of them sums all gradients.
//
//   const GradientNorm norm(fragments, arena.grads());
//   const at::Tensor partials = ops::ReadBack(norm.PartialSums());
//   const double squares = norm.Sum({partials.const_data_ptr<double>(), size_t(partials.numel())});
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "dist/parameter_layout.h"
#include "kernels/sum_of_squares/sum_of_squares_args.h"

namespace halflife::train {

// Holds the table of the fragments of `flat`, which is built once and used at every step.
class GradientNorm {
 public:
  // `flat` is fp32. Each fragment starts at its arena_begin.
  GradientNorm(const std::vector<dist::Fragment>& fragments, const at::Tensor& flat);

  // Returns [num_blocks] fp64 on the device of `flat`: sums over fixed blocks of each fragment, in
  // order. Does not wait for a GPU.
  at::Tensor PartialSums() const;
  // Adds up the result of PartialSums, on the host.
  double Sum(std::span<const double> partials) const;

 private:
  at::Tensor flat_;
  std::vector<kernels::SquaresSegment> segments_;
  int64_t num_blocks_ = 0;
  at::Tensor table_;  // segments_ as bytes on a GPU; undefined on the CPU.
};

// Returns the sum over all fragments in fp64, with both steps above.
double SumOfSquares(const std::vector<dist::Fragment>& fragments, const at::Tensor& flat);

}  // namespace halflife::train
