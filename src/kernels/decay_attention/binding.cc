#include "kernels/decay_attention/binding.h"

#include <limits>

namespace halflife::kernels::binding {

DType ToDType(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return DType::kF32;
    case at::kDouble:
      return DType::kF64;
    case at::kBFloat16:
      return DType::kBF16;
    default:
      HL_FAIL(ExitCode::kUsage, "decay attention of ", DTypeName(x.scalar_type()),
              "; fp32, bf16 or (on the CPU) fp64 would work");
  }
}

TensorView ViewOf(const at::Tensor& x) {
  const auto stride = [&](int64_t dim) { return dim < x.dim() ? x.stride(dim) : 0; };
  return {.data = x.data_ptr(),
          .stride_b = stride(0),
          .stride_t = stride(1),
          .stride_h = stride(2),
          .dtype = ToDType(x)};
}

at::Tensor Rows(const at::Tensor& x) {
  return !x.defined() || x.stride(-1) == 1 ? x : x.contiguous();
}
at::Tensor DecayRows(const at::Tensor& x, bool constant) {
  return constant ? x.contiguous() : Rows(x);
}

void CheckCounts(std::initializer_list<at::Tensor> tensors) {
  for (const at::Tensor& x : tensors)
    for (const int64_t size : x.sizes())
      HL_CHECK_AS(ExitCode::kUsage, size <= std::numeric_limits<int>::max(),
                  "decay attention of a tensor ", x.sizes(), "; dimensions up to ",
                  std::numeric_limits<int>::max(), " would work");
}

void CheckStateFields(const char* what, const DecayState& state,
                      const DecayAttentionConfig& config) {
  HL_CHECK(!state.norm.defined() || config.norm == NormKind::kSumOfKeys, what, ".norm ",
           Describe(state.norm),
           ", but the config has no normaliser; norm = kSumOfKeys, or no such state, would work");
  HL_CHECK(!state.log_scale.defined() || config.allow_growth, what, ".log_scale ",
           Describe(state.log_scale),
           ", but the config does not allow growth; allow_growth, or no such state, would work");
}

void CheckStateShapes(const char* what, const DecayState& state, const at::Tensor& q,
                      at::IntArrayRef sizes) {
  const auto check = [&](const char* field, const at::Tensor& x, at::IntArrayRef want) {
    HL_CHECK(!x.defined() || FitsBeside(q, x, want), "decay attention: ", what, field, " ",
             Describe(x), " of states ", want, " on ", q.device().str());
  };
  check("", state.kv, sizes);
  check(".norm", state.norm, sizes.slice(0, 3));
}

[[noreturn]] void FailWithoutCuda() {
  HL_FAIL(
      ExitCode::kEnvironment,
      "decay attention on a CUDA tensor, but this build has no CUDA; configure with nvcc at hand");
}

}  // namespace halflife::kernels::binding
