#include "train/gradient_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <span>
#include <vector>

namespace halflife::train {
namespace {

// In blocks that start with the parameter, whose place in the arena depends on the world size.
double SumOfSquares(std::span<const float> values) {
  constexpr size_t kBlock = 1 << 16;
  const size_t num_blocks = (values.size() + kBlock - 1) / kBlock;
  std::vector<double> partial(num_blocks);
  at::parallel_for(0, static_cast<int64_t>(num_blocks), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      double lanes[8] = {};
      const size_t first = block * kBlock, last = std::min(values.size(), first + kBlock);
      size_t i = first;
      for (; i + 8 <= last; i += 8) {
        for (int lane = 0; lane < 8; ++lane) {
          lanes[lane] += static_cast<double>(values[i + lane]) * values[i + lane];
        }
      }
      for (; i < last; ++i) lanes[0] += static_cast<double>(values[i]) * values[i];
      for (const double lane : lanes) partial[block] += lane;
    }
  });
  double sum = 0;
  for (const double block : partial) sum += block;
  return sum;
}

}  // namespace

double SumOfSquares(const dist::ParameterLayout& layout, const at::Tensor& flat) {
  if (!flat.is_cpu()) {  // the padding between parameters is zero
    const double norm = at::linalg_vector_norm(flat, 2, {}, false, at::kDouble).item<double>();
    return norm * norm;
  }
  const std::span<const float> values(flat.const_data_ptr<float>(), flat.numel());
  double sum = 0;
  for (size_t i = 0; i < layout.specs().size(); ++i) {
    sum += SumOfSquares(values.subspan(layout.offset(i), layout.specs()[i].count()));
  }
  return sum;
}

}  // namespace halflife::train
