#include "train/step/gradient_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>

#include <vector>

#include "kernels/sum_of_squares/args.h"
#include "kernels/torch/tensor_ref.h"

namespace halflife::train {
namespace {

using kernels::SquaresArgs;
using kernels::SquaresSegment;

struct Segments {
  std::vector<SquaresSegment> list;
  int64_t num_blocks = 0;
};

Segments SegmentsOf(const std::vector<dist::Fragment>& fragments) {
  Segments segments;
  for (const dist::Fragment& part : fragments) {
    const int64_t count = part.end - part.begin;
    if (count == 0) continue;
    segments.list.push_back({part.arena_begin, count, segments.num_blocks});
    segments.num_blocks += segments.list.back().num_blocks();
  }
  return segments;
}

// [num_blocks] on the CPU.
at::Tensor PartialSums(const Segments& segments, const at::Tensor& flat) {
  const at::Tensor partials = at::empty({segments.num_blocks}, flat.options().dtype(at::kDouble));
  SquaresArgs args = {.values = flat.const_data_ptr<float>(),
                      .segments = segments.list.data(),
                      .num_segments = static_cast<int>(segments.list.size()),
                      .num_blocks = segments.num_blocks,
                      .partials = partials.mutable_data_ptr<double>()};
#ifdef HALFLIFE_WITH_CUDA
  if (flat.is_cuda()) {
    const c10::DeviceGuard guard(flat.device());
    const auto bytes = static_cast<int64_t>(segments.list.size() * sizeof(SquaresSegment));
    const at::Tensor table =
        at::from_blob(const_cast<SquaresSegment*>(segments.list.data()), {bytes}, at::kByte)
            .to(flat.device(), at::kByte);
    args.segments = static_cast<const SquaresSegment*>(table.const_data_ptr());
    kernels::cuda::SumOfSquares(args,
                                kernels::CurrentStream({Device::Kind::kCuda, flat.get_device()}));
    return partials.cpu();
  }
#endif
  at::parallel_for(0, args.num_blocks, 1, [&](int64_t begin, int64_t end) {
    kernels::cpu::SumOfSquares(args, begin, end);
  });
  return partials;
}

}  // namespace

double SumOfSquares(const std::vector<dist::Fragment>& fragments, const at::Tensor& flat) {
  const Segments segments = SegmentsOf(fragments);
  const at::Tensor partials = PartialSums(segments, flat);
  const double* partial = partials.const_data_ptr<double>();
  double sum = 0;
  for (const SquaresSegment& segment : segments.list) {
    double parameter = 0;
    for (int64_t block = 0; block < segment.num_blocks(); ++block) parameter += *partial++;
    sum += parameter;
  }
  return sum;
}

}  // namespace halflife::train
