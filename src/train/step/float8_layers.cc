#include "train/step/float8_layers.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "core/concat.h"
#include "core/error.h"

namespace halflife::train {
namespace {

bool IsFloat8Weight(const dist::ParamSpec& spec, int64_t min_width) {
  return spec.float8 && spec.readers == 1 && spec.aliases.empty() &&
         std::ranges::all_of(spec.shape,
                             [&](int64_t width) { return width >= min_width && width % 16 == 0; });
}

bool IsInFloat8(const LoopConfig& train) { return train.precision == "fp8"; }

// Copies that are made at each use are not kept.
bool KeepsCopies(const RunConfig& config) { return config.parallel.zero_stage < 3; }

double NumElements(const std::vector<int>& params, const std::vector<dist::ParamSpec>& specs) {
  double elements = 0;
  for (const int param : params)
    elements += static_cast<double>(specs[static_cast<size_t>(param)].count());
  return elements;
}

}  // namespace

std::vector<int> FindFloat8Weights(const LoopConfig& train,
                                   const std::vector<dist::ParamSpec>& specs) {
  std::vector<int> params;
  if (!IsInFloat8(train)) return params;
  for (size_t i = 0; i < specs.size(); ++i)
    if (IsFloat8Weight(specs[i], train.fp8.min_width)) params.push_back(static_cast<int>(i));
  return params;
}

// Counts one byte an element for the rows and for the columns of a weight on a GPU, and two on the
// CPU. The factors of the rows are not counted.
double Float8Bytes(const RunConfig& config, const std::vector<dist::ParamSpec>& specs,
                   bool on_gpu) {
  if (!KeepsCopies(config)) return 0;
  return (on_gpu ? 2 : 4) * NumElements(FindFloat8Weights(config.train, specs), specs);
}

std::string DescribeFloat8(const LoopConfig& train, const std::vector<dist::ParamSpec>& specs) {
  const std::vector<int> params = FindFloat8Weights(train, specs);
  double all = 0;
  for (const dist::ParamSpec& spec : specs) all += static_cast<double>(spec.count());
  std::ostringstream out;
  out << params.size() << " matrices, " << std::fixed << std::setprecision(1)
      << 100 * NumElements(params, specs) / all << " % of the parameters";
  return out.str();
}

void RequireFloat8(const RunConfig& config, const std::vector<dist::ParamSpec>& specs,
                   int compute_capability) {
  if (!IsInFloat8(config.train)) return;
  HL_CHECK_AS(
      ExitCode::kUsage, !FindFloat8Weights(config.train, specs).empty(),
      "train.precision is 'fp8', but the model has no projection whose widths are multiples "
      "of 16 and at least train.fp8.min_width, ",
      config.train.fp8.min_width,
      ". Use --set train.precision=bf16, or a smaller train.fp8.min_width.");
  HL_CHECK_AS(ExitCode::kUsage, compute_capability == 0 || compute_capability >= 89,
              "train.precision is 'fp8', but this GPU, of compute capability ",
              compute_capability / 10, ".", compute_capability % 10,
              ", has no FP8 matrix units. Use --set train.precision=bf16, or a GPU of compute "
              "capability 8.9 or higher (H100).");
}

Float8Layers::Float8Layers(const RunConfig& config, const model::ParameterSet& parameters)
    : parameters_(parameters), params_(FindFloat8Weights(config.train, parameters.specs())) {
  if (params_.empty()) return;
  weights_ = std::make_shared<ops::Float8Weights>(KeepsCopies(config));
  for (const int param : params_) ops::SetFloat8Weights(parameters_.tensor(param), weights_);
}

Float8Layers::~Float8Layers() {
  for (const int param : params_) ops::SetFloat8Weights(parameters_.tensor(param), nullptr);
}

}  // namespace halflife::train
