// Brings the weights of ZeRO stage 3 to where a layer reads them: gathers each unit from the ranks
// of the shard group, a few layers ahead in forward and in backward (dist/unit_schedule.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "dist/communicator.h"
#include "dist/parameter_gather.h"
#include "dist/unit_schedule.h"
#include "train/step/parameter_arena.h"

namespace halflife::train {

class UnitGather {
 public:
  // All are borrowed. `shard` is a communicator of the shard group that nothing else uses, because
  // gradients are reduced while units are gathered. `gather` gathers the ranges that this rank
  // holds, and the parameters of no unit.
  UnitGather(ParameterArena& arena, dist::Communicator& shard, dist::ParameterGather& gather);

  // Layers are numbered as in LanguageModel::LayerOf. All ranks call the same in the same order.
  void AwaitForward(int64_t layer);
  void AwaitBackward(int64_t layer);
  void Invalidate();

  double TakeWaitSeconds();

 private:
  void Issue(const dist::UnitSchedule::Gather& gather);
  void AwaitSlot(int slot);

  ParameterArena& arena_;
  dist::Communicator& shard_;
  dist::ParameterGather& gather_;
  dist::UnitSchedule schedule_;
  cudaStream_t consumer_ = nullptr;             // the stream that reads the units
  std::vector<std::vector<dist::Work>> works_;  // by slot: one for each bucket in flight
  double wait_seconds_ = 0;
};

}  // namespace halflife::train
