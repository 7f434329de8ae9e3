#include "train/step/gradient_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <cstddef>

#include "ops/torch/host_transfer.h"
#include "ops/torch/host_waits.h"
#include "ops/torch/tensor_views.h"

namespace halflife::train {

GradientNorm::GradientNorm(const std::vector<dist::Fragment>& fragments, const at::Tensor& flat)
    : flat_(flat) {
  for (const dist::Fragment& part : fragments) {
    const int64_t count = part.end - part.begin;
    if (count == 0) continue;
    segments_.push_back({part.arena_begin, count, num_blocks_});
    num_blocks_ += segments_.back().num_blocks();
  }
  if (flat.is_cuda()) table_ = ops::UploadTable(segments_, flat.device());
}

at::Tensor GradientNorm::PartialSums() const {
  ops::NoteKernel();
  const at::Tensor partials = at::empty({num_blocks_}, flat_.options().dtype(at::kDouble));
  kernels::SquaresArgs args = {.values = flat_.const_data_ptr<float>(),
                               .segments = segments_.data(),
                               .num_segments = static_cast<int>(segments_.size()),
                               .num_blocks = num_blocks_,
                               .partials = partials.mutable_data_ptr<double>()};
#ifdef HALFLIFE_WITH_CUDA
  if (flat_.is_cuda()) {
    const c10::DeviceGuard guard(flat_.device());
    args.segments = static_cast<const kernels::SquaresSegment*>(table_.const_data_ptr());
    kernels::cuda::SumOfSquares(args,
                                ops::CurrentStream({Device::Kind::kCuda, flat_.get_device()}));
    return partials;
  }
#endif
  at::parallel_for(0, args.num_blocks, 1, [&](int64_t begin, int64_t end) {
    kernels::cpu::SumOfSquares(args, begin, end);
  });
  return partials;
}

double GradientNorm::Sum(std::span<const double> partials) const {
  const double* partial = partials.data();
  double sum = 0;
  for (const kernels::SquaresSegment& segment : segments_) {
    double parameter = 0;
    for (int64_t block = 0; block < segment.num_blocks(); ++block) parameter += *partial++;
    sum += parameter;
  }
  return sum;
}

double SumOfSquares(const std::vector<dist::Fragment>& fragments, const at::Tensor& flat) {
  const GradientNorm norm(fragments, flat);
  const at::Tensor partials = ops::ReadBack(norm.PartialSums());
  return norm.Sum({partials.const_data_ptr<double>(), static_cast<size_t>(partials.numel())});
}

}  // namespace halflife::train
