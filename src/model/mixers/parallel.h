// Options of the mixer `parallel`, which adds up the outputs of several mixers of one input.
#pragma once

#include <vector>

#include "model/mixer.h"

namespace halflife::model {

struct ParallelPart : OptionsOf<ParallelPart> {
  MixerConfig mixer;
  double input_multiplier = 1, output_multiplier = 1;

  ParallelPart() = default;
  explicit ParallelPart(MixerConfig of_part, double of_input = 1, double of_output = 1)
      : mixer(std::move(of_part)), input_multiplier(of_input), output_multiplier(of_output) {}
  std::vector<Option> Fields() override {
    return {{"input_multiplier", &input_multiplier}, {"output_multiplier", &output_multiplier}};
  }
  std::vector<PartConfig*> Parts() override { return {&mixer}; }
};

// Makes the mixer `parallel` of these parts.
MixerConfig ParallelMixer(std::vector<ParallelPart> parts);
// Returns the parts of a mixer `parallel`, which is borrowed.
const std::vector<ParallelPart>& PartsOfParallel(const MixerConfig& parallel);

}  // namespace halflife::model
