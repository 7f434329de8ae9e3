#include "eval/retrieval_table.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace halflife::eval {
namespace {

// The sums of one sample, in fp64.
struct SampleSums {
  double loss = 0, correct = 0, tokens = 0, correct_answers = 0, answers = 0;
};
constexpr int64_t kSumsOfSample = 5;

struct Prompts {
  at::Tensor inputs, targets;  // [B, T] int64
};
Prompts Stack(const std::vector<Prompt>& rows) {
  const auto batch = std::ssize(rows), length = std::ssize(rows.front().inputs);
  Prompts stacked = {at::empty({batch, length}, at::kLong), at::empty({batch, length}, at::kLong)};
  for (int64_t row = 0; row < batch; ++row) {
    const Prompt& prompt = rows[static_cast<size_t>(row)];
    HL_CHECK(std::ssize(prompt.inputs) == length && std::ssize(prompt.targets) == length,
             "the prompts of a batch must all have the same length");
    std::ranges::copy(prompt.inputs, stacked.inputs.mutable_data_ptr<int64_t>() + row * length);
    std::ranges::copy(prompt.targets, stacked.targets.mutable_data_ptr<int64_t>() + row * length);
  }
  return stacked;
}

void Score(const Prompts& prompts, const AnswerScorer& scorer, bool one_answer, SampleSums* sums) {
  const model::TokenScores scores = scorer(prompts.inputs, prompts.targets);
  const at::Tensor losses = scores.losses.to(at::kCPU, at::kDouble).contiguous(),
                   correct = scores.correct.to(at::kCPU, at::kDouble).contiguous();
  const int64_t length = prompts.inputs.size(1);
  for (int64_t row = 0; row < prompts.inputs.size(0); ++row) {
    SampleSums& sum = sums[row];
    for (int64_t t = row * length; t < (row + 1) * length; ++t) {
      if (prompts.targets.const_data_ptr<int64_t>()[t] < 0) continue;
      sum.tokens += 1;
      sum.loss += losses.const_data_ptr<double>()[t];
      sum.correct += correct.const_data_ptr<double>()[t];
    }
    sum.answers = one_answer ? 1 : sum.tokens;
    sum.correct_answers = one_answer ? (sum.correct == sum.tokens ? 1 : 0) : sum.correct;
  }
}

}  // namespace

void RequireAnswers(const model::LanguageModel& model, bool labels_will_do) {
  const model::Objective& objective = model.objective();
  HL_CHECK_AS(ExitCode::kUsage,
              objective.predicts_next_token() ||
                  (labels_will_do && objective.takes_labels_of_data() && !objective.classifier()),
              "--retrieval asks for ",
              labels_will_do ? "the token that goes with a key" : "the next tokens of a key",
              ", but the model's objective is ", model.config().objective.name(),
              ". Use a model with the objective next_token", labels_will_do ? " or labelled" : "",
              ".");
}

AnswerScorer ScorerOf(const model::LanguageModel& model) {
  return [&model](const at::Tensor& inputs, const at::Tensor& targets) {
    const at::Device device = model.device();
    const auto slice = model::SequenceSlice::Contiguous(inputs.size(0), inputs.size(1), 0, device);
    return model.Scores(inputs.to(device), targets.to(device), {.slice = &slice});
  };
}

RetrievalScore ScoreRetrieval(const RetrievalTable& table,
                              const std::function<Prompt(uint64_t sample)>& prompt,
                              const AnswerScorer& scorer, dist::Communicator& control) {
  const c10::AutoGradMode no_grad(false);
  HL_CHECK_AS(ExitCode::kUsage, table.num_samples > 0,
              "there are no samples. Use --samples 1 or more.");
  const auto begin_of = [&](int64_t rank) { return table.num_samples * rank / control.size(); };
  std::vector<SampleSums> sums(static_cast<size_t>(table.num_samples));
  const int64_t end = begin_of(control.rank() + 1);
  for (int64_t first = begin_of(control.rank()); first < end; first += table.batch) {
    std::vector<Prompt> rows;
    for (int64_t sample = first; sample < std::min(first + table.batch, end); ++sample)
      rows.push_back(prompt(static_cast<uint64_t>(sample)));
    Score(Stack(rows), scorer, table.one_answer, &sums[static_cast<size_t>(first)]);
  }
  static_assert(sizeof(SampleSums) == kSumsOfSample * sizeof(double));
  control
      .AllReduce(Ref(reinterpret_cast<double*>(sums.data()), kSumsOfSample * table.num_samples),
                 dist::ReduceOp::kSum, {"retrieval_sums", 0}, nullptr)
      .WaitHost();
  SampleSums total;
  for (const SampleSums& sum : sums) {
    total.loss += sum.loss;
    total.correct += sum.correct;
    total.tokens += sum.tokens;
    total.correct_answers += sum.correct_answers;
    total.answers += sum.answers;
  }
  return {.accuracy = total.correct_answers / total.answers,
          .token_accuracy = total.correct / total.tokens,
          .loss = total.loss / total.tokens,
          .num_answers = static_cast<int64_t>(total.answers),
          .num_tokens = static_cast<int64_t>(total.tokens)};
}

}  // namespace halflife::eval
