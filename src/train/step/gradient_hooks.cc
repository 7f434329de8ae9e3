#include "train/step/gradient_hooks.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <memory>
#include <string>

#include "core/error.h"
#include "core/fault.h"
#include "core/pairwise_sum.h"
#include "train/step/micro_batch_sum.h"

namespace halflife::train {

class GradientHooks::Sink : public ops::GradientSink {
 public:
  Sink(GradientHooks& owner, int param) : owner_(owner), param_(param) {}
  Place Next() override { return owner_.Next(param_); }
  void Written() override { owner_.Written(param_); }

 private:
  GradientHooks& owner_;
  int param_;
};

GradientHooks::GradientHooks(model::ParameterSet& parameters, ParameterArena& arena,
                             const Options& options)
    : parameters_(parameters),
      arena_(arena),
      options_(options),
      own_sums_(parameters.size()),
      uses_(parameters.size(), 0),
      pairwise_(arena.grads().is_cpu() && shares_ == nullptr && !options.in_order) {
  for (int i = 0; i < parameters_.size(); ++i) {
    if (shares_ == nullptr) {
      slots_.push_back(arena_.View(arena_.grads(), i));
      if (!pairwise_ && UsesOf(i) > 1) own_sums_[i] = at::empty_like(slots_[i]);
    }
    ops::SetGradientSink(parameters_.tensor(i), std::make_unique<Sink>(*this, i));
  }
}

GradientHooks::~GradientHooks() {
  for (int i = 0; i < parameters_.size(); ++i) ops::SetGradientSink(parameters_.tensor(i), nullptr);
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

void GradientHooks::BeginAdded() {
  HL_CHECK(!pairwise_ && shares_ == nullptr, "a micro-batch that is added to a sum by pairs");
  BeginMicroBatch(/*index=*/1, /*count=*/3, /*reducer=*/nullptr);
}

int GradientHooks::UsesOf(int param) const {
  return options_.recomputes ? parameters_.specs()[param].readers : 1;
}

ops::GradientSink::Place GradientHooks::Next(int param) {
  HL_FAULT_POINT("train.hook", ExitCode::kInternal);
  HL_CHECK(uses_[param] < UsesOf(param), "parameter ", parameters_.specs()[param].name,
           " received its gradient ", uses_[param] + 1, " times in one backward, not ",
           UsesOf(param));
  const bool again = uses_[param] > 0;
  if (shares_ != nullptr) return {.sum = shares_->Slot(param), .added = again};
  if (own_sums_[param].defined()) return {.sum = own_sums_[param], .added = again};
  return {.sum = slots_[param], .added = again || (!pairwise_ && index_ > 0)};
}

void GradientHooks::Written(int param) {
  if (++uses_[param] < UsesOf(param)) return;
  if (shares_ != nullptr) shares_->MarkReady(param);
  if (own_sums_[param].defined())
    ops::GradientSink::Place{.sum = slots_[param], .added = index_ > 0}.Take(own_sums_[param]);
  if (pairwise_)
    JoinPairwise(slots_[param], index_, count_, [&](int level) { return levels_[level][param]; });
  if (reducer_ != nullptr) reducer_->MarkReady(param);
}

void GradientHooks::EndMicroBatch() {
  std::string missing;
  for (int i = 0; i < parameters_.size(); ++i) {
    if (uses_[i] < UsesOf(i)) missing += " " + parameters_.specs()[i].name;
  }
  HL_CHECK(missing.empty(), "backward gave no gradient to:", missing);
  reducer_ = nullptr;
  if (shares_ != nullptr) shares_->FinishMicroBatch();
}

}  // namespace halflife::train
