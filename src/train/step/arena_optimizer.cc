#include "train/step/arena_optimizer.h"

#include <c10/core/DeviceGuard.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "ops/torch/host_transfer.h"
#include "ops/torch/host_waits.h"
#include "ops/torch/tensor_ref.h"

namespace halflife::train {
namespace {

std::vector<optim::Range> RangesOf(const ParameterArena& arena, const OptimizerConfig& config) {
  std::vector<optim::Range> ranges;
  const dist::ParameterLayout& layout = arena.layout();
  for (const dist::Fragment& part : arena.updated_fragments()) {
    const dist::ParamSpec& spec = layout.specs()[part.param];
    const auto shift = [&](int64_t sliced_end) {
      return layout.PlaceOf(part, sliced_end) - part.arena_begin;
    };
    const int64_t grads_place = layout.PlaceOf(part.arena_begin, arena.grads_division());
    const bool decays = config.decay_all || spec.weight_decay;
    ranges.push_back(
        {.parameter = spec.name,
         .shape = spec.shape,
         .first = part.begin,
         .begin = part.arena_begin,
         .end = part.arena_begin + (part.end - part.begin),
         .weight_decay = decays ? static_cast<float>(config.adamw.weight_decay) : 0.0f,
         .has_copy = arena.optimizer_writes_copy() && spec.region == dist::Region::kCompute,
         .main_shift = shift(arena.main_sliced_end()),
         .grads_shift = grads_place - part.arena_begin,
         .state_shift = shift(arena.states_sliced_end())});
  }
  return ranges;
}

void RequireWholeMatrices(const std::vector<optim::Range>& ranges, const std::string& optimizer) {
  for (const optim::Range& range : ranges) {
    HL_CHECK_AS(ExitCode::kUsage, range.shape.size() < 2 || range.is_whole(),
                "optimizer.algorithm ", optimizer,
                " needs whole matrices, and parallel.zero_stage divides ", range.parameter,
                " among ranks. Use --set parallel.zero_stage=0 or another "
                "optimizer.");
  }
}

}  // namespace

ArenaOptimizer::ArenaOptimizer(ParameterArena& arena, const OptimizerConfig& config)
    : arena_(arena), optimizer_(config.algorithm.Make(config.adamw)) {
  const std::vector<optim::Range> ranges = RangesOf(arena, config);
  if (optimizer_->NeedsWholeMatrices()) RequireWholeMatrices(ranges, config.algorithm.name());
  for (const std::string& name : optimizer_->state_names()) states_.push_back(arena.state(name));
  table_ = ops::UploadTable(optimizer_->Prepare(ranges), arena_.main().device());
}

void ArenaOptimizer::Update(double lr, double grad_factor, uint64_t num_updates) {
  ops::NoteKernel();
  const c10::DeviceGuard guard(arena_.main().device());
  const at::Tensor copy = arena_.optimizer_writes_copy() ? arena_.compute_copy() : at::Tensor();
  const Device device = ops::RefOf(arena_.main()).device;
  std::vector<float*> states;
  for (const at::Tensor& state : states_) states.push_back(state.mutable_data_ptr<float>());
  optimizer_->Update(
      {.main = arena_.main().mutable_data_ptr<float>(),
       .grads = arena_.grads().const_data_ptr<float>(),
       .states = std::move(states),
       .copy = copy.defined() ? static_cast<uint16_t*>(copy.mutable_data_ptr()) : nullptr,
       .table = table_.const_data_ptr(),
       .lr = lr,
       .grad_factor = grad_factor,
       .num_updates = num_updates,
       .device = device,
       .stream = device.is_cuda() ? ops::CurrentStream(device) : nullptr});
  if (!arena_.optimizer_writes_copy()) arena_.RefreshComputeCopy();
}

}  // namespace halflife::train
