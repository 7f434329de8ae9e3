// What generating is told, without LibTorch: the command line fills it in.
#pragma once

#include <cstdint>

#include "infer/sampler.h"

namespace halflife::infer {

struct GenerateConfig {
  int64_t max_tokens = 200;
  // Generation stops there; -1: never.
  int32_t eos_id = -1;
  // Samples are drawn among the first so many ids (a tokenizer's, where the model's are more); 0: all.
  int64_t vocab_size = 0;
  // Tokens of one prefill forward: bounds its memory.
  int64_t prefill_chunk = 2048;
  SamplerConfig sampler;
};

}  // namespace halflife::infer
