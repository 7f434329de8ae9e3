#include "train/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

namespace halflife::train {

AdamW::AdamW(ParameterArena& arena, const AdamWConfig& config)
    : arena_(arena),
      config_(config),
      step_(at::zeros({}, arena.main().options())),
      grad_divisor_(at::zeros({}, arena.main().options())) {
  groups_[1].weight_decay = config_.weight_decay;
  const auto& specs = arena_.layout().specs();
  for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
    if (specs[i].count() == 0) continue;
    Group& group = groups_[specs[i].weight_decay ? 1 : 0];
    group.main.push_back(arena_.View(arena_.main(), i));
    group.grads.push_back(arena_.View(arena_.grads(), i));
    group.m.push_back(arena_.View(arena_.adam_m(), i));
    group.v.push_back(arena_.View(arena_.adam_v(), i));
    group.steps.push_back(step_);
  }
}

void AdamW::Update(double lr, double grad_factor, uint64_t num_updates) {
  const c10::AutoGradMode no_grad(false);
  step_.fill_(static_cast<double>(num_updates));
  grad_divisor_.fill_(1.0 / grad_factor);  // the kernel divides
  for (const Group& group : groups_) {
    if (group.main.empty()) continue;
    at::_fused_adamw_(group.main, group.grads, group.m, group.v, {}, group.steps, lr, config_.beta1,
                      config_.beta2, group.weight_decay, config_.eps, /*amsgrad=*/false,
                      /*maximize=*/false, grad_divisor_);
  }
  arena_.RefreshComputeCopy();
}

}  // namespace halflife::train
