#include "kernels/common/cuda/device.h"
#include "kernels/rows/learned_decay_args.h"

namespace halflife::kernels {
namespace {

constexpr int kThreads = 256;

HL_DEVICE int64_t Element() { return int64_t{kThreads} * blockIdx.x + threadIdx.x; }

__global__ void __launch_bounds__(kThreads) LearnedDecayKernel(LearnedDecayArgs args) {
  const int64_t i = Element();
  if (i >= args.heads * args.width) return;
  const float p = args.p[i];
  args.log_decay[i] =
      args.form == LearnedDecayForm::kNegativeExp ? -expf(p) : OffHead(i / args.width, args).Of(p);
}

__global__ void __launch_bounds__(kThreads) LearnedDecayGradKernel(LearnedDecayGradArgs args) {
  const int64_t i = Element();
  const LearnedDecayArgs& forward = args.forward;
  if (i >= forward.heads * forward.width) return;
  const float slope = forward.form == LearnedDecayForm::kNegativeExp
                          ? forward.log_decay[i]
                          : OffHead(i / forward.width, forward).Slope(forward.p[i]);
  const float d = args.dlog_decay[i] * slope;
  args.dp[i] = args.added ? args.dp[i] + d : d;
}

template <typename Args>
void Run(const Args& args, int64_t count, void (*kernel)(Args), const char* name,
         cudaStream_t stream) {
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  Launch({dim3(blocks), dim3(kThreads), 0, name}, stream, kernel, args);
}

}  // namespace

namespace cuda {

void LearnedDecayForward(const LearnedDecayArgs& args, cudaStream_t stream) {
  Run(args, args.heads * args.width, LearnedDecayKernel, "learned decay", stream);
}
void LearnedDecayBackward(const LearnedDecayGradArgs& args, cudaStream_t stream) {
  Run(args, args.forward.heads * args.forward.width, LearnedDecayGradKernel,
      "learned decay's gradient", stream);
}

}  // namespace cuda
}  // namespace halflife::kernels
