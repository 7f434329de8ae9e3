// A checkpoint as a folder that `transformers` loads (with `import fla` first for fla's classes).
//
//   const ExportReport report =
//       ExportModel(step, tokenizer, "exports/first", {.dtype = StoredDType::kBF16});
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "ckpt/reader.h"
#include "ckpt/safetensors.h"
#include "data/tokenizer.h"

namespace halflife::interop {

struct ExportOptions {
  ckpt::StoredDType dtype = ckpt::StoredDType::kF32;  // kF32 or kBF16, every tensor
  uint64_t max_shard_bytes = 5'000'000'000;
  std::string model_type = "auto";  // of config.json, where several classes express the model
  bool untie = false;               // write the head of a tied model as a tensor of its own
};

struct ExportReport {
  std::string model_type, class_name;
  uint64_t bytes = 0;
  bool has_tokenizer = false;
};

// `tokenizer` may be null: no tokenizer files. `out` must not exist; it is published by one rename.
// Memory: a few MiB. Errors: kUsage for a model that no class expresses (all reasons), a tokenizer
// with more ids than the model, or an `out` that exists; kNonFinite; kEnvironment.
ExportReport ExportModel(const ckpt::StepReader& step, const data::Tokenizer* tokenizer,
                         const std::filesystem::path& out, const ExportOptions& options);

}  // namespace halflife::interop
