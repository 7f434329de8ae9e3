// The examples of src/model's headers. The parameters of a function are the variables that its
// example uses.
#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/mm.h>

#include <cmath>

#include "model/activation.h"
#include "model/channel_mixers/variants.h"
#include "model/document_pooler.h"
#include "model/forward_pass.h"
#include "model/language_model.h"
#include "model/mixers/convolution/long_convolution.h"
#include "model/mixers/convolution/short_convolution.h"
#include "model/mixers/focus/explanation.h"
#include "model/mixers/linear/feature_map.h"
#include "model/mixers/linear/fixed_decay.h"
#include "model/mixers/linear/legacy_view.h"
#include "model/mixers/linear/score_sums.h"
#include "model/mixers/linear/token_recurrence.h"
#include "model/mixers/softmax/attention.h"
#include "model/mixers/variants.h"
#include "model/model_cost.h"
#include "model/positions/attention_positions.h"
#include "model/positions/rotary_variants.h"
#include "model/projections.h"
#include "model/sequence_parallel.h"
#include "model/sequence_slice.h"

namespace halflife::model {

using at::Tensor;

void LanguageModelExample(const ModelConfig& config, const Tensor& inputs, const Tensor& targets,
                          const ForwardContext& context, int64_t num_targets) {
#include "examples/model/language_model.h"
}

void ModelCostExample(const LanguageModel& model) {
#include "examples/model/model_cost.h"
}

void ForwardPassExample(const ModelConfig& config, const ForwardContext& context,
                        const std::vector<std::unique_ptr<Block>>& blocks, ResidualStream& stream) {
#include "examples/model/forward_pass.h"
}

void ModelConfigExample() {
#include "examples/model/config/model_config.h"
}

void PartExample() {
#include "examples/model/config/part.h"
}

#include "examples/model/config/options.h"

void DocumentPoolerExample(const ClassifierOptions& options, const PartContext& context,
                           const Tensor& hidden, const SequenceSlice& slice) {
#include "examples/model/document_pooler.h"
}

void LongConvolutionExample(const Tensor& x, const Tensor& filter, const Tensor& before,
                            Tensor& inputs) {
#include "examples/model/mixers/convolution/long_convolution.h"
}

void ShortConvolutionExample(const PartContext& context, int64_t dim, const Tensor& x,
                             const SequenceSlice& slice, const Tensor& before, Tensor& after) {
#include "examples/model/mixers/convolution/short_convolution.h"
}

void FeatureMapExample(const PartContext& context, int64_t head_dim, const Tensor& y) {
#include "examples/model/mixers/linear/feature_map.h"
}

void ExplanationExample(const Mixer& mixer, const Tensor& x, const SequenceSlice& slice) {
#include "examples/model/mixers/focus/explanation.h"
}

void ActivationExample(Tensor& q) {
#include "examples/model/activation.h"
}

void NormExample(const ModelConfig& config, int64_t model_dim, const Tensor& x, Tensor& h) {
#include "examples/model/norms/norm.h"
}

void ChannelMixerExample(const ModelConfig& config, Norm& norm, Tensor& x) {
#include "examples/model/channel_mixers/channel_mixer.h"
}

void InnerChannelsExample(const PartContext& context, int64_t width, int64_t model_dim) {
#include "examples/model/channel_mixers/variants.h"
}

void OutputProjectionExample(const PartContext& context, const Tensor& y) {
#include "examples/model/projections.h"
}

void HeadsExample(const Tensor& projected, const Tensor& narrow) {
#include "examples/model/projections.h.2"
}

void BlockExample(const ModelConfig& config, const PartContext& context, ResidualStream& stream,
                  const LayerPass& pass) {
#include "examples/model/blocks/block.h"
}

void ResidualStreamExample(ResidualStream& stream, const std::unique_ptr<Norm>& norm,
                           Tensor (*mixer)(const Tensor&)) {
#include "examples/model/blocks/block.h.2"
}

void PositionTensorsExample(const SequenceSlice& slice, double rate) {
#include "examples/model/sequence_slice.h.2"
}

void PositionsExample(const ModelConfig& config, const SequenceSlice& slice, Tensor& x) {
#include "examples/model/positions/positions.h"
}

void TokenRecurrenceExample() {
#include "examples/model/mixers/linear/token_recurrence.h"
}

void FixedDecayExample() {
#include "examples/model/mixers/linear/fixed_decay.h"
}

struct PositionsOfSlice {
  Tensor positions;
};
void LegacyViewExample(const Tensor& q, const Tensor& k, const Parameter& ps,
                       const PositionsOfSlice& slice) {
#include "examples/model/mixers/linear/legacy_view.h"
}

void ScoreSumsExample(const Tensor& q, const Tensor& k, const PositionsOfSlice& slice,
                      const Tensor& log_decay) {
#include "examples/model/mixers/linear/score_sums.h"
}

void AttentionPositionsExample(const AttentionPositions& method, const Tensor& q, const Tensor& k,
                               const SequenceSlice& slice) {
#include "examples/model/positions/attention_positions.h"
}

void AttentionBiasesExample() {
#include "examples/model/positions/attention_positions.h.2"
}

void FrequenciesExample() {
#include "examples/model/positions/rotary_variants.h"
}

void QueryScaleExample(Tensor q, const Tensor& num_keys) {
#include "examples/model/mixers/softmax/attention.h.2"
}

void AttentionExample(const AttentionOptions& options, const PartContext& context,
                      const MixerCall& call, const Attention::Heads& heads) {
#include "examples/model/mixers/softmax/attention.h"
}

void ObjectiveExample(const ModelConfig& config, std::vector<int32_t>& inputs,
                      std::vector<int32_t>& labels) {
#include "examples/model/objectives/objective.h"
}

void EmbeddingExample(const ModelConfig& config, const PartContext& context, const Tensor& tokens) {
#include "examples/model/vocabulary_layers.h"
}

void HeadExample(const ModelConfig& config, const PartContext& context, int64_t vocab_size,
                 const TokenEmbedding& embedding, const Tensor& hidden, const Tensor& targets) {
#include "examples/model/vocabulary_layers.h.2"
}

void PartContextExample(const PartContext& context) {
#include "examples/model/part_context.h"
}

void InitExample(int64_t num_layers) {
#include "examples/model/init.h"
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

struct Batch {
  int64_t batch_size, seq_len;
  std::vector<int32_t> cu_seqlens;
};
void SequenceSliceExample(const Batch& batch, at::Device device) {
#include "examples/model/sequence_slice.h"
}

}  // namespace halflife::model
