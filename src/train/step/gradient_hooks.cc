#include "train/step/gradient_hooks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include "core/error.h"
#include "core/fault.h"
#include "core/pairwise_sum.h"

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

GradientHooks::GradientHooks(model::ParameterSet& parameters, ParameterArena& arena,
                             GradientShares* shares)
    : parameters_(parameters),
      arena_(arena),
      shares_(shares),
      uses_(parameters.size(), 0),
      pairwise_(arena.grads().is_cpu() && shares == nullptr) {
  for (int i = 0; i < parameters_.size(); ++i) {
    if (shares_ == nullptr) slots_.push_back(arena_.View(arena_.grads(), i));
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_.tensor(i),
                                                   std::make_unique<Hook>(*this, i));
  }
}

GradientHooks::~GradientHooks() {
  for (int i = 0; i < parameters_.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_.tensor(i), nullptr);
  }
}

void GradientHooks::BeginMicroBatch(int64_t index, int64_t count, dist::GradientReducer* reducer) {
  index_ = index;
  count_ = count;
  reducer_ = reducer;
  std::fill(uses_.begin(), uses_.end(), 0);
  if (shares_ != nullptr) shares_->BeginMicroBatch(index == 0);
  if (!pairwise_) return;
  while (static_cast<int>(levels_.size()) < NumLevels(count)) {
    const at::Tensor flat = at::empty_like(arena_.grads());
    std::vector<at::Tensor>& level = levels_.emplace_back();
    for (int i = 0; i < parameters_.size(); ++i) level.push_back(arena_.View(flat, i));
  }
}

// The slot holds this micro-batch's gradient. It is joined with the subtrees that it completes, and
// the result is put away for a later one, unless this is the last.
void GradientHooks::JoinEarlier(int param) {
  at::Tensor& slot = slots_[param];
  const bool last = index_ == count_ - 1;
  const int carries = NumCarries(index_);
  for (int level = 0; level < static_cast<int>(levels_.size()); ++level) {
    const bool full = (index_ >> level & 1) != 0;
    if (full && (last || level < carries)) slot.add_(levels_[level][param]);
  }
  if (!last) levels_[carries][param].copy_(slot);
}

void GradientHooks::Adopt(int param, at::Tensor& grad) {
  HL_FAULT_POINT("train.hook", ExitCode::kInternal);
  const dist::ParamSpec& spec = parameters_.specs()[param];
  HL_CHECK(uses_[param] < spec.grad_uses, "parameter ", spec.name, " received its gradient ",
           uses_[param] + 1, " times in one backward; its grad_uses is ", spec.grad_uses);
  if (shares_ != nullptr) {
    Share(param, grad);
    grad.reset();
    return;
  }
  if ((pairwise_ || index_ == 0) && uses_[param] == 0) {
    slots_[param].copy_(grad);
  } else {
    slots_[param].add_(grad);
  }
  grad.reset();
  if (++uses_[param] < spec.grad_uses) return;
  if (pairwise_) JoinEarlier(param);
  if (reducer_ != nullptr) reducer_->MarkReady(param);
}

void GradientHooks::Share(int param, const at::Tensor& grad) {
  at::Tensor slot = shares_->Slot(param);
  if (uses_[param] == 0) {
    slot.copy_(grad);
  } else {
    slot.add_(grad);
  }
  if (++uses_[param] == parameters_.specs()[param].grad_uses) shares_->MarkReady(param);
}

void GradientHooks::EndMicroBatch() {
  std::string missing;
  for (int i = 0; i < parameters_.size(); ++i) {
    if (uses_[i] < parameters_.specs()[i].grad_uses) missing += " " + parameters_.specs()[i].name;
  }
  HL_CHECK(missing.empty(), "backward gave no gradient to:", missing);
  reducer_ = nullptr;
  if (shares_ != nullptr) shares_->FinishMicroBatch();
}

}  // namespace halflife::train
