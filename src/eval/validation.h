// The mean loss over windows of the validation split, or of other text. Windows are dealt over
// ranks and summed in fp64 in window order, so that the result does not depend on the world size
// beyond the model's own rounding.
#pragma once

#include "data/token_source.h"
#include "dist/communicator.h"
#include "model/language_model.h"

namespace halflife::eval {

struct ValidationConfig {
  int64_t seq_len = 512;
  int64_t num_windows = 0;  // the first so many; 0: all
  int64_t batch = 8;        // rows of one forward
};
struct ValidationResult {
  double loss = 0;  // mean -ln p per target
  int64_t num_targets = 0;
  double bits_per_byte = 0;  // data::BitsPerByte of the loss
  double perplexity() const;
};
// Collective over `control`. Error kData where the tokens are no whole window.
ValidationResult Validate(const model::LanguageModel& model, const data::TokenView& tokens,
                          const ValidationConfig& config, at::Device device,
                          dist::Communicator& control);
// The same over the validation split.
ValidationResult Validate(const model::LanguageModel& model, const data::Dataset& dataset,
                          const ValidationConfig& config, at::Device device,
                          dist::Communicator& control);

}  // namespace halflife::eval
