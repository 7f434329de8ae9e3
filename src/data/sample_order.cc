#include "data/sample_order.h"

#include <algorithm>

#include "core/error.h"

namespace halflife::data {

EpochEnd EpochEndOf(const std::string& name) {
  if (name == "fill") return EpochEnd::kFill;
  if (name == "short") return EpochEnd::kShort;
  HL_CHECK_AS(ExitCode::kUsage, name == "drop", "'", name,
              "' is not an end of an epoch. Use fill, short or drop.");
  return EpochEnd::kDrop;
}

int64_t SampleOrder::StepsPerEpoch() const {
  const int64_t whole = num_windows / global_batch;
  return epoch_end == EpochEnd::kShort && num_windows % global_batch != 0 ? whole + 1 : whole;
}

int64_t SampleOrder::StepsOf(int64_t num_epochs) const {
  const int64_t steps = epoch_end == EpochEnd::kFill ? num_epochs * num_windows / global_batch
                                                     : num_epochs * StepsPerEpoch();
  return std::max<int64_t>(steps, 1);
}

uint64_t SampleOrder::FirstSample(uint64_t step) const {
  const auto batch = static_cast<uint64_t>(global_batch);
  if (epoch_end == EpochEnd::kFill) return step * batch;
  const auto steps = static_cast<uint64_t>(StepsPerEpoch());
  return step / steps * static_cast<uint64_t>(num_windows) + step % steps * batch;
}

int64_t SampleOrder::NumSamples(uint64_t step) const {
  if (epoch_end != EpochEnd::kShort) return global_batch;
  const auto begin = static_cast<int64_t>(FirstSample(step) % static_cast<uint64_t>(num_windows));
  return std::min(global_batch, num_windows - begin);
}

uint64_t SampleOrder::NumSamplesBefore(uint64_t step) const {
  return epoch_end == EpochEnd::kShort ? FirstSample(step)
                                       : step * static_cast<uint64_t>(global_batch);
}

int64_t SampleOrder::EpochOf(uint64_t step) const {
  return static_cast<int64_t>(FirstSample(step) / static_cast<uint64_t>(num_windows));
}

uint64_t SampleOrder::StepAt(uint64_t first_sample) const {
  const auto batch = static_cast<uint64_t>(global_batch);
  const auto windows = static_cast<uint64_t>(num_windows);
  const uint64_t step = epoch_end == EpochEnd::kFill
                            ? first_sample / batch
                            : first_sample / windows * static_cast<uint64_t>(StepsPerEpoch()) +
                                  first_sample % windows / batch;
  HL_CHECK(FirstSample(step) == first_sample, "sample ", first_sample,
           " does not begin a step of the global batch ", global_batch);
  return step;
}

}  // namespace halflife::data
