// Imports a Hugging Face folder as a run of halflife: step 0 without optimiser state, the
// tokenizer, and a recipe that contains the model. `eval`, `score` and `generate` can use the run
// at once; `train --config RUN/config.textproto` continues from it.
#pragma once

#include <filesystem>

#include "interop/hf_model.h"

namespace halflife::interop {

struct ImportReport {
  int64_t num_parameters = 0;
  bool has_tokenizer = false;
};

// Writes the run `run`, which must not exist; it is published by one rename. `run_config_text`
// becomes its config.textproto. Needs memory for a few blocks. Throws kUsage if `run` exists, kData
// if the folder is not valid, and kCheckpointIo.
ImportReport ImportModel(const HfModel& model, const std::string& run_config_text,
                         const std::filesystem::path& run);

}  // namespace halflife::interop
