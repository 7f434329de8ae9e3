// The launches of the delta rule's backward (see backward.h).
#include "kernels/delta_rule/cuda/backward.h"

#include <algorithm>
#include <type_traits>

#include "kernels/delta_rule/cuda/adjoint_scan.cuh"
#include "kernels/delta_rule/cuda/channel_pairs.cuh"
#include "kernels/delta_rule/cuda/passes.h"
#include "kernels/delta_rule/cuda/token_pairs.cuh"
#include "kernels/delta_rule/delta_rule_call_checks.h"

namespace halflife::kernels::delta {
namespace {

// Returns a contiguous [B, T, HV, K] of fp32.
TensorView PartialView(const DeltaRuleArgs& args, float* data) {
  TensorView view;
  view.data = data;
  view.stride_h = args.head_dim_k;
  view.stride_t = view.stride_h * args.num_value_heads;
  view.stride_b = view.stride_t * args.seq_len;
  view.dtype = DType::kF32;
  return view;
}

constexpr int kSumThreads = 256;

// Sums the gradients of the value heads that share a head, in their order. One thread per element
// of [tokens, H, K], grouped by chunks, so that only existing tokens are read.
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    SumValueHeadsKernel(const DeltaRuleArgs args, const TensorView partial, const TensorView sum) {
  const ChunkEntry chunk = args.chunks[blockIdx.x / args.num_heads];
  const int head = static_cast<int>(blockIdx.x % args.num_heads);
  const int per_head = args.num_value_heads / args.num_heads, K = args.head_dim_k;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < chunk.length * K; i += kSumThreads) {
    float total = 0;
#pragma unroll 1
    for (int h = head * per_head; h < (head + 1) * per_head; ++h)
      total += Load<float>(partial, chunk, i / K, h, i % K);
    Store<T>(sum, chunk, i / K, head, i % K, total);
  }
}

void SumValueHeads(const DeltaRuleArgs& args, const TensorView& partial, const TensorView& sum,
                   cudaStream_t stream) {
  const LaunchShape shape = {dim3(GridBlocks(int64_t{1} * args.num_chunks * args.num_heads,
                                             "delta rule's sums over value heads")),
                             dim3(kSumThreads), 0, "delta rule's sums over value heads"};
  if (sum.dtype == DType::kBF16) {
    Launch(shape, stream, SumValueHeadsKernel<bf16>, args, partial, sum);
  } else {
    Launch(shape, stream, SumValueHeadsKernel<float>, args, partial, sum);
  }
}

template <typename Config>
void LaunchGradients(const ChunkGradientsParams& params, void (*kernel)(ChunkGradientsParams),
                     cudaStream_t stream) {
  const DeltaRuleArgs& args = params.grads.forward;
  const int64_t blocks = int64_t{1} * args.num_chunks * args.num_value_heads;
  if (blocks == 0) return;
  Launch({dim3(GridBlocks(blocks, "delta rule's gradients")), dim3(Config::kThreads),
          Config::kSmemBytes, "delta rule's gradients"},
         stream, kernel, params);
}

// kPaddedKeys: K'.
template <typename T, int kPaddedKeys>
void LaunchAdjointScan(const AdjointScanParams& scan, cudaStream_t stream) {
  if (CanScanAdjointByWgmma(scan.args, scan.dout)) return LaunchWarpgroupAdjointScan(scan, stream);
  using Config = AdjointScanConfig<T, kPaddedKeys>;
  using Small = AdjointScanConfig<T, kPaddedKeys, /*kStages=*/1>;
  if (Config::kSmemBytes > scan.args.shared_memory_bytes)
    return LaunchAdjointScanAs<Small>(scan, stream);
  LaunchAdjointScanAs<Config>(scan, stream);
}

template <typename T, int kPaddedKeys, bool kPerChannel>
constexpr bool IsBackwardBlock() {
  constexpr int kK = kPaddedKeys < 128 ? kPaddedKeys : 128;
  return std::max({ForwardBlockBytes(sizeof(T) == 2, kPaddedKeys, kPerChannel),
                   AdjointScanConfig<T, kPaddedKeys, /*kStages=*/1>::kSmemBytes,
                   GradientConfig<T, kK, kPerChannel>::kSmemBytes}) ==
         BackwardBlockBytes(sizeof(T) == 2, kPaddedKeys, kPerChannel);
}
static_assert(IsBackwardBlock<bf16, 64, false>() && IsBackwardBlock<bf16, 64, true>());
static_assert(IsBackwardBlock<bf16, 128, false>() && IsBackwardBlock<bf16, 128, true>());
static_assert(IsBackwardBlock<bf16, 256, false>() && IsBackwardBlock<bf16, 256, true>());
static_assert(IsBackwardBlock<float, 64, false>() && IsBackwardBlock<float, 64, true>());
static_assert(IsBackwardBlock<float, 128, false>() && IsBackwardBlock<float, 128, true>());

template <typename T, int kPaddedKeys>
void RunBackward(const AdjointScanParams& scan, const ChunkGradientsParams& gradients,
                 cudaStream_t stream) {
  LaunchAdjointScan<T, kPaddedKeys>(scan, stream);
  constexpr int kK = kPaddedKeys < 128 ? kPaddedKeys : 128;
  if constexpr (std::is_same_v<T, bf16>) {
    if (scan.args.warpgroups) {  // Hopper: more shared memory than sm_80
      if (scan.args.decay == DeltaDecay::kPerTokenChannel) {
        using Config = PrefetchGradientConfig<kK, /*kPerChannel=*/true>;
        return LaunchGradients<Config>(gradients, ChannelGradientsKernel<Config>, stream);
      }
      using Config = PrefetchGradientConfig<kK, /*kPerChannel=*/false>;
      return LaunchGradients<Config>(gradients, TokenGradientsKernel<Config>, stream);
    }
  }
  if (scan.args.decay == DeltaDecay::kPerTokenChannel) {
    using Config = GradientConfig<T, kK, /*kPerChannel=*/true>;
    LaunchGradients<Config>(gradients, ChannelGradientsKernel<Config>, stream);
  } else {
    using Config = GradientConfig<T, kK, /*kPerChannel=*/false>;
    LaunchGradients<Config>(gradients, TokenGradientsKernel<Config>, stream);
  }
}

// Calls run(an element, a constant K') for the type of q and the padded width of the keys.
template <typename Run>
void WithGradientInstance(const DeltaRuleArgs& args, const Run& run) {
  using std::integral_constant;
  const int keys = PaddedKeys(args.head_dim_k);
  if (args.q.dtype == DType::kF32) {
    if (keys == 64) return run(float(), integral_constant<int, 64>());
    return run(float(), integral_constant<int, 128>());
  }
  if (keys == 64) return run(bf16(), integral_constant<int, 64>());
  if (keys == 128) return run(bf16(), integral_constant<int, 128>());
  run(bf16(), integral_constant<int, 256>());
}

AdjointScanParams MakeScanParams(const DeltaRuleArgs& args, const TensorView& dout,
                                 const Workspace& workspace) {
  AdjointScanParams params;
  params.args = args;
  params.dout = dout;
  params.workspace = workspace;
  params.num_slices = (args.head_dim_v + kValues - 1) / kValues;
  return params;
}

}  // namespace

void LaunchBackward(const DeltaRuleGradArgs& grads, const Workspace& workspace,
                    const BackwardArrays& arrays, cudaStream_t stream) {
  const DeltaRuleArgs& args = grads.forward;
  AdjointScanParams scan = MakeScanParams(args, grads.dout, workspace);
  scan.arrays = arrays;
  scan.entry = static_cast<const float*>(grads.dfinal_state);
  scan.exit = static_cast<float*>(grads.dinitial_state);
  const bool shared = args.num_heads < args.num_value_heads;
  ChunkGradientsParams gradients;
  gradients.grads = grads;
  gradients.workspace = workspace;
  gradients.arrays = arrays;
  gradients.dq = shared ? PartialView(args, arrays.dq) : grads.dq;
  gradients.dk = shared ? PartialView(args, arrays.dk) : grads.dk;
  WithGradientInstance(args, [&](auto element, auto keys) {
    RunBackward<decltype(element), decltype(keys)::value>(scan, gradients, stream);
  });
  if (!shared || args.num_chunks == 0) return;
  SumValueHeads(args, gradients.dq, grads.dq, stream);
  SumValueHeads(args, gradients.dk, grads.dk, stream);
}

void LaunchAdjointSummary(const DeltaSegmentArgs& segment, const Workspace& workspace,
                          cudaStream_t stream) {
  const DeltaRuleArgs& args = segment.forward;
  AdjointScanParams scan = MakeScanParams(args, segment.dout, workspace);
  scan.exit = static_cast<float*>(segment.adjoint);
  WithGradientInstance(args, [&](auto element, auto keys) {
    LaunchAdjointScan<decltype(element), decltype(keys)::value>(scan, stream);
  });
}

}  // namespace halflife::kernels::delta

namespace halflife::kernels::cuda {
namespace {

void CheckGradientCall(const DeltaRuleArgs& args, size_t bytes) {
  HL_CHECK(SupportsDeltaRuleBackward(args), "delta rule on CUDA: gradients of ", Name(args.q.dtype),
           " heads of K = ", args.head_dim_k, " are not supported with ", args.shared_memory_bytes,
           " bytes of shared memory. Use bf16 or smaller heads.");
  HL_CHECK(args.num_chunks == 0 || args.workspace != nullptr, "delta rule on CUDA: needs ", bytes,
           " bytes of workspace, got none. Pass a workspace.");
}

}  // namespace

void DeltaRuleBackward(const DeltaRuleGradArgs& grads, cudaStream_t stream) {
  CheckDeltaBackward(grads);
  const DeltaRuleArgs& args = grads.forward;
  CheckGradientCall(args, DeltaRuleBackwardBytes(args));
  const delta::Workspace workspace =
      delta::DivideWorkspace(args, delta::Purpose::kBackward, args.workspace);
  const delta::BackwardArrays arrays =
      delta::DivideBackwardArrays(args, static_cast<std::byte*>(args.workspace) +
                                            delta::WorkspaceBytes(args, delta::Purpose::kBackward));
  delta::LaunchPrepare(args, workspace, stream);
  if (args.num_chunks > 0) delta::LaunchRecomputeStates(args, workspace, stream);
  delta::LaunchBackward(grads, workspace, arrays, stream);
}

void DeltaRuleBackwardSummarise(const DeltaSegmentArgs& segment, cudaStream_t stream) {
  CheckDeltaSegment(segment, /*reverse=*/true);
  const DeltaRuleArgs& args = segment.forward;
  CheckGradientCall(args, DeltaRuleAdjointBytes(args));
  const delta::Workspace workspace =
      delta::DivideWorkspace(args, delta::Purpose::kAdjoint, args.workspace);
  delta::LaunchPrepare(args, workspace, stream);
  delta::LaunchAdjointSummary(segment, workspace, stream);
}

}  // namespace halflife::kernels::cuda
