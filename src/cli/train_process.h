// Settings of a `halflife train` process before a Trainer is created: log file, flight record,
// device, LibTorch's threads and the heap.
#pragma once

#include "core/tensor_ref.h"
#include "dist/rank_context.h"
#include "train/config/run_config.h"
#include "train/record/run_folder.h"

namespace halflife::cli {

// Collective. Returns the device to train on, which `context` communicates from. Error kEnvironment
// if it is missing, or if ranks would use devices of different kinds.
Device PrepareTrainProcess(const train::RunConfig& config, const train::RunFolder& folder,
                           dist::RankContext& context);

}  // namespace halflife::cli
