#include "ops/linear/float8_linear.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>
#include <c10/util/intrusive_ptr.h>

#include "core/error.h"
#include "kernels/rows/float8_rows_args.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

constexpr int64_t kFloat8RowsPerTask = 64;

// Stored with the weight's tensor.
struct Float8Mark : c10::BackendMeta {
  explicit Float8Mark(std::shared_ptr<Float8Weights> weights_in) : weights(std::move(weights_in)) {}
  std::shared_ptr<Float8Weights> weights;
};

Float8Matrix EmptyFloat8(int64_t rows, int64_t width, const at::Tensor& like) {
  const at::TensorOptions options = like.options().requires_grad(false);
  if (!like.is_cuda()) return {.values = at::empty({rows, width}, options), .factors = {}};
  return {.values = at::empty({rows, width}, options.dtype(at::kFloat8_e4m3fn)),
          .factors = at::empty({rows, 1}, options.dtype(at::kFloat))};
}

void ConvertRows(const at::Tensor& x_in, const Float8Matrix& to) {
  const at::Tensor x = x_in.stride(1) == 1 || x_in.size(1) == 1 ? x_in : x_in.contiguous();
  kernels::Float8Rows rows = {.num_rows = x.size(0),
                              .width = x.size(1),
                              .x = static_cast<const Bf16*>(x.const_data_ptr()),
                              .x_stride = x.stride(0)};
  if (to.factors.defined()) {
    rows.codes = MutableElements<uint8_t>(to.values);
    rows.factors = MutableElements<float>(to.factors);
  } else {
    rows.values = MutableElements<Bf16>(to.values);
  }
  const auto on_cpu = [&] {
    at::parallel_for(0, rows.num_rows, kFloat8RowsPerTask, [&](int64_t begin, int64_t end) {
      kernels::cpu::ConvertToFloat8(rows, begin, end);
    });
  };
#ifdef HL_EMULATE
  on_cpu();  // Tests call the emulated kernel by itself: tensors on the CPU have no codes.
#else
  RunOn(x, on_cpu, [&](auto stream) { kernels::cuda::ConvertToFloat8(rows, stream); });
#endif
}

void ConvertWeight(const at::Tensor& weight, bool transposed, const Float8Matrix& to) {
  ConvertRows(transposed ? weight.t().contiguous() : weight, to);
}

}  // namespace

Float8Matrix ToFloat8(const at::Tensor& x) {
  HL_CHECK(x.dim() == 2 && x.scalar_type() == at::kBFloat16, "FP8 rows of ", Describe(x),
           ". Use bf16 [rows, width].");
  const Float8Matrix result = EmptyFloat8(x.size(0), x.size(1), x);
  ConvertRows(x, result);
  return result;
}

Float8Matrix Float8Weights::Find(const at::Tensor& weight, bool transposed) {
  const int64_t rows = weight.size(transposed ? 1 : 0), width = weight.size(transposed ? 0 : 1);
  if (!keeps_) {
    const Float8Matrix result = EmptyFloat8(rows, width, weight);
    ConvertWeight(weight, transposed, result);
    return result;
  }
  const std::scoped_lock lock(mutex_);
  Copy& copy = copies_[{weight.const_data_ptr(), {weight.size(0), transposed}}];
  if (!copy.weight.defined()) {
    copy.weight = weight.detach();
    // detach() copies the mark, which refers to this object.
    SetFloat8Weights(copy.weight, nullptr);
    copy.matrix = EmptyFloat8(rows, width, weight);
  }
  if (std::exchange(copy.stale, false)) ConvertWeight(weight, transposed, copy.matrix);
  return copy.matrix;
}

void Float8Weights::Invalidate() {
  const std::scoped_lock lock(mutex_);
  for (auto& [key, copy] : copies_) copy.stale = true;
}

void Float8Weights::Refresh() {
  const std::scoped_lock lock(mutex_);
  for (auto& [key, copy] : copies_)
    if (std::exchange(copy.stale, false))
      ConvertWeight(copy.weight, key.second.second, copy.matrix);
}

void SetFloat8Weights(const at::Tensor& weight, std::shared_ptr<Float8Weights> weights) {
  c10::intrusive_ptr<c10::BackendMeta> mark;
  if (weights != nullptr) mark = c10::make_intrusive<Float8Mark>(std::move(weights));
  weight.unsafeGetTensorImpl()->set_backend_meta(std::move(mark));
}

Float8Weights* Float8WeightsFor(const at::Tensor& x, const at::Tensor& weight) {
  if (weight.scalar_type() != at::kBFloat16 || x.scalar_type() != at::kBFloat16 || x.numel() == 0)
    return nullptr;
  const auto* const mark = dynamic_cast<const Float8Mark*>(
      weight.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr().get());
  return mark == nullptr ? nullptr : mark->weights.get();
}

at::Tensor ScaledProduct(const Float8Matrix& a, const Float8Matrix& b, bool fast) {
  return at::_scaled_mm(a.values, b.values.t(), a.factors, b.factors.t(), /*bias=*/{},
                        /*scale_result=*/{}, at::kBFloat16, fast);
}

}  // namespace halflife::ops
