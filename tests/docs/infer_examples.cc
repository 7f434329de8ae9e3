// The examples of the headers of src/infer and src/eval. The parameters of a function are the
// variables that its example uses.
#include "eval/attention_statistics.h"
#include "eval/class_scores.h"
#include "eval/length_table.h"
#include "eval/retrieval.h"
#include "eval/scorer.h"
#include "eval/validation.h"
#include "infer/batch_decoder.h"
#include "infer/generator.h"
#include "infer/model_loader.h"
#include "infer/sampler.h"
#include "infer/text_stream.h"

namespace halflife::infer {

void DecoderExample(const model::LanguageModel& model, model::ModelState state,
                    const at::Tensor& tokens) {
#include "examples/infer/generator.h.2"
}

void GeneratorExample(const model::LanguageModel& model, const std::vector<int32_t>& ids) {
  constexpr int32_t kStop = 1;
#include "examples/infer/generator.h"
}

void BatchDecoderExample(const model::LanguageModel& model, const std::vector<int32_t>& ids) {
#include "examples/infer/batch_decoder.h"
}

void PrefixStoreExample(std::span<const int32_t> prompt) {
#include "examples/infer/batch_decoder.h.2"
}

void TextStreamExample(const data::Tokenizer& tokenizer, std::ostream& out,
                       const std::function<int32_t()>& NextId) {
#include "examples/infer/text_stream.h"
}

void ModelLoaderExample() {
#include "examples/infer/model_loader.h"
}

void SamplerExample(std::span<const float> logits, uint64_t position) {
#include "examples/infer/sampler.h"
}

}  // namespace halflife::infer

namespace halflife::eval {

std::vector<std::span<const int32_t>> sequences_of(const std::vector<size_t>& batch);
void ScorerExample(std::span<const size_t> lengths, const ScoreConfig& config,
                   const model::LanguageModel& model) {
#include "examples/eval/scorer.h"
}

void LengthMethodExample(const model::LanguageModel& model) {
#include "examples/eval/length_method.h"
}

void AttentionStatisticsExample(const model::LanguageModel& model, const at::Tensor& tokens,
                                const at::Tensor& targets, const model::SequenceSlice& slice,
                                dist::Communicator& control) {
#include "examples/eval/attention_statistics.h"
}

void ClassScoresExample(std::span<const int32_t> labels, std::span<const double> log_probs) {
#include "examples/eval/class_scores.h"
}

void ExplanationsExample(const model::LanguageModel& model, const at::Tensor& tokens,
                         const model::SequenceSlice& slice) {
  const auto Print = [](int64_t, const std::vector<TokenShare>&) {};
#include "examples/eval/attention_statistics.h.2"
}

void WindowChoiceExample() {
#include "examples/eval/validation.h"
}

void ProtocolExample() {
#include "examples/eval/length_table.h.2"
}

void CarriedExample(const model::LanguageModel& model, const data::Batch& batch) {
#include "examples/eval/scorer.h.2"
}

void RetrievalExample(const data::TokenView& tokens, const data::Tokenizer& tokenizer,
                      uint64_t sample) {
#include "examples/eval/retrieval.h"
}

void RetrievalTableExample(const model::LanguageModel& model,
                           const std::function<Prompt(uint64_t sample)>& prompts,
                           dist::Communicator& control) {
#include "examples/eval/retrieval.h.2"
}

void LengthTableExample(const model::LanguageModel& model, const data::TokenView& tokens,
                        const LengthMethod& method, const Protocol& protocol,
                        dist::Communicator& control) {
#include "examples/eval/length_table.h"
}

}  // namespace halflife::eval
