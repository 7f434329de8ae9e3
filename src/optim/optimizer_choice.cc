#include "optim/optimizer_choice.h"

#include "core/error.h"
#include "core/nearest.h"

namespace halflife::optim {
namespace {

OptimizerKind FindKind(std::string_view name) {
  std::vector<std::string> known;
  for (OptimizerKind& kind : OptimizerKinds()) {
    if (kind.name == name) return std::move(kind);
    known.push_back(kind.name);
  }
  HL_FAIL(ExitCode::kUsage, "unknown optimizer '", name, "'. Use one of: ", Join(known, ", "),
          DidYouMean(name, known));
}

}  // namespace

std::vector<OptimizerKind> OptimizerKinds() {
  return {
#define HL_OPTIMIZER(Make) Make(),
#include "optim/optimizers.inc"
#undef HL_OPTIMIZER
  };
}

OptimizerChoice::OptimizerChoice(std::string_view name)
    : kind_(FindKind(name)), config_(kind_.defaults()) {}

OptimizerChoice::OptimizerChoice(const OptimizerChoice& other)
    : kind_(other.kind_), config_(other.config_->Clone()) {}

OptimizerChoice& OptimizerChoice::operator=(const OptimizerChoice& other) {
  *this = OptimizerChoice(other);
  return *this;
}

std::unique_ptr<Optimizer> OptimizerChoice::Make(const AdamWConfig& adamw) const {
  return kind_.make(*config_, adamw);
}

}  // namespace halflife::optim
