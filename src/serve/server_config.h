// Options of the server. This header does not use LibTorch, because the command line sets them.
#pragma once

#include <cstdint>
#include <string>

#include "infer/batch_config.h"

namespace halflife::serve {

struct EngineConfig {
  infer::BatchConfig batch;
  int64_t max_queued = 256;  // Texts that wait for the decoder.
};

struct ServerConfig {
  EngineConfig engine;
  std::string model_name;             // As clients call the model.
  int64_t max_prompt_tokens = 32768;  // Further limited by the model's positions.
  int64_t max_new_tokens = 4096;      // Per text.
  int64_t max_body_bytes = int64_t{8} << 20;
  int max_connections = 256;
  double request_seconds = 600;  // Longer requests end with an error.
  double receive_seconds = 20;   // For a client to send its request.
  double drain_seconds = 30;     // For running requests once the server stops.
};

}  // namespace halflife::serve
