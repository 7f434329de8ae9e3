#include "train/gradient_hooks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <c10/core/GradMode.h>

#include "core/error.h"

namespace halflife::train {

// One per parameter. Fires once per accumulation into the leaf, on the thread that runs backward
// (CPU).
class GradientHooks::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradientHooks& owner, int param) : owner_(owner), param_(param) {}
  void operator()(const torch::autograd::Variable& tensor) override {
    const c10::AutoGradMode no_grad(false);
    owner_.Adopt(param_, tensor.mutable_grad());
  }

 private:
  GradientHooks& owner_;
  int param_;
};

GradientHooks::GradientHooks(model::ParameterSet& parameters, ParameterArena& arena)
    : parameters_(parameters), arena_(arena), uses_(parameters.size(), 0) {
  for (int i = 0; i < parameters_.size(); ++i) {
    slots_.push_back(arena_.View(arena_.grads(), i));
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_.tensor(i),
                                                   std::make_unique<Hook>(*this, i));
  }
}

GradientHooks::~GradientHooks() {
  for (int i = 0; i < parameters_.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_.tensor(i), nullptr);
  }
}

void GradientHooks::BeginMicroBatch(bool first, dist::GradientReducer* reducer) {
  first_ = first;
  reducer_ = reducer;
  std::fill(uses_.begin(), uses_.end(), 0);
}

void GradientHooks::Adopt(int param, at::Tensor& grad) {
  const dist::ParamSpec& spec = parameters_.specs()[param];
  HL_CHECK(uses_[param] < spec.grad_uses, "parameter ", spec.name, " received its gradient ",
           uses_[param] + 1, " times in one backward; its grad_uses is ", spec.grad_uses);
  if (first_ && uses_[param] == 0) {
    slots_[param].copy_(grad);
  } else {
    slots_[param].add_(grad);
  }
  grad.reset();
  if (++uses_[param] == spec.grad_uses && reducer_ != nullptr) reducer_->MarkReady(param);
}

void GradientHooks::EndMicroBatch() {
  std::string missing;
  for (int i = 0; i < parameters_.size(); ++i) {
    if (uses_[i] < parameters_.specs()[i].grad_uses) missing += " " + parameters_.specs()[i].name;
  }
  HL_CHECK(missing.empty(), "backward gave no gradient to:", missing);
  reducer_ = nullptr;
}

}  // namespace halflife::train
