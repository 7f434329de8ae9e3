#include "train/step/parameter_arena.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ckpt/state.h"
#include "core/error.h"
#include "ops/torch/tensor_views.h"
#include "train/config/plan.h"
#include "train/step/parameter_groups.h"

namespace halflife::train {
namespace {

// The number of initial values that are drawn at a time, which bounds the memory of the host.
constexpr int64_t kDrawnElements = 1 << 20;

// Returns a zeroed array. On the CPU it is aligned to 4 KiB, because the bits of a BLAS call may
// depend on alignment, and a resumed run must repeat them.
at::Tensor ZeroedFlat(int64_t count, at::ScalarType dtype, at::Device device) {
  if (!device.is_cpu()) return at::zeros({count}, at::TensorOptions().dtype(dtype).device(device));
  const size_t element = dtype == at::kFloat ? 4 : 2;
  const size_t bytes = (std::max<size_t>(count * element, 1) + 4095) / 4096 * 4096;
  void* memory = std::aligned_alloc(4096, bytes);
  HL_CHECK_AS(ExitCode::kEnvironment, memory != nullptr, "cannot allocate ", bytes,
              " bytes for the parameter arena; use a smaller model or a machine with more memory");
  std::memset(memory, 0, bytes);
  return at::from_blob(
      memory, {count}, [](void* data) { std::free(data); }, at::TensorOptions().dtype(dtype));
}

}  // namespace

ParameterArena::Config ParameterArena::Of(const RunConfig& config,
                                          const model::LanguageModel& model, at::Device device,
                                          int rank, int world_size) {
  const ParallelConfig& parallel = config.parallel;
  return {
      .device = device,
      .compute_dtype = config.train.computes_in_bf16() ? at::kBFloat16 : at::kFloat,
      .layout = {.first_bucket_bytes = parallel.first_bucket_bytes,
                 .bucket_bytes =
                     parallel.bucket_bytes_of(world_size, 4 * model.parameters().num_elements()),
                 .num_slices = world_size,
                 .units = parallel.zero_stage == 3 ? UnitsOf(model) : std::vector<int>(),
                 .frozen = config.lora.rank > 0  // Its groups keep gradients.
                               ? std::vector<bool>()
                               : FrozenParameters(config.optimizer, model.parameters().specs())},
      .zero_stage = parallel.zero_stage,
      .slice = MeshOf(config, rank, world_size).slice(),
      .num_shards = parallel.shard_ranks(world_size),
      .states = config.optimizer.state_names(),
      .num_units = static_cast<int>(config.model.num_layers) + 2,
      .prefetch = parallel.num_prefetched()};
}

// Decides which parts of the arrays this rank holds.
void ParameterArena::DivideArrays() {
  const bool in_bf16 = config_.compute_dtype != at::kFloat;
  copied_end_ = in_bf16 ? layout_.num_compute_elements() : 0;
  if (!sliced()) return;
  const int num_shards = config_.num_shards == 0 ? layout_.num_slices() : config_.num_shards;
  const dist::Division held = {.parts = num_shards,
                               .part = config_.slice / (layout_.num_slices() / num_shards)};
  states_division_ = {.end = layout_.num_elements(),
                      .parts = layout_.num_slices(),
                      .part = config_.slice,
                      .trained = true};
  if (config_.zero_stage >= 2) {
    grads_division_ = held;
    grads_division_.end = layout_.num_elements();
    grads_division_.trained = true;
  }
  if (units_) {
    compute_division_ = held;
    compute_division_.end = units_->end();
    copied_end_ = std::max(copied_end_, units_->end());
  }
  main_sliced_end_ = copied_end_;
}

ParameterArena::ParameterArena(model::ParameterSet& parameters, const Config& config)
    : config_(config),
      parameters_(parameters),
      layout_(parameters.specs(), config.layout),
      device_(config.device) {
  const std::vector<int>& units = config.layout.units;
  if (config.zero_stage == 3) {
    HL_CHECK(!units.empty(), "zero_stage 3 needs the units of the parameters");
    units_ = std::make_unique<ParameterUnits>(layout_,
                                              ParameterUnits::Config{.device = device_,
                                                                     .dtype = config.compute_dtype,
                                                                     .units = units,
                                                                     .num_units = config.num_units,
                                                                     .prefetch = config.prefetch});
  }
  updated_ = sliced() ? layout_.SliceFragments(config.slice) : layout_.AllFragments();
  std::ranges::stable_sort(updated_, {}, &dist::Fragment::param);
  DivideArrays();
  const auto zeros = [&](int64_t count) { return ZeroedFlat(count, at::kFloat, device_); };
  main_ = zeros(layout_.num_held(main_sliced_end_));
  grads_ = zeros(layout_.num_held(grads_division_));
  for (size_t i = 0; i < config.states.size(); ++i)
    states_.push_back(zeros(layout_.num_held(states_division_)));
  const int64_t computed =
      copied_end_ - compute_division_.end + compute_division_.end / compute_division_.parts;
  const bool in_main =
      config.compute_dtype == at::kFloat && compute_division_.parts == layout_.num_slices();
  if (copied_end_ > 0 && in_main) {
    compute_ = main_.narrow(0, 0, computed);
  } else if (copied_end_ > 0) {
    compute_ = copy_ = ZeroedFlat(computed, config.compute_dtype, device_);
  }
  for (int i = 0; i < parameters_.size(); ++i) {
    at::Tensor view = in_unit(i) ? units_->View(i) : ComputedWith(i).detach();
    view.set_requires_grad(!layout_.frozen(i));
    parameters_.Bind(i, std::move(view));
  }
}

at::Tensor& ParameterArena::state(std::string_view name) {
  const auto found = std::ranges::find(config_.states, name);
  HL_CHECK(found != config_.states.end(), "the arena has no state array '", name, "'");
  return states_[found - config_.states.begin()];
}

std::vector<ParameterArena::StoredArray> ParameterArena::stored_arrays() {
  std::vector<StoredArray> arrays = {{.name = ckpt::kMainArray,
                                      .tensor = &main_,
                                      .sliced_end = main_sliced_end_,
                                      .trained = false}};
  for (size_t i = 0; i < states_.size(); ++i)
    arrays.push_back({.name = ckpt::kOptimizerPrefix + config_.states[i],
                      .tensor = &states_[i],
                      .sliced_end = states_division_.end,
                      .trained = true});
  return arrays;
}

bool ParameterArena::has_copy(int param) const {
  return compute_.defined() && layout_.offset(param) < copied_end_;
}

// Not for parameters of units.
at::Tensor ParameterArena::ComputedWith(int param) const {
  const dist::ParamSpec& spec = layout_.specs()[param];
  const int64_t offset = layout_.offset(param);
  // Parameters without a copy lie after the sliced part.
  const int64_t place = has_copy(param)
                            ? layout_.PlaceOf(offset, compute_division_)
                            : layout_.PlaceOf({.arena_begin = offset}, main_sliced_end_);
  return (has_copy(param) ? compute_ : main_).narrow(0, place, spec.count()).view(spec.shape);
}

at::Tensor ParameterArena::View(const at::Tensor& flat, int param) const {
  const dist::ParamSpec& spec = layout_.specs()[param];
  return flat.narrow(0, layout_.offset(param), spec.count()).view(spec.shape);
}

at::Tensor ParameterArena::GradientView(const at::Tensor& flat, int param) const {
  if (layout_.frozen(param)) return {};
  const dist::ParamSpec& spec = layout_.specs()[param];
  const int64_t place = layout_.PlaceOf(layout_.offset(param), {.trained = true});
  return flat.narrow(0, place, spec.count()).view(spec.shape);
}

dist::UnitGather::Parts ParameterArena::UnitParts(dist::Communicator& shard,
                                                  dist::ParameterGather& gather) {
  const auto held = [this](int bucket) {
    const auto range =
        layout_.SliceOf(layout_.buckets()[bucket], compute_division_.part, compute_division_.parts);
    return ops::RefOf(compute_).Slice(range.slice_begin, range.count);
  };
  return {.memory = *units_, .held = held, .shard = shard, .gather = gather};
}

void ParameterArena::CopyToCompute(const dist::Fragment& part, const at::Tensor& values) {
  if (!copy_.defined() || part.arena_begin >= copied_end_) return;
  copy_.narrow(0, layout_.PlaceOf(part.arena_begin, compute_division_), part.end - part.begin)
      .copy_(values);
}

void ParameterArena::SetPart(const dist::Fragment& part, const at::Tensor& values) {
  main_.narrow(0, layout_.PlaceOf(part, main_sliced_end_), part.end - part.begin).copy_(values);
  CopyToCompute(part, values);
}

void ParameterArena::SetWeights(int param, const at::Tensor& values) {
  if (!in_unit(param)) ComputedWith(param).copy_(values);
  if (!has_copy(param)) return;  // the line above has set main
  const at::Tensor flat = values.contiguous().view({-1});
  for (const dist::Fragment& part : updated_)
    if (part.param == param) SetPart(part, flat.narrow(0, part.begin, part.end - part.begin));
}

at::Tensor ParameterArena::InitialWeights(int param) const {
  at::Tensor values = at::empty(layout_.specs()[param].shape, at::kFloat);
  parameters_.Initialise(param, seed_, values.mutable_data_ptr<float>());
  return values;
}

void ParameterArena::Initialise(uint64_t seed) {
  seed_ = seed;
  const at::Tensor block = at::empty({kDrawnElements}, at::kFloat);
  for (const dist::Fragment& part : updated_) {
    for (int64_t begin = part.begin; begin < part.end; begin += kDrawnElements) {
      const int64_t end = std::min(begin + kDrawnElements, part.end), from = begin - part.begin;
      parameters_.InitialisePart(part.param, seed, {begin, end}, block.mutable_data_ptr<float>());
      SetPart({.param = part.param,
               .begin = begin,
               .end = end,
               .arena_begin = part.arena_begin + from,
               .slice_begin = part.slice_begin + from},
              block.narrow(0, 0, end - begin));
    }
  }
}

void ParameterArena::CopyMainTo(std::string_view state_name) {
  at::Tensor& array = state(state_name);
  for (const dist::Fragment& part : updated_) {
    if (layout_.frozen(part.param)) continue;
    const int64_t count = part.end - part.begin;
    array.narrow(0, layout_.PlaceOf(part.arena_begin, states_division_), count)
        .copy_(main_.narrow(0, layout_.PlaceOf(part, main_sliced_end_), count));
  }
}

void ParameterArena::RefreshComputeCopy() {
  for (const dist::Fragment& part : updated_)
    CopyToCompute(part,
                  main_.narrow(0, layout_.PlaceOf(part, main_sliced_end_), part.end - part.begin));
}

std::vector<dist::GatheredArray> ParameterArena::ComputedArrays() const {
  const int64_t all = layout_.num_elements(), of_units = compute_division_.end;
  const TensorRef main = ops::RefOf(main_);
  std::vector<dist::GatheredArray> arrays;
  if (compute_.defined()) {
    const TensorRef compute = ops::RefOf(compute_);
    const int64_t held = of_units / compute_division_.parts;
    if (of_units > 0)
      arrays.push_back({.begin = 0, .end = of_units, .data = compute.Slice(0, held), .held = true});
    if (copied_end_ > of_units)
      arrays.push_back({.begin = of_units,
                        .end = copied_end_,
                        .data = compute.Slice(held, copied_end_ - of_units)});
  }
  if (all > copied_end_)
    arrays.push_back({.begin = copied_end_,
                      .end = all,
                      .data = main.Slice(main.count - (all - copied_end_), all - copied_end_)});
  return arrays;
}

}  // namespace halflife::train
