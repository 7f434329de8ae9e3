// What a process of `halflife train` sets for itself before a Trainer is made: its log file and
// flight record, the device, LibTorch's threads and the heap.
#pragma once

#include "core/tensor_ref.h"
#include "dist/rank_context.h"
#include "train/config/run_config.h"
#include "train/record/run_folder.h"

namespace halflife::cli {

// Collective. Returns the device to train on, which `context` communicates from. Error kEnvironment
// where it is not there, or where ranks would compute on devices of different kinds.
Device PrepareTrainProcess(const train::RunConfig& config, const train::RunFolder& folder,
                           dist::RankContext& context);

}  // namespace halflife::cli
