// Host copies of the slices that this rank stores in a checkpoint: one [num_held(everything)] fp32
// array per stored array of the arena. Saves copy the slices out while training goes on, and a load
// on a GPU reads into them, so that no rank ever needs host memory for the whole model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ckpt/state.h"
#include "train/step/parameter_arena.h"

namespace halflife::train {

// The average of the weights (OptimizerConfig::ema_decay) of the frozen parameters in this rank's
// slices, which the arena does not have. It approaches the weights, which no longer change.
struct FrozenAverage {
  std::vector<float> values;  // Empty: the average is the weights.
  uint64_t num_updates = 0;   // The update after which the average has these values.
};

class HostSlices {
 public:
  // `arena` is borrowed; `slice` is this rank's. Takes no memory before Allocate.
  HostSlices(ParameterArena& arena, int slice) : arena_(arena), slice_(slice) {}

  // Allocates the arrays, once. They are separate because an allocation of pinned memory is rounded
  // up to a power of two. The memory is pinned if the arena is on a GPU.
  void Allocate();
  // Returns the names of the arrays, and their memory if it is allocated.
  ckpt::ArenaView View();
  // Copies the slices from the arena. On a GPU, queues the copies on the current stream. Arrays
  // that have no elements of frozen parameters stay zero there.
  void CopyFromArena();
  // After the copies have ended: advances the average of frozen parameters to update `num_updates`,
  // and writes it to its array.
  void WriteFrozenAverage(double ema_decay, uint64_t num_updates, FrozenAverage& average);
  // After a load: the values of a FrozenAverage. Empty without an average or frozen parameters.
  std::vector<float> LoadedFrozenAverage();
  // Copies the slices into the arena. On a GPU, later work of the current stream sees them, and the
  // host memory may be changed or freed at once.
  void CopyToArena();
  int64_t bytes() const;

 private:
  // Calls copy(part of the host array, part of the arena's array) for each bucket of each array
  // that the arena has.
  template <typename Copy>
  void ForEachPart(const Copy& copy);
  // Calls visit(average, weights) with the host arrays of each frozen bucket, if there is an
  // average.
  void ForEachFrozenPart(
      const std::function<void(std::span<float> average, std::span<const float> weights)>& visit);

  ParameterArena& arena_;
  const int slice_;
  std::vector<at::Tensor> arrays_;  // as arena_.stored_arrays()
};

}  // namespace halflife::train
