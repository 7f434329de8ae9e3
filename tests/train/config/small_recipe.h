// A small recipe that tests of plans modify.
#pragma once

#include <string>
#include <vector>

#include "train/config/run_config.h"

namespace halflife::train {

inline RunConfig SmallRecipe(const std::vector<std::string>& overrides = {}) {
  constexpr char kRecipe[] = R"(
    data { path: "d" seq_len: 256 }
    model { vocab_size: 1000 model_dim: 64 num_layers: 2
            mixer { gla { num_heads: 2 } } }
    train { steps: 10 global_batch: 32 micro_batch: 16 device: "cpu" }
  )";
  return ParseRunConfig(kRecipe, "recipe", overrides);
}

}  // namespace halflife::train
