#include "train/lora/lora.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <regex>
#include <string>
#include <utility>

#include "ckpt/merged_weights.h"
#include "core/error.h"
#include "ops/torch/gradient_sink.h"

namespace halflife::train {
namespace {

std::regex TargetPattern(const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& error) {
    HL_FAIL(ExitCode::kUsage, "lora.targets: '", pattern,
            "' is not a regular expression: ", error.what(), ". Use for example '.*_proj.weight'.");
  }
}

bool IsMatrixOfLayer(const model::LanguageModel& model, int param) {
  const dist::ParamSpec& spec = model.parameters().specs()[param];
  const int64_t layer = model.LayerOf(param);
  return spec.shape.size() == 2 && spec.region == dist::Region::kCompute && spec.weight_decay &&
         layer >= 0 && layer < model.config().num_layers;
}

// Returns the names of matrices of the first layer that has any, for messages.
std::string MatricesOfOneLayer(const model::LanguageModel& model) {
  std::vector<std::string> names;
  int64_t layer = -1;
  for (int param = 0; param < model.parameters().size(); ++param) {
    if (!IsMatrixOfLayer(model, param)) continue;
    if (!names.empty() && model.LayerOf(param) != layer) break;
    layer = model.LayerOf(param);
    names.push_back(model.parameters().specs()[param].name);
  }
  return names.empty() ? "none" : Join(names, ", ");
}

}  // namespace

std::vector<int> LoraTargets(const LoraOptions& options, const model::LanguageModel& model) {
  const std::regex pattern = TargetPattern(options.targets);
  std::vector<int> targets;
  for (int param = 0; param < model.parameters().size(); ++param) {
    const dist::ParamSpec& spec = model.parameters().specs()[param];
    if (!IsMatrixOfLayer(model, param)) continue;
    const bool fits = std::ranges::min(spec.shape) > options.rank;
    if (options.targets.empty() ? !fits : !std::regex_match(spec.name, pattern)) continue;
    HL_CHECK_AS(ExitCode::kUsage, fits, "lora.rank ", options.rank, " is not below the sides of ",
                spec.name, ", which is ", at::IntArrayRef(spec.shape),
                ". Use a lower rank, or lora.targets that leave the matrix out.");
    targets.push_back(param);
  }
  HL_CHECK_AS(ExitCode::kUsage, !targets.empty(), "lora.targets '", options.targets,
              "' matches no matrix of a layer with sides above lora.rank ", options.rank,
              ". Use an expression for whole names such as: ", MatricesOfOneLayer(model), ".");
  return targets;
}

LoraSizes SizesOfLora(const LoraOptions& options, const model::LanguageModel& model) {
  LoraSizes sizes;
  const std::vector<dist::ParamSpec>& specs = model.parameters().specs();
  for (const dist::ParamSpec& spec : specs)
    (spec.region == dist::Region::kCompute ? sizes.frozen_compute : sizes.frozen_fp32) +=
        spec.count();
  for (const int param : LoraTargets(options, model)) {
    sizes.trained += options.rank * (specs[param].shape[0] + specs[param].shape[1]);
    sizes.targets += specs[param].count();
    sizes.largest_target = std::max(sizes.largest_target, specs[param].count());
  }
  return sizes;
}

// Receives the gradient of a target's W.
class Lora::Sink : public ops::GradientSink {
 public:
  Sink(const Lora& owner, const Adapted& target) : owner_(owner), target_(target) {}

  ops::GradientSink::Target Next() override {
    gradient_ = at::empty(target_.weight.sizes(), target_.weight.options().dtype(at::kFloat));
    return {.sum = gradient_, .added = false};
  }
  void Written() override { owner_.AddGradient(target_, std::exchange(gradient_, {})); }

 private:
  const Lora& owner_;
  const Adapted& target_;
  at::Tensor gradient_;
};

Lora::Lora(const LoraOptions& options, model::LanguageModel& model)
    : model_(model), scale_(options.alpha / static_cast<double>(options.rank)) {
  for (const int param : LoraTargets(options, model)) {
    const dist::ParamSpec& spec = model.parameters().specs()[param];
    const auto declare = [&](std::string_view ending, std::vector<int64_t> shape,
                             const model::Init& init) {
      return parameters_.Declare({.name = spec.name + std::string(ending),
                                  .shape = std::move(shape),
                                  .region = dist::Region::kFp32,
                                  .weight_decay = true,
                                  .readers = spec.readers},
                                 init);
    };
    const int64_t out = spec.shape[0], in = spec.shape[1];
    Adapted target = {.param = param};
    target.a = declare(ckpt::kLoraA, {options.rank, in}, model::Init::UniformOfFanIn(in));
    target.b = declare(ckpt::kLoraB, {out, options.rank}, model::Init::Zeros());
    targets_.push_back(std::move(target));
  }
}

Lora::~Lora() {
  if (weights_.empty()) return;
  for (const Adapted& target : targets_)
    ops::SetGradientSink(model_.parameters().tensor(target.param), nullptr);
}

void Lora::Bind(at::Device device, at::ScalarType compute_dtype) {
  model::ParameterSet& parameters = model_.parameters();
  const dist::ParameterLayout layout(parameters.specs(), {});
  const int64_t num_compute = layout.num_compute_elements();
  const auto options = at::TensorOptions().device(device);
  const at::Tensor compute = at::zeros({num_compute}, options.dtype(compute_dtype)),
                   fp32 = at::zeros({layout.num_elements() - num_compute}, options);
  for (int param = 0; param < parameters.size(); ++param) {
    const dist::ParamSpec& spec = parameters.specs()[param];
    const bool computes = spec.region == dist::Region::kCompute;
    const int64_t begin = layout.offset(param) - (computes ? 0 : num_compute);
    const at::Tensor& flat = computes ? compute : fp32;
    weights_.push_back(flat.narrow(0, begin, spec.count()).view(spec.shape));
    parameters.Bind(param, weights_.back().detach());
  }
  for (Adapted& target : targets_) {
    target.weight = weights_[target.param];
    target.base = at::zeros(target.weight.sizes(), target.weight.options());
    at::Tensor leaf = target.weight.detach();
    leaf.set_requires_grad(true);
    parameters.Bind(target.param, std::move(leaf));
  }
}

void Lora::Load(const ckpt::WeightSource& base) {
  const at::NoGradGuard no_grad;
  for (size_t param = 0; param < weights_.size(); ++param) {
    const dist::ParamSpec& spec = model_.parameters().specs()[param];
    at::Tensor values = at::empty(spec.shape, at::kFloat);
    base.ReadRange(spec.name, 0, spec.count(), values.mutable_data_ptr<float>());
    weights_[param].copy_(values);
  }
  for (const Adapted& target : targets_) target.base.copy_(target.weight);
}

void Lora::Refresh() {
  const at::NoGradGuard no_grad;
  for (Adapted& target : targets_) {
    if (target.weight.scalar_type() == at::kFloat) {
      at::addmm_out(target.weight, target.base, *target.b, *target.a, 1, scale_);
    } else {
      target.weight.copy_(at::addmm(target.base.to(at::kFloat), *target.b, *target.a, 1, scale_));
    }
  }
}

void Lora::PassGradients() {
  for (const Adapted& target : targets_)
    ops::SetGradientSink(model_.parameters().tensor(target.param),
                         std::make_unique<Sink>(*this, target));
}

void Lora::AddGradient(const Adapted& target, const at::Tensor& gradient) const {
  const auto add = [](const model::Parameter& parameter, const at::Tensor& values) {
    ops::GradientSink* const sink = ops::GradientSinkOf(*parameter);
    HL_CHECK(sink != nullptr, "a LoRA matrix has no gradient sink");
    sink->Next().Take(values);
    sink->Written();
  };
  // In the order of a backward of (B A): first B, then A.
  add(target.b, at::mm(gradient, target.a->t()).mul_(scale_));
  add(target.a, at::mm(target.b->t(), gradient).mul_(scale_));
}

}  // namespace halflife::train
