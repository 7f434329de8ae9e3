// Starts a run from the weights of another model (`--init-from`), and keeps the frozen weights of a
// run with LoRA. Nothing is adapted silently: every difference is reported.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/state.h"
#include "ckpt/weight_source.h"
#include "dist/parameter_layout.h"
#include "train/config/warm_start_rules.h"
#include "train/step/parameter_arena.h"

namespace halflife::train {

struct WarmStartReport {
  int num_loaded = 0, num_kept = 0, num_unused = 0;  // Tensors.
  int64_t num_elements = 0;                          // Elements that were read.
  Hash128 hash = {};                                 // Of the loaded tensors; set by WarmStart.
};

// Reads one rule per line, `pattern -> replacement`. '#' starts a comment. Throws Error kUsage with
// the line.
std::vector<std::pair<std::string, std::string>> ReadRenames(const std::filesystem::path& file);

// The values with which a model's parameters start: those of `source`, or their initial values.
class StartValues {
 public:
  using Initial =
      std::function<at::Tensor(int param)>;  // fp32 on the CPU, in the parameter's shape
  // `source` is borrowed. Throws Error kUsage that lists every missing, unexpected or misshapen
  // tensor, and parameters to which a rule gives the same name.
  StartValues(const ckpt::WeightSource& source, const WarmStartRules& rules,
              std::vector<dist::ParamSpec> specs, Initial initial);
  // Returns whether the source has values of the parameter.
  bool has(int param) const { return weights_[param] != nullptr; }
  at::Tensor Of(int param) const;  // fp32 on the CPU, in the parameter's shape
  const WarmStartReport& report() const { return report_; }

 private:
  const ckpt::WeightSource& source_;
  const RowGrowth new_rows_;
  const std::vector<dist::ParamSpec> specs_;
  const Initial initial_;
  std::vector<const ckpt::WeightInfo*> weights_;  // by parameter; null: its initial values
  WarmStartReport report_;
};

// Fills the arena's main weights, which contain their initial values, from `source`, and updates
// the compute copy. Throws the errors of StartValues.
WarmStartReport WarmStart(const ckpt::WeightSource& source, const WarmStartRules& rules,
                          ParameterArena& arena);

// Writes the values of all parameters of the model to run/base and replaces it if it exists. In a
// run with LoRA these parameters are frozen. They are written once, in the format of a step, so
// that the run's checkpoints need only A and B. `state` has the run's id and the model's config.
// Throws Error kCheckpointIo.
void WriteLoraBase(const std::filesystem::path& run, const std::vector<dist::ParamSpec>& specs,
                   const StartValues& values, const ckpt::StepState& state);
// Returns the folder with the base weights of run `run_id`, one of whose steps is `step`: that of
// `run`, or that of the run that contains the step. Throws Error kNoUsableCheckpoint if neither has
// it.
std::filesystem::path FindLoraBase(const std::filesystem::path& step,
                                   const std::filesystem::path& run, const std::string& run_id);
// Copies the base that FindLoraBase returns into `run`, if it is not there: a run that continues
// another run's step. A base of another run is renamed.
void CopyLoraBase(const std::filesystem::path& step, const std::filesystem::path& run,
                  const std::string& run_id);

}  // namespace halflife::train
