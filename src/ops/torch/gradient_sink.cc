#include "ops/torch/gradient_sink.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace halflife::ops {
namespace {

// Runs after each accumulation of a gradient into the leaf, on the thread of the backward.
class SinkHook : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit SinkHook(std::unique_ptr<GradientSink> sink) : sink_(std::move(sink)) {}

  void operator()(const torch::autograd::Variable& leaf) override {
    const c10::AutoGradMode no_grad(false);
    at::Tensor& grad = leaf.mutable_grad();
    if (!grad.defined()) return;  // a backward function has written to the sink directly
    sink_->Next().Take(grad);
    grad.reset();
    sink_->Written();
  }
  GradientSink* sink() const { return sink_.get(); }

 private:
  std::unique_ptr<GradientSink> sink_;
};

}  // namespace

void GradientSink::Target::Take(const at::Tensor& gradient) const {
  added ? sum.add_(gradient) : sum.copy_(gradient);
}

void SetGradientSink(const at::Tensor& leaf, std::unique_ptr<GradientSink> sink) {
  std::unique_ptr<SinkHook> hook;
  if (sink != nullptr) hook = std::make_unique<SinkHook>(std::move(sink));
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::move(hook));
}

GradientSink* GradientSinkOf(const at::Tensor& x) {
  if (!x.defined() || !x.requires_grad() || !x.is_leaf() || c10::GradMode::is_enabled())
    return nullptr;
  const auto* const hook =
      dynamic_cast<const SinkHook*>(torch::autograd::impl::post_acc_grad_hooks(x).get());
  return hook == nullptr ? nullptr : hook->sink();
}

GradientBuffer::GradientBuffer(const at::Tensor& input, bool wanted, at::ScalarType sum_dtype)
    : sink_(wanted && sum_dtype == at::kFloat ? GradientSinkOf(input) : nullptr),
      dtype_(input.scalar_type()) {
  if (sink_ != nullptr) {
    target_ = sink_->Next();
  } else {
    target_.sum = at::empty(input.sizes(), input.options().dtype(sum_dtype).requires_grad(false));
  }
}

at::Tensor GradientBuffer::Finish() {
  if (sink_ == nullptr) return target_.sum.to(dtype_);
  sink_->Written();
  return {};
}

}  // namespace halflife::ops
