#include "ops/decay_attention/decay_attention_internal.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#ifdef HALFLIFE_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

namespace halflife::ops {

bool ShouldUseWgmma(int compute_capability_major, bool built_for_sm_90a, const char* setting) {
  constexpr int kHopper = 9;
  const bool wanted = setting == nullptr || std::string_view(setting) != "0";
  return compute_capability_major == kHopper && built_for_sm_90a && wanted;
}

#ifdef HALFLIFE_WITH_CUDA
kernels::DeviceLimits LimitsOfGpu(int index) {
#ifdef HALFLIFE_BUILT_FOR_SM_90A
  constexpr bool kBuilt = true;
#else
  constexpr bool kBuilt = false;
#endif
  static const char* const setting = std::getenv("HALFLIFE_WARPGROUPS");
  const cudaDeviceProp* device =
      at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(index));
  return {.is_cuda = true,
          .num_sms = device->multiProcessorCount,
          .shared_memory_bytes = static_cast<int64_t>(device->sharedMemPerBlockOptin),
          .warpgroups = ShouldUseWgmma(device->major, kBuilt, setting)};
}
#endif

namespace binding {
namespace {

constexpr const char* kKernel = "decay attention";

}  // namespace

DType ToDType(const at::Tensor& x) { return ops::ToDType(kKernel, x); }
kernels::TensorView ViewOf(const at::Tensor& x) { return ops::ViewOf(kKernel, x); }
kernels::TensorView TokenView(const at::Tensor& x) { return TokenViewOf(kKernel, x); }

at::Tensor DecayRows(const at::Tensor& x, bool constant) {
  return constant ? x.contiguous() : Rows(x);
}

int64_t NumDecayHeads(const at::Tensor& log_decay) {
  if (!log_decay.defined()) return 1;
  return log_decay.size(log_decay.dim() <= 2 ? 0 : 2);
}

int64_t NumHeads(const DecayAttentionInputs& in) {
  return std::max({in.q.size(2), in.k.size(2), in.v.size(2), NumDecayHeads(in.log_decay)});
}

at::Tensor OfHeads(const at::Tensor& x, int64_t num_heads, int64_t dim) {
  const int64_t of_each = num_heads / x.size(dim);
  if (of_each == 1) return x;
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.begin() + dim + 1, of_each);
  return x.unsqueeze(dim + 1).expand(sizes).flatten(dim, dim + 1);
}

void CheckCounts(std::initializer_list<at::Tensor> tensors) { ops::CheckCounts(kKernel, tensors); }

void CheckStateFields(const char* what, const DecayState& state,
                      const DecayAttentionConfig& config) {
  HL_CHECK(!state.norm.defined() || config.norm == kernels::NormKind::kSumOfKeys, what, ".norm ",
           Describe(state.norm),
           ", but the config has no normalizer. Set norm = kSumOfKeys, or pass no such state.");
  HL_CHECK(!state.log_scale.defined() || config.allow_growth, what, ".log_scale ",
           Describe(state.log_scale),
           ", but the config does not allow growth. Set allow_growth, or pass no such state.");
}

void CheckStateShapes(const char* what, const DecayState& state, const at::Tensor& q,
                      at::IntArrayRef sizes) {
  const auto check = [&](const char* field, const at::Tensor& x, at::IntArrayRef want) {
    HL_CHECK(!x.defined() || FitsWith(q, x, want), "decay attention: ", what, field, " ",
             Describe(x), " does not fit states ", want, " on ", q.device().str());
  };
  check("", state.kv, sizes);
  check(".norm", state.norm, sizes.slice(0, 3));
}

[[noreturn]] void FailWithoutCuda() { ops::FailWithoutCuda(kKernel); }

}  // namespace binding
}  // namespace halflife::ops
