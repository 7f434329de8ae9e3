// Options of text generation. Does not use LibTorch, because the command line sets them.
#pragma once

#include <cstdint>

#include "infer/sampler.h"

namespace halflife::infer {

struct DecoderConfig {
  bool use_graph = true;  // On a GPU, if the model's state has a constant size.
};

struct GenerateConfig {
  int64_t max_tokens = 200;
  // Generation stops at this id. -1: it does not stop at any id.
  int32_t eos_id = -1;
  // Samples only ids below this number (a tokenizer's vocabulary), if the model has more. 0: all
  // ids.
  int64_t vocab_size = 0;
  // Tokens of the prompt per forward pass of the prefill, which bounds its memory.
  int64_t prefill_chunk = 2048;
  DecoderConfig decoder;
  SamplerConfig sampler;
};

}  // namespace halflife::infer
