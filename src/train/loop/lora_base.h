// The frozen weights of a run with LoRA, in the run's folder base/. They are written once, in the
// format of a step, so that the run's checkpoints need only A and B.
#pragma once

#include <filesystem>
#include <string>

#include "ckpt/state.h"
#include "dist/parameter_layout.h"
#include "train/loop/warm_start.h"

namespace halflife::train {

// Writes the values of all parameters of the model to run/base, which is replaced. `state` has the
// run's id and the model's config. Error kCheckpointIo.
void WriteLoraBase(const std::filesystem::path& run, const std::vector<dist::ParamSpec>& specs,
                   const StartValues& values, const ckpt::StepState& state);
// Copies the base of the run that contains `step` if `run` does not have that of `run_id`: a run
// that continues another run's step. A base of another run is renamed. Error kNoUsableCheckpoint if
// there is none to copy.
void CopyLoraBase(const std::filesystem::path& step, const std::filesystem::path& run,
                  const std::string& run_id);

}  // namespace halflife::train
