// Host functions of the delta rule on CUDA: checks, grids, launches.
#include <algorithm>
#include <type_traits>

#include "kernels/delta_rule/cuda/output.cuh"
#include "kernels/delta_rule/cuda/prepare.cuh"
#include "kernels/delta_rule/cuda/scan.cuh"
#include "kernels/delta_rule/cuda/step.cuh"
#include "kernels/delta_rule/delta_rule_call_checks.h"

namespace halflife::kernels {
namespace delta {
namespace {

template <int kK>
using Keys = std::integral_constant<int, kK>;

// Calls launch(an element, Keys<K'>) for the type of q and the padded width of the keys.
template <typename Function>
void WithInstance(DType dtype, int head_dim_k, const Function& launch) {
  const auto with_type = [&](auto element) {
    switch (PaddedKeys(head_dim_k)) {
      case 64:
        return launch(element, Keys<64>());
      case 128:
        return launch(element, Keys<128>());
      default:
        return launch(element, Keys<256>());
    }
  };
  dtype == DType::kBF16 ? with_type(bf16()) : with_type(float());
}

int64_t NumChunkHeads(const DeltaRuleArgs& args) {
  return int64_t{1} * args.num_chunks * args.num_value_heads;
}

template <typename Config>
void LaunchPrepareOf(const PrepareParams& params, cudaStream_t stream) {
  constexpr const char* kName = "delta rule, chunks without states";
  Launch({dim3(GridBlocks(NumChunkHeads(params.args), kName)), dim3(Config::kThreads),
          Config::kSmemBytes, kName},
         stream, PrepareKernel<Config>, params);
}

void CheckSupported(const DeltaRuleArgs& args) {
  HL_CHECK(cuda::SupportsDeltaRule(args), "delta rule on CUDA: ", Name(args.q.dtype),
           " heads of K = ", args.head_dim_k,
           args.decay == DeltaDecay::kPerTokenChannel ? " with decays per channel" : "",
           " are not supported with ", args.shared_memory_bytes,
           " bytes of shared memory. Use bf16 or smaller heads.");
}

template <typename T, int kK, bool kPerChannel>
constexpr bool IsForwardBlock() {
  return std::max({PrepareConfig<T, kK, kPerChannel>::kSmemBytes, ScanConfig<T, kK>::kSmemBytes,
                   OutputConfig<T, kK>::kSmemBytes}) ==
         ForwardBlockBytes(sizeof(T) == 2, kK, kPerChannel);
}
static_assert(IsForwardBlock<bf16, 64, false>() && IsForwardBlock<bf16, 64, true>());
static_assert(IsForwardBlock<bf16, 128, false>() && IsForwardBlock<bf16, 128, true>());
static_assert(IsForwardBlock<bf16, 256, false>() && IsForwardBlock<bf16, 256, true>());
static_assert(IsForwardBlock<float, 64, false>() && IsForwardBlock<float, 64, true>());
static_assert(IsForwardBlock<float, 128, false>() && IsForwardBlock<float, 128, true>());
static_assert(IsForwardBlock<float, 256, false>());

void CheckWorkspace(const DeltaRuleArgs& args, size_t bytes) {
  HL_CHECK(args.num_chunks == 0 || args.workspace != nullptr, "delta rule on CUDA: needs ", bytes,
           " bytes of workspace, got none. Pass a workspace.");
}

}  // namespace

void LaunchPrepare(const DeltaRuleArgs& args, const Workspace& workspace, cudaStream_t stream) {
  if (NumChunkHeads(args) == 0) return;
  PrepareParams params;
  params.args = args;
  params.workspace = workspace;
  WithInstance(args.q.dtype, args.head_dim_k, [&](auto element, auto keys) {
    using T = decltype(element);
    constexpr int kK = decltype(keys)::value;
    if constexpr (std::is_same_v<T, bf16>) {
      if (workspace.operand != nullptr)
        return LaunchPrepareOf<PrepareTokensConfig<kK>>(params, stream);
    }
    if (args.decay != DeltaDecay::kPerTokenChannel) {
      LaunchPrepareOf<PrepareConfig<T, kK, false>>(params, stream);
    } else if constexpr (std::is_same_v<T, bf16> || kK <= kMaxChannelKeysF32) {
      LaunchPrepareOf<PrepareConfig<T, kK, true>>(params, stream);
    }
  });
}

void LaunchScan(const ScanParams& params, cudaStream_t stream) {
  const DeltaRuleArgs& args = params.args;
  if (CanUseWgmma(args)) return LaunchWarpgroupScan(params, /*outputs=*/false, stream);
  const int64_t blocks =
      NumScanParts(params) * args.num_value_heads * (PaddedValues(params.values) / kValueSlice);
  if (blocks == 0) return;
  WithInstance(args.q.dtype, args.head_dim_k, [&](auto element, auto keys) {
    using Config = ScanConfig<decltype(element), decltype(keys)::value>;
    constexpr const char* kName = "delta rule, scan of states";
    Launch({dim3(GridBlocks(blocks, kName)), dim3(Config::kThreads), Config::kSmemBytes, kName},
           stream, ScanKernel<Config>, params);
  });
}

void LaunchRecomputeStates(const DeltaRuleArgs& args, const Workspace& workspace,
                           cudaStream_t stream) {
  ScanParams params;
  params.args = args;
  params.workspace = workspace;
  params.values = args.head_dim_v;
  params.from_checkpoints = true;
  params.checkpoints = static_cast<float*>(args.checkpoints);
  LaunchScan(params, stream);
}

void LaunchOutput(const DeltaRuleArgs& args, const Workspace& workspace, cudaStream_t stream) {
  if (NumChunkHeads(args) == 0) return;
  WithInstance(args.q.dtype, args.head_dim_k, [&](auto element, auto keys) {
    using Config = OutputConfig<decltype(element), decltype(keys)::value>;
    constexpr const char* kName = "delta rule, outputs";
    const int slices = (PaddedValues(args.head_dim_v) + Config::kValues - 1) / Config::kValues;
    Launch({dim3(GridBlocks(NumChunkHeads(args) * slices, kName)), dim3(Config::kThreads),
            Config::kSmemBytes, kName},
           stream, OutputKernel<Config>, args, workspace);
  });
}

}  // namespace delta

namespace cuda {

void DeltaRuleForward(const DeltaRuleArgs& args, cudaStream_t stream) {
  CheckDeltaForward(args);
  delta::CheckSupported(args);
  delta::CheckWorkspace(args, DeltaRuleForwardBytes(args));
  delta::ScanParams scan;
  scan.args = args;
  scan.workspace = delta::DivideWorkspace(args, delta::Purpose::kForward, args.workspace);
  scan.values = args.head_dim_v;
  scan.initial_state = static_cast<const float*>(args.initial_state);
  scan.final_state = static_cast<float*>(args.final_state);
  scan.checkpoints = static_cast<float*>(args.checkpoints);
  delta::LaunchPrepare(args, scan.workspace, stream);
  if (delta::CanScanTokensByWgmma(args)) return delta::LaunchTokenScan(scan, stream);
  if (delta::CanUseWgmma(args)) return delta::LaunchWarpgroupScan(scan, /*outputs=*/true, stream);
  delta::LaunchScan(scan, stream);
  delta::LaunchOutput(args, scan.workspace, stream);
}

void DeltaRuleSummarise(const DeltaSegmentArgs& segment, cudaStream_t stream) {
  CheckDeltaSegment(segment, /*reverse=*/false);
  const DeltaRuleArgs& args = segment.forward;
  delta::CheckSupported(args);
  delta::CheckWorkspace(args, DeltaRuleSummaryBytes(args));
  delta::ScanParams scan;
  scan.args = args;
  scan.workspace = delta::DivideWorkspace(args, delta::Purpose::kSummarise, args.workspace);
  if (segment.state == nullptr) scan.workspace.u = nullptr;
  delta::LaunchPrepare(args, scan.workspace, stream);
  if (segment.state != nullptr) {
    scan.values = args.head_dim_v;
    scan.final_state = static_cast<float*>(segment.state);
    delta::LaunchScan(scan, stream);
  }
  if (segment.transition == nullptr) return;
  scan.workspace.u = nullptr;
  scan.values = args.head_dim_k;
  scan.from_identity = true;
  scan.final_state = static_cast<float*>(segment.transition);
  delta::LaunchScan(scan, stream);
}

void DeltaRuleStep(const DeltaRuleStepArgs& args, cudaStream_t stream) {
  CheckDeltaStep(args);
  HL_CHECK(args.q.dtype == DType::kBF16 || args.q.dtype == DType::kF32,
           "delta rule step on CUDA: q is ", Name(args.q.dtype), ". Use bf16 or fp32.");
  const int slices = (args.head_dim_v + delta::kStepColumns - 1) / delta::kStepColumns;
  const int64_t blocks = int64_t{1} * args.batch * args.num_value_heads * slices;
  if (blocks == 0) return;
  delta::WithInstance(args.q.dtype, args.head_dim_k, [&](auto element, auto keys) {
    constexpr const char* kName = "delta rule step";
    Launch({dim3(GridBlocks(blocks, kName)), dim3(delta::kStepThreads), 0, kName}, stream,
           delta::StepKernel<decltype(element), decltype(keys)::value>, args);
  });
}

}  // namespace cuda
}  // namespace halflife::kernels
