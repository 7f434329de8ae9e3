#include "train/step/arena_optimizer.h"

#include <ATen/TensorOperators.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "ops/torch/host_transfer.h"
#include "ops/torch/host_waits.h"
#include "ops/torch/tensor_views.h"

namespace halflife::train {
namespace {

std::vector<WholeMatrix> MatricesOf(const ParameterArena& arena,
                                    const std::vector<ParameterRule>& rules,
                                    const optim::MatrixRule& rule) {
  std::vector<WholeMatrix> matrices = FindMatrices(arena.layout(), rule.per_head());
  std::erase_if(matrices, [&](const WholeMatrix& matrix) { return rules[matrix.param].frozen; });
  return matrices;
}

}  // namespace

MatrixExchange MakeMatrixExchange(ParameterArena& arena, const std::vector<ParameterRule>& rules,
                                  const optim::MatrixRule& rule, dist::Communicator* ranks,
                                  Device::Kind kind) {
  std::vector<WholeMatrix> matrices = MatricesOf(arena, rules, rule);
  std::vector<double> costs;
  for (const WholeMatrix& matrix : matrices)
    costs.push_back(rule.TransformFlops(matrix.rows, matrix.columns));
  // Without slices, each rank updates everything and needs no other.
  std::vector<std::vector<HeldRange>> held;
  if (!arena.sliced()) {
    held.push_back(CutAtMatrices(arena.updated_fragments(), matrices).of_matrices);
    ranks = nullptr;
  } else {
    HL_CHECK(ranks != nullptr && ranks->size() == arena.layout().num_slices(), "an arena of ",
             arena.layout().num_slices(), " slices needs as many ranks");
    for (int slice = 0; slice < ranks->size(); ++slice)
      held.push_back(CutAtMatrices(arena.layout().SliceFragments(slice), matrices).of_matrices);
  }
  std::vector<ExchangeBatch> batches =
      PlanExchange(matrices, held, costs, {.rank = ranks == nullptr ? 0 : ranks->rank()});
  const at::Device device = arena.grads().device();
  const bool in_bf16 = rule.value_dtype(kind) == DType::kBF16;
  return {std::move(matrices), std::move(batches), ranks,
          at::TensorOptions().device(device).dtype(in_bf16 ? at::kBFloat16 : at::kFloat)};
}

ArenaOptimizer::ArenaOptimizer(ParameterArena& arena, const OptimizerConfig& config,
                               dist::Communicator* ranks)
    : arena_(arena),
      rules_(RulesOf(config, arena.layout().specs())),
      ema_decay_(config.ema_decay),
      optimizer_(config.algorithm.Make(config.adamw)) {
  const optim::MatrixRule* const rule = optimizer_->matrix_rule();
  std::vector<dist::Fragment> fragments = arena.updated_fragments();
  if (rule != nullptr) {
    exchange_.emplace(
        MakeMatrixExchange(arena, rules_, *rule, ranks, ops::RefOf(arena.main()).device.kind));
    fragments = CutAtMatrices(fragments, MatricesOf(arena, rules_, *rule)).rest;
  }
  std::vector<optim::Range> ranges;
  for (const dist::Fragment& part : fragments)
    if (!rules_[part.param].frozen) ranges.push_back(RangeOf(part));
  for (const std::string& name : optimizer_->state_names()) states_.push_back(arena.state(name));
  table_ = ops::UploadTable(optimizer_->Prepare(ranges), arena_.main().device());
}

optim::Range ArenaOptimizer::RangeOf(const dist::Fragment& part) const {
  const dist::ParameterLayout& layout = arena_.layout();
  const dist::ParamSpec& spec = layout.specs()[part.param];
  return {
      .parameter = spec.name,
      .shape = spec.shape,
      .first = part.begin,
      .begin = part.arena_begin,
      .end = part.arena_begin + (part.end - part.begin),
      .weight_decay = rules_[part.param].weight_decay,
      .lr_scale = rules_[part.param].lr_scale,
      .has_copy = arena_.optimizer_writes_copy() && spec.region == dist::Region::kCompute,
      .main_shift = layout.PlaceOf(part, arena_.main_sliced_end()) - part.arena_begin,
      .grads_shift = layout.PlaceOf(part.arena_begin, arena_.grads_division()) - part.arena_begin,
      .state_shift = layout.PlaceOf(part.arena_begin, arena_.states_division()) - part.arena_begin};
}

void ArenaOptimizer::Update(double lr, double grad_factor, uint64_t num_updates) {
  ops::NoteKernel();
  const c10::DeviceGuard guard(arena_.main().device());
  const at::Tensor copy = arena_.optimizer_writes_copy() ? arena_.compute_copy() : at::Tensor();
  const Device device = ops::RefOf(arena_.main()).device;
  std::vector<float*> states;
  for (const at::Tensor& state : states_) states.push_back(state.mutable_data_ptr<float>());
  const optim::UpdateArgs args = {
      .main = arena_.main().mutable_data_ptr<float>(),
      .grads = arena_.grads().const_data_ptr<float>(),
      .states = std::move(states),
      .copy = copy.defined() ? static_cast<uint16_t*>(copy.mutable_data_ptr()) : nullptr,
      .table = table_.const_data_ptr(),
      .lr = lr,
      .grad_factor = grad_factor,
      .num_updates = num_updates,
      .device = device,
      .stream = device.is_cuda() ? ops::CurrentStream(device) : nullptr};
  optimizer_->Update(args);
  if (exchange_) UpdateMatrices(args);
  if (!arena_.optimizer_writes_copy()) arena_.RefreshComputeCopy();
  if (ema_decay_ > 0) UpdateAverage(num_updates);
}

double AverageDecay(double ema_decay, uint64_t num_updates) {
  const auto t = static_cast<double>(num_updates);
  return std::min(ema_decay, (1 + t) / (10 + t));
}

// Each operation rounds once, so slices change no bit. The padding of buckets is zero and stays
// zero. HostSlices::WriteFrozenAverage updates the average of frozen parameters.
void ArenaOptimizer::UpdateAverage(uint64_t num_updates) {
  // In fp32, so that both factors add to 1 there.
  const auto decay = static_cast<float>(AverageDecay(ema_decay_, num_updates));
  const dist::ParameterLayout& layout = arena_.layout();
  at::Tensor& average = arena_.state(OptimizerConfig::kAverage);
  for (const dist::Bucket& bucket : layout.buckets()) {
    if (bucket.frozen) continue;
    dist::ParameterLayout::SliceRange range = {.arena_begin = bucket.begin,
                                               .count = bucket.end - bucket.begin};
    if (arena_.sliced()) range = layout.SliceOf(bucket, arena_.slice());
    const int64_t in_main =
        layout.PlaceOf({.arena_begin = range.arena_begin, .slice_begin = range.slice_begin},
                       arena_.main_sliced_end());
    average.narrow(0, layout.PlaceOf(range.arena_begin, arena_.states_division()), range.count)
        .mul_(decay)
        .add_(arena_.main().narrow(0, in_main, range.count) * (1.0f - decay));
  }
}

void ArenaOptimizer::UpdateMatrices(const optim::UpdateArgs& args) {
  const optim::MatrixRule& rule = *optimizer_->matrix_rule();
  exchange_->Run({.stage =
                      [&](const HeldRange& range, const at::Tensor& out) {
                        rule.Stage(args, RangeOf(range.part), ops::RefOf(out));
                      },
                  .transform =
                      [&](const WholeMatrix& matrix, const at::Tensor& values) {
                        rule.Transform(ops::RefOf(values), matrix.rows, matrix.columns);
                      },
                  .apply =
                      [&](const HeldRange& range, const at::Tensor& in) {
                        rule.Apply(args, RangeOf(range.part), ops::RefOf(in));
                      }});
}

}  // namespace halflife::train
