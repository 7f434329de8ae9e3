// A Hugging Face folder as a run of ours: step 0 without optimiser state, the tokenizer, and a
// recipe that holds the model. `eval`, `score` and `generate` take the run at once; `train --config
// RUN/config.textproto` goes on from it.
#pragma once

#include <filesystem>

#include "interop/hf_model.h"

namespace halflife::interop {

struct ImportReport {
  int64_t num_parameters = 0;
  bool has_tokenizer = false;
};

// `run_config_text`: what becomes the run's config.textproto. `run` must not exist; it is published
// by one rename. Memory: a few blocks. Error kUsage for a `run` that exists, kData for a folder
// that is not right, kCheckpointIo.
ImportReport ImportModel(const HfModel& model, const std::string& run_config_text,
                         const std::filesystem::path& run);

}  // namespace halflife::interop
