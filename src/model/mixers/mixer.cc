#include "model/mixer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "model/mixers/variants.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

constexpr int64_t kFirstCapacity = 64;  // initial capacity of a growing state, in tokens

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

at::Tensor KeptTail(const at::Tensor& tail) {
  return tail.to(ops::ComputeType(tail), /*non_blocking=*/false, /*copy=*/true).contiguous();
}

std::unique_ptr<Mixer> MakeMixer(const MixerConfig& config, const PartContext& context) {
  return MakePart(MixerVariants(), config, context.sizes, context);
}

}  // namespace halflife::model
