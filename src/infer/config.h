// What generating is told, without LibTorch: the command line fills it in.
#pragma once

#include <cstdint>

#include "infer/sampler.h"

namespace halflife::infer {

struct DecoderConfig {
  bool use_graph = true;  // on a GPU, where the model's state is of constant size
};

struct GenerateConfig {
  int64_t max_tokens = 200;
  // Generation stops at this id; -1: at none.
  int32_t eos_id = -1;
  // Samples are drawn among the first so many ids, a tokenizer's, where the model has more; 0: all.
  int64_t vocab_size = 0;
  // One forward of the prefill takes so many tokens, which bounds its memory.
  int64_t prefill_chunk = 2048;
  DecoderConfig decoder;
  SamplerConfig sampler;
};

}  // namespace halflife::infer
