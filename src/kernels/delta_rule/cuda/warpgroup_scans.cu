// The launches of the wgmma scans (sm_90a).
#include <type_traits>

#include "kernels/delta_rule/cuda/token_scan.cuh"
#include "kernels/delta_rule/cuda/warpgroup_adjoint_scan.cuh"
#include "kernels/delta_rule/cuda/warpgroup_scan.cuh"

namespace halflife::kernels::delta {

namespace {

// Calls run(constant K') for the padded width of the keys.
template <typename Run>
void WithKeys(const DeltaRuleArgs& args, const Run& run) {
  const int keys = PaddedKeys(args.head_dim_k);
  if (keys == 64) return run(std::integral_constant<int, 64>());
  if (keys == 128) return run(std::integral_constant<int, 128>());
  run(std::integral_constant<int, 256>());
}

}  // namespace

void LaunchWarpgroupScan(const ScanParams& params, bool outputs, cudaStream_t stream) {
  WithKeys(params.args, [&](auto keys) {
    if (outputs) return LaunchWarpgroupScanAs<RingConfig<keys, true>>(params, stream);
    LaunchWarpgroupScanAs<RingConfig<keys, false>>(params, stream);
  });
}

void LaunchTokenScan(const ScanParams& params, cudaStream_t stream) {
  WithKeys(params.args,
           [&](auto keys) { LaunchTokenScanAs<TokenScanConfig<keys>>(params, stream); });
}

void LaunchWarpgroupAdjointScan(const AdjointScanParams& params, cudaStream_t stream) {
  WithKeys(params.args, [&](auto keys) {
    LaunchWarpgroupAdjointScanAs<RingConfig<keys, true>>(params, stream);
  });
}

}  // namespace halflife::kernels::delta
