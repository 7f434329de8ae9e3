#include "ckpt/merged_weights.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "core/error.h"

namespace halflife::ckpt {
namespace {

class MergedWeights : public WeightSource {
 public:
  MergedWeights(StepReader step, StepReader base)
      : alpha_(LoraAlpha(step)), step_(std::move(step)), base_(std::move(base)) {}

  std::string where() const override { return step_.path().string(); }
  const std::vector<WeightInfo>& weights() const override { return base_.weights(); }

  void ReadRange(const std::string& name, int64_t begin, int64_t end, float* out) const override {
    base_.ReadRange(name, begin, end, out);
    const std::string of_a = name + std::string(kLoraA), of_b = name + std::string(kLoraB);
    const auto a = std::ranges::find(step_.tensors(), of_a, &TensorInfo::name);
    if (a == step_.tensors().end() || begin == end) return;
    const int64_t rank = a->shape[0], in = a->shape[1];
    std::vector<float> values_of_a(a->count());
    step_.ReadTensor(kMainArray, of_a, values_of_a.data());
    const int64_t first_row = begin / in, last_row = (end - 1) / in;
    std::vector<float> rows_of_b((last_row - first_row + 1) * rank);
    step_.ReadRange(kMainArray, of_b, first_row * rank, (last_row + 1) * rank, rows_of_b.data());
    for (int64_t row = first_row; row <= last_row; ++row) {
      const int64_t from = std::max(begin, row * in), to = std::min(end, (row + 1) * in);
      AddRow(&rows_of_b[(row - first_row) * rank], rank, &values_of_a[from - row * in], in,
             to - from, out + (from - begin));
    }
  }

 private:
  // Adds scale * b A to `count` elements of a row, for columns of A [rank, in] from `a` on.
  void AddRow(const float* b, int64_t rank, const float* a, int64_t in, int64_t count,
              float* out) const {
    const auto scale = static_cast<float>(alpha_ / static_cast<double>(rank));
    std::vector<float> sum(count, 0.0f);
    for (int64_t r = 0; r < rank; ++r)
      for (int64_t i = 0; i < count; ++i) sum[i] += b[r] * a[r * in + i];
    for (int64_t i = 0; i < count; ++i) out[i] += scale * sum[i];
  }

  const double alpha_;
  const StepReader step_;
  const StepWeights base_;
};

}  // namespace

bool IsLoraStep(const StepReader& step) {
  return std::ranges::any_of(
      step.tensors(), [](const TensorInfo& tensor) { return tensor.name.ends_with(kLoraA); });
}

double LoraAlpha(const StepReader& step) {
  const auto& fields = step.state().trajectory;
  const auto alpha = fields.find(kLoraAlphaField);
  HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, alpha != fields.end(), step.path().string(),
              " has LoRA weights, but no ", kLoraAlphaField, ". Use another step of the run.");
  return std::strtod(alpha->second.c_str(), nullptr);
}

std::unique_ptr<WeightSource> WeightsOfStep(StepReader step, const std::string& weights) {
  std::string array = WeightsArray(step, weights);
  if (!IsLoraStep(step)) return std::make_unique<StepWeights>(std::move(step), std::move(array));
  HL_CHECK_AS(ExitCode::kUsage, array == kMainArray, step.path().string(),
              " is a step of a LoRA run, whose average cannot be merged. Use --weights main.");
  const std::filesystem::path run = RunOfStep(step.path()), folder = run / kLoraBaseFolder;
  std::error_code ignored;
  HL_CHECK_AS(ExitCode::kNoUsableCheckpoint,
              !run.empty() && std::filesystem::exists(folder / "manifest.pb", ignored),
              step.path().string(), " has only the LoRA weights of a run. The base weights are in ",
              run.empty() ? "the run's folder base/" : folder.string(),
              ", which is missing. Use the step within the run's folder.");
  StepReader base = StepReader::Open(folder);
  HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, base.state().run_id == step.state().run_id,
              folder.string(), " has the base weights of another run than ", step.path().string(),
              ". Restore the folder base/ of that run.");
  return std::make_unique<MergedWeights>(std::move(step), std::move(base));
}

}  // namespace halflife::ckpt
