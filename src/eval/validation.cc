#include "eval/validation.h"

#include <c10/core/GradMode.h>

#include <cmath>

#include "core/error.h"
#include "eval/batch_tensors.h"

namespace halflife::eval {
namespace {

// Of an objective's random choices: those of validation are the same in every run.
constexpr uint64_t kValidationSeed = 0;

// One fp64 sum per window, so that the grouping into batches does not show.
void AppendWindowSums(const at::Tensor& losses, std::vector<double>& sums) {
  const at::Tensor rows = losses.to(at::kCPU).to(at::kDouble).sum(1).contiguous();
  sums.insert(sums.end(), rows.const_data_ptr<double>(),
              rows.const_data_ptr<double>() + rows.numel());
}

}  // namespace

double ValidationResult::perplexity() const { return std::exp(loss); }

ValidationResult Validate(const model::LanguageModel& model, const data::TokenView& tokens,
                          const ValidationConfig& config, at::Device device,
                          dist::Communicator& control) {
  const c10::AutoGradMode no_grad(false);
  const int64_t available = data::NumWindows(tokens.info.num_tokens, config.seq_len);
  HL_CHECK_AS(ExitCode::kData, available > 0, tokens.name, " has ", tokens.info.num_tokens,
              " tokens, fewer than one window of ", config.seq_len,
              " + 1; use a shorter data.seq_len (`eval --seq-len`), or more text (`prepare` with a "
              "larger --validation-fraction)");
  const int64_t total =
      config.num_windows > 0 ? std::min(config.num_windows, available) : available;

  const int world = control.size(), rank = control.rank();
  std::vector<int64_t> begins(world + 1);
  for (int r = 0; r <= world; ++r) begins[r] = total * r / world;
  std::vector<double> sums;
  double num_targets = 0;
  for (int64_t first = begins[rank]; first < begins[rank + 1]; first += config.batch) {
    const int64_t count = std::min(config.batch, begins[rank + 1] - first);
    data::Batch batch = data::ReadWindows(tokens, config.seq_len, first, count);
    ApplyObjective(model.objective(), kValidationSeed, batch);
    const BatchTensors tensors = ToTensors(batch, device);
    AppendWindowSums(model.TokenLosses(tensors.inputs, tensors.targets, {.slice = &tensors.slice}),
                     sums);
    num_targets += static_cast<double>(batch.num_targets);
  }

  std::vector<double> all(total);
  std::vector<int64_t> counts(world);
  for (int r = 0; r < world; ++r) counts[r] = begins[r + 1] - begins[r];
  control
      .AllGatherV(Ref(sums.data(), static_cast<int64_t>(sums.size())), Ref(all.data(), total),
                  counts, {"validation_losses", 0}, nullptr)
      .WaitHost();
  control.AllReduce(Ref(&num_targets, 1), dist::ReduceOp::kSum, {"validation_targets", 0}, nullptr)
      .WaitHost();
  ValidationResult result;
  result.num_targets = static_cast<int64_t>(num_targets);
  HL_CHECK_AS(ExitCode::kData, result.num_targets > 0, "the validation windows hold no targets");
  for (const double sum : all) result.loss += sum;
  result.loss /= num_targets;
  result.bits_per_byte = data::BitsPerByte(result.loss, tokens.info);
  return result;
}

ValidationResult Validate(const model::LanguageModel& model, const data::Dataset& dataset,
                          const ValidationConfig& config, at::Device device,
                          dist::Communicator& control) {
  return Validate(model, data::ViewOf(dataset, data::Split::kValidation), config, device, control);
}

}  // namespace halflife::eval
