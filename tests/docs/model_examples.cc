// The examples of src/model's headers. A function's parameters are what its example takes for
// granted.
#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>

#include "model/language_model.h"
#include "model/mixer.h"
#include "model/mixers/feature_map.h"
#include "model/parameters.h"
#include "model/sequence_slice.h"

namespace halflife::model {

using at::Tensor;

void LanguageModelExample(const ModelConfig& config, const Tensor& inputs, const Tensor& targets,
                          const ForwardContext& context, int64_t num_targets) {
#include "examples/model/language_model.h"
}

void MixerExample(const MixerConfig& config, const MixerContext& context, int64_t model_dim) {
#include "examples/model/mixer.h"
}

struct Sizes {
  FeatureMap feature_map;
};
void FeatureMapExample(Sizes& sizes, MixerOptions& options, Tensor& q) {
#include "examples/model/mixers/feature_map.h"
}

void ParametersExample(ParameterSet& parameters, int64_t D, const Tensor& x) {
  using dist::Region;
#include "examples/model/parameters.h"
}

struct Batch {
  int64_t batch_size, seq_len;
  std::vector<int32_t> cu_seqlens;
};
void SequenceSliceExample(const Batch& batch, at::Device device) {
#include "examples/model/sequence_slice.h"
}

}  // namespace halflife::model
