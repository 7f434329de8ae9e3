#include "train/step/parameter_arena.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ckpt/state.h"
#include "core/error.h"
#include "ops/torch/tensor_ref.h"
#include "train/config/plan.h"

namespace halflife::train {
namespace {

// Aligned to 4 KiB on the CPU: the bits of a BLAS call may depend on alignment, and a resumed run
// must repeat them.
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

ParameterArena::Config ParameterArena::Of(const RunConfig& config, at::Device device, int rank,
                                          int world_size) {
  return {.device = device,
          .compute_dtype = config.train.precision == "bf16" ? at::kBFloat16 : at::kFloat,
          .layout = {.first_bucket_bytes = config.parallel.first_bucket_bytes,
                     .bucket_bytes = config.parallel.bucket_bytes,
                     .num_slices = world_size},
          .zero_stage = config.parallel.zero_stage,
          .slice = MeshOf(config, rank, world_size).SumGroup().rank,
          .states = config.optimizer.state_names()};
}

ParameterArena::ParameterArena(model::ParameterSet& parameters, const Config& config)
    : config_(config),
      parameters_(parameters),
      layout_(parameters.specs(), config.layout),
      device_(config.device) {
  const bool has_copies = config.compute_dtype != at::kFloat;
  updated_ = sliced() ? layout_.SliceFragments(config.slice) : layout_.AllFragments();
  std::ranges::stable_sort(updated_, {}, &dist::Fragment::param);
  if (sliced()) {
    main_sliced_end_ = has_copies ? layout_.num_compute_elements() : 0;
    states_sliced_end_ = layout_.num_elements();
    grads_sliced_end_ = config.zero_stage > 1 ? layout_.num_elements() : 0;
  }
  const auto zeros = [&](int64_t sliced_end) {
    return ZeroedFlat(layout_.num_held(sliced_end), at::kFloat, device_);
  };
  main_ = zeros(main_sliced_end_), grads_ = zeros(grads_sliced_end_);
  for (size_t i = 0; i < config.states.size(); ++i) states_.push_back(zeros(states_sliced_end_));
  if (has_copies)
    compute_ = ZeroedFlat(layout_.num_compute_elements(), config.compute_dtype, device_);
  for (int i = 0; i < parameters_.size(); ++i) {
    at::Tensor view = ComputedWith(i).detach();
    view.set_requires_grad(true);
    parameters_.Bind(i, std::move(view));
  }
}

at::Tensor& ParameterArena::state(std::string_view name) {
  const auto found = std::ranges::find(config_.states, name);
  HL_CHECK(found != config_.states.end(), "the arena has no state array '", name, "'");
  return states_[found - config_.states.begin()];
}

std::vector<ParameterArena::StoredArray> ParameterArena::stored_arrays() {
  std::vector<StoredArray> arrays = {
      {.name = ckpt::kMainArray, .tensor = &main_, .sliced_end = main_sliced_end_}};
  for (size_t i = 0; i < states_.size(); ++i)
    arrays.push_back({.name = ckpt::kOptimizerPrefix + config_.states[i],
                      .tensor = &states_[i],
                      .sliced_end = states_sliced_end_});
  return arrays;
}

bool ParameterArena::has_copy(int param) const {
  return compute_.defined() && layout_.specs()[param].region == dist::Region::kCompute;
}

at::Tensor ParameterArena::ComputedWith(int param) const {
  const dist::ParamSpec& spec = layout_.specs()[param];
  if (has_copy(param)) return View(compute_, param);
  // Parameters without a copy lie after the sliced part.
  const int64_t place = layout_.PlaceOf({.arena_begin = layout_.offset(param)}, main_sliced_end_);
  return main_.narrow(0, place, spec.count()).view(spec.shape);
}

at::Tensor ParameterArena::View(const at::Tensor& flat, int param) const {
  const dist::ParamSpec& spec = layout_.specs()[param];
  return flat.narrow(0, layout_.offset(param), spec.count()).view(spec.shape);
}

void ParameterArena::SetWeights(int param, const at::Tensor& values) {
  ComputedWith(param).copy_(values);
  if (!has_copy(param)) return;  // the line above has set main
  const at::Tensor flat = values.contiguous().view({-1});
  for (const dist::Fragment& part : updated_)
    if (part.param == param)
      main_.narrow(0, layout_.PlaceOf(part, main_sliced_end_), part.end - part.begin)
          .copy_(flat.narrow(0, part.begin, part.end - part.begin));
}

at::Tensor ParameterArena::InitialWeights(int param) const {
  at::Tensor values = at::empty(layout_.specs()[param].shape, at::kFloat);
  parameters_.Initialise(param, seed_, values.mutable_data_ptr<float>());
  return values;
}

void ParameterArena::Initialise(uint64_t seed) {
  seed_ = seed;
  for (int i = 0; i < parameters_.size(); ++i) SetWeights(i, InitialWeights(i));
}

void ParameterArena::RefreshComputeCopy() {
  if (!compute_.defined()) return;
  for (const dist::Fragment& part : updated_) {
    if (part.arena_begin >= compute_.numel()) continue;
    const int64_t count = part.end - part.begin;
    compute_.narrow(0, part.arena_begin, count)
        .copy_(main_.narrow(0, layout_.PlaceOf(part, main_sliced_end_), count));
  }
}

std::vector<dist::GatheredArray> ParameterArena::ComputedArrays() const {
  const int64_t all = layout_.num_elements(), of_copy = layout_.num_compute_elements();
  const TensorRef main = ops::RefOf(main_);
  if (!compute_.defined()) return {{.begin = 0, .end = all, .data = main}};
  return {{.begin = 0, .end = of_copy, .data = ops::RefOf(compute_)},
          {.begin = of_copy,
           .end = all,
           .data = main.Slice(main.count - (all - of_copy), all - of_copy)}};
}

}  // namespace halflife::train
