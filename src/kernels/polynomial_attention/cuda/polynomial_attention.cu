// Host functions of polynomial attention on CUDA: checks, grids, launches.
#include "kernels/common/cuda/device.h"
#include "kernels/polynomial_attention/cuda/launch.h"
#include "kernels/polynomial_attention/cuda/scan.cuh"
#include "kernels/polynomial_attention/cuda/step.cuh"
#include "kernels/polynomial_attention/polynomial_attention_call_checks.h"

namespace halflife::kernels {
namespace {

constexpr int kMaxChunkSize = 1 << 20;  // chunks only mark document starts here

template <typename T, typename Pass>
void LaunchScan(const polynomial::ScanParams& params, cudaStream_t stream) {
  const PolynomialAttentionArgs& args = params.grads.forward;
  const int64_t blocks =
      int64_t{1} * args.num_sequences * args.num_heads * polynomial::NumSlices(args);
  if (blocks == 0) return;
  Launch({dim3(GridBlocks(blocks, "polynomial attention")), dim3(polynomial::kScanThreads),
          polynomial::ScanSharedBytes(args), "polynomial attention"},
         stream, polynomial::ScanKernel<T, Pass>, params);
}

template <typename T>
void SumSlices(const polynomial::ScanParams& params, const TensorView& dx, cudaStream_t stream) {
  const PolynomialAttentionArgs& args = params.grads.forward;
  const int64_t size = int64_t{1} * args.batch * args.seq_len * args.num_heads * args.head_dim;
  if (size == 0) return;
  const int64_t blocks = (size + polynomial::kScanThreads - 1) / polynomial::kScanThreads;
  Launch({dim3(GridBlocks(blocks, "polynomial attention's slices")), dim3(polynomial::kScanThreads),
          0, "polynomial attention's slices"},
         stream, polynomial::SumSlicesKernel<T>, args, params.partials, polynomial::NumSlices(args),
         dx);
}

template <typename T>
void RunBackward(const PolynomialAttentionGradArgs& grads, cudaStream_t stream) {
  polynomial::ScanParams params;
  params.grads = grads;
  params.partials = static_cast<float*>(grads.forward.workspace);
  LaunchScan<T, polynomial::QueryGradientPass>(params, stream);
  SumSlices<T>(params, grads.dq, stream);
  LaunchScan<T, polynomial::KeyGradientPass>(params, stream);
  SumSlices<T>(params, grads.dk, stream);
}

template <typename T>
void RunStep(const PolynomialAttentionStepArgs& args, cudaStream_t stream) {
  const int64_t blocks = int64_t{1} * args.batch * args.num_heads;
  if (blocks == 0) return;
  Launch({dim3(GridBlocks(blocks, "polynomial attention step")),
          dim3(polynomial::kStepColumns * polynomial::kStepRows), polynomial::StepSharedBytes(args),
          "polynomial attention step"},
         stream, polynomial::StepKernel<T>, args);
}

}  // namespace

namespace cuda {

size_t ForwardWorkspaceBytes(const PolynomialAttentionArgs& args,
                             const PolynomialAttentionPlan& plan) {
  return plan.quadratic ? polynomial::QuadraticForwardBytes(args) : 0;
}

size_t WorkspaceBytes(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan) {
  if (plan.quadratic) return polynomial::QuadraticBackwardBytes(args);
  return sizeof(float) * args.batch * args.seq_len * args.num_heads * args.head_dim *
         polynomial::NumSlices(args);
}

void Forward(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan,
             cudaStream_t stream) {
  CheckCall(args, plan, kMaxChunkSize);
  if (plan.quadratic) return polynomial::QuadraticForward(args, stream);
  polynomial::ScanParams params;
  params.grads.forward = args;
  args.q.dtype == DType::kBF16 ? LaunchScan<bf16, polynomial::ForwardPass>(params, stream)
                               : LaunchScan<float, polynomial::ForwardPass>(params, stream);
}

void Backward(const PolynomialAttentionGradArgs& grads, const PolynomialAttentionPlan& plan,
              cudaStream_t stream) {
  CheckCall(grads, plan, kMaxChunkSize);
  HL_CHECK(grads.forward.num_chunks == 0 || grads.forward.workspace != nullptr,
           "polynomial attention: a backward on CUDA needs ", WorkspaceBytes(grads.forward, plan),
           " bytes of workspace, got none. Pass a workspace.");
  if (plan.quadratic) return polynomial::QuadraticBackward(grads, stream);
  grads.forward.q.dtype == DType::kBF16 ? RunBackward<bf16>(grads, stream)
                                        : RunBackward<float>(grads, stream);
}

void Step(const PolynomialAttentionStepArgs& args, cudaStream_t stream) {
  CheckStep(args, /*is_cuda=*/true);
  args.q.dtype == DType::kBF16 ? RunStep<bf16>(args, stream) : RunStep<float>(args, stream);
}

}  // namespace cuda
}  // namespace halflife::kernels
