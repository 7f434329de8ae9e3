#include "model/mixer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/error.h"
#include "kernels/linear/linear.h"
#include "kernels/torch/dispatch.h"
#include "model/mixers/variants.h"

namespace halflife::model {
namespace {

constexpr int64_t kFirstCapacity = 64;  // tokens that a growing state has room for at first

std::vector<MixerVariant> MixerVariants() {
  return {
#define HL_MIXER(Make) Make(),
#include "model/mixers/mixers.inc"
#undef HL_MIXER
  };
}

}  // namespace

const PartKind kMixers = {"mixer", "retention", [] { return InfosOf(MixerVariants()); }};

bool StateTensor::grows() const { return std::ranges::count(shape, kGrows) > 0; }

bool MixerTraits::constant_state() const {
  return std::ranges::none_of(state, &StateTensor::grows);
}

int64_t MixerState::bytes() const {
  int64_t sum = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) sum += static_cast<int64_t>(tensor.nbytes());
  return sum;
}

MixerState EmptyState(const MixerTraits& traits, int64_t batch, at::Device device,
                      at::ScalarType compute) {
  MixerState state;
  for (const StateTensor& tensor : traits.state) {
    std::vector<int64_t> shape = {batch};
    for (const int64_t size : tensor.shape)
      shape.push_back(size == StateTensor::kGrows ? kFirstCapacity : size);
    const at::ScalarType wide = compute == at::kDouble ? at::kDouble : at::kFloat;
    state.tensors.push_back(
        at::zeros(shape, at::TensorOptions(device).dtype(tensor.compute_dtype ? compute : wide)));
  }
  return state;
}

std::unique_ptr<Mixer> MakeMixer(const MixerConfig& config, const PartContext& context) {
  std::vector<Variant<Mixer, PartContext>> makers;
  for (const MixerVariant& variant : MixerVariants()) makers.push_back(variant);
  return MakePart(makers, config, context.sizes, context);
}

std::vector<MixerConfig> TestForms(const std::string& mixer) {
  std::vector<MixerConfig> forms;
  for (const MixerVariant& variant : MixerVariants()) {
    if (variant.name != mixer) continue;
    for (const std::vector<Assignment>& options : variant.test_forms)
      forms.emplace_back(mixer, options);
  }
  HL_CHECK(!forms.empty(), "mixer ", mixer, " lists no form to test");
  return forms;
}

at::Tensor SplitHeads(const at::Tensor& x, int64_t head_dim) {
  return x.unflatten(-1, {-1, head_dim});
}

at::Tensor RepeatHeads(const at::Tensor& x, int64_t num_heads) {
  const int64_t group = num_heads / x.size(2);
  if (group == 1) return x;
  return x.unsqueeze(3).expand({x.size(0), x.size(1), x.size(2), group, x.size(3)}).flatten(2, 3);
}

void AppendToken(const at::Tensor& token, int64_t place, at::Tensor& cache) {
  if (place == cache.size(1)) {
    std::vector<int64_t> shape(cache.sizes().begin(), cache.sizes().end());
    shape[1] = std::max<int64_t>(kFirstCapacity, 2 * place);
    at::Tensor grown = at::empty(shape, cache.options());
    grown.narrow(1, 0, place).copy_(cache);
    cache = grown;
  }
  cache.narrow(1, place, 1).copy_(token);
}

OutputProjection::OutputProjection(const PartContext& context, int64_t width, bool bias,
                                   const OutputForm& form) {
  if (context.inner_norm != nullptr)
    inner_norm_ = MakeNorm(*context.inner_norm, context.Below("inner_norm."), width);
  const Init init = form.init.value_or(context.MatrixInit(width)).Scaled(context.output_init_scale);
  weight_ = context.parameters->Declare({.name = context.prefix + form.name + ".weight",
                                         .shape = {context.model_dim(), width},
                                         .weight_decay = true},
                                        init);
  if (bias) bias_ = DeclareBias(context, form.name + ".bias", context.model_dim());
}

at::Tensor OutputProjection::operator()(const at::Tensor& y) const {
  return AddBias(kernels::Linear(inner_norm_ == nullptr ? y : (*inner_norm_)(y), *weight_), bias_);
}

}  // namespace halflife::model
