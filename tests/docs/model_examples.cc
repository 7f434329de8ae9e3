// The examples of src/model's headers. The parameters of a function are the variables that its
// example uses.
#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/mm.h>

#include <cmath>

#include "model/language_model.h"
#include "model/mixers/focus/explanation.h"
#include "model/mixers/linear/token_recurrence.h"
#include "model/mixers/variants.h"
#include "model/model_cost.h"
#include "model/positions/rotary_variants.h"
#include "model/projections.h"
#include "model/sequence_parallel.h"

namespace halflife::model {

using at::Tensor;

void LanguageModelExample(const ModelConfig& config, const Tensor& inputs, const Tensor& targets,
                          const ForwardContext& context, int64_t num_targets) {
#include "examples/model/language_model.h"
}

void ModelCostExample(const LanguageModel& model) {
#include "examples/model/model_cost.h"
}

void ModelConfigExample() {
#include "examples/model/config/model_config.h"
}

void PartExample() {
#include "examples/model/config/part.h"
}

#include "examples/model/config/options.h"

void ExplanationExample(const Mixer& mixer, const Tensor& x, const SequenceSlice& slice) {
#include "examples/model/mixers/focus/explanation.h"
}

void NormExample(const ModelConfig& config, int64_t model_dim, const Tensor& x, Tensor& h) {
#include "examples/model/norms/norm.h"
}

void ChannelMixerExample(const ModelConfig& config, Norm& norm, Tensor& x) {
#include "examples/model/channel_mixers/channel_mixer.h"
}

void OutputProjectionExample(const PartContext& context, const Tensor& y) {
#include "examples/model/projections.h"
}

void BlockExample(const ModelConfig& config, const PartContext& context, ResidualStream& stream,
                  const LayerPass& pass) {
#include "examples/model/blocks/block.h"
}

void ResidualStreamExample(ResidualStream& stream, const std::unique_ptr<Norm>& norm,
                           Tensor (*mixer)(const Tensor&)) {
#include "examples/model/blocks/block.h.2"
}

void PositionsExample(const ModelConfig& config, const SequenceSlice& slice, Tensor& x) {
#include "examples/model/positions/positions.h"
}

void TokenRecurrenceExample() {
#include "examples/model/mixers/linear/token_recurrence.h"
}

void FrequenciesExample() {
#include "examples/model/positions/rotary_variants.h"
}

void ObjectiveExample(const ModelConfig& config, std::vector<int32_t>& inputs,
                      std::vector<int32_t>& labels) {
#include "examples/model/objectives/objective.h"
}

void PartContextExample(const PartContext& context) {
#include "examples/model/part_context.h"
}

void ParametersExample(ParameterSet& parameters, int64_t D, const Tensor& x) {
  using dist::Region;
#include "examples/model/parameters.h"
}

void SequenceParallelExample(dist::Communicator& comm, const SequenceSlice& whole,
                             const LanguageModel& model, const Tensor& tokens,
                             const Tensor& targets) {
#include "examples/model/sequence_parallel.h"
}

}  // namespace halflife::model
