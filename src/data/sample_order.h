// Which samples the steps of a run take. Sample g is window Permute(seed, g / W, g mod W): epoch
// g / W of W windows, each in an order of its own.
//
//   const SampleOrder order = {.num_windows = 100000, .global_batch = 512,
//                              .epoch_end = EpochEnd::kShort};
//   order.StepsPerEpoch();                              // 196
//   order.FirstSample(195), order.NumSamples(195);      // 99840, 160
#pragma once

#include <cstdint>
#include <string>

namespace halflife::data {

// What becomes of a step whose rows the epoch cannot fill.
enum class EpochEnd : uint8_t {
  kFill,   // the next epoch's first rows fill it
  kShort,  // it has fewer rows
  kDrop    // it is left out, and so are its rows
};
// "fill", "short" or "drop"; Error kUsage for another name.
EpochEnd EpochEndOf(const std::string& name);

struct SampleOrder {
  int64_t num_windows = 0;   // W, at least 1; with kDrop at least global_batch
  int64_t global_batch = 0;  // rows of a whole step
  EpochEnd epoch_end = EpochEnd::kFill;

  int64_t StepsPerEpoch() const;                   // with kFill the whole ones
  int64_t StepsOf(int64_t num_epochs) const;       // of so many epochs, at least 1
  uint64_t FirstSample(uint64_t step) const;       // step from 0
  int64_t NumSamples(uint64_t step) const;         // its rows
  uint64_t NumSamplesBefore(uint64_t step) const;  // trained on when it begins
  int64_t EpochOf(uint64_t step) const;            // the one it begins in
  // The step that begins with this sample; Error for one that no step begins with.
  uint64_t StepAt(uint64_t first_sample) const;
};

}  // namespace halflife::data
