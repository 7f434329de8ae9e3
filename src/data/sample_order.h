// Defines which samples each step of a run uses. An epoch has W windows, and each epoch has its own
// order: sample g is window PermuteIndex(g mod W, W, seed, g / W) of epoch g / W.
//
//   const SampleOrder order = {.num_windows = 100000, .global_batch = 512,
//                              .epoch_end = EpochEnd::kShort};
//   order.StepsPerEpoch();                              // 196
//   order.FirstSample(195), order.NumSamples(195);      // 99840, 160
#pragma once

#include <cstdint>
#include <string>

namespace halflife::data {

// Saved in checkpoints. Increased when the definition of the order changes.
constexpr uint32_t kOrderVersion = 1;

// Determines what happens to a step that the epoch cannot fill with rows.
enum class EpochEnd : uint8_t {
  kFill,   // it is filled with the first rows of the next epoch
  kShort,  // it has fewer rows
  kDrop    // it is omitted together with its rows
};
// Parses "fill", "short" or "drop". Throws Error kUsage for another name.
EpochEnd EpochEndOf(const std::string& name);

struct SampleOrder {
  int64_t num_windows = 0;   // W, at least 1; with kDrop at least global_batch
  int64_t global_batch = 0;  // rows of a full step
  EpochEnd epoch_end = EpochEnd::kFill;

  int64_t StepsPerEpoch() const;                   // with kFill only the full steps
  int64_t StepsOf(int64_t num_epochs) const;       // steps of num_epochs epochs, at least 1
  uint64_t FirstSample(uint64_t step) const;       // the first sample of `step`; steps count from 0
  int64_t NumSamples(uint64_t step) const;         // the number of rows of `step`
  uint64_t NumSamplesBefore(uint64_t step) const;  // samples trained on before `step`
  int64_t EpochOf(uint64_t step) const;            // the epoch in which `step` begins
  // Returns the step that begins with this sample. Throws an Error if no step does.
  uint64_t StepAt(uint64_t first_sample) const;
};

// Permutes [0, size) by a bijection for every (seed, epoch): a Feistel network on the next power of
// four, with cycle walking.
uint64_t PermuteIndex(uint64_t index, uint64_t size, uint64_t seed, uint64_t epoch);

}  // namespace halflife::data
