// Exports a checkpoint as a folder that `transformers` loads. fla's classes need `import fla`
// first.
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
  // Type of the tensors: kF32 or kBF16. An A_log or dt_bias that bf16 would change is kF32.
  ckpt::StoredDType dtype = ckpt::StoredDType::kF32;
  uint64_t max_shard_bytes = 5'000'000'000;
  std::string model_type = "auto";  // model_type of config.json; "auto" chooses a class.
  std::string weights = "main";     // Or "ema", the moving average of a run that keeps one.
  bool untie = false;               // Writes the head of a tied model as a separate tensor.
  // For a LoRA run: writes adapter_config.json and adapter_model.safetensors as peft does, instead
  // of the merged model.
  bool adapter = false;
};

struct ExportReport {
  std::string model_type, class_name;
  uint64_t bytes = 0;
  bool has_tokenizer = false;
};

// Writes the folder `out`, which must not exist; it is published by one rename. No tokenizer files
// are written if `tokenizer` is null. Needs a few MiB of memory. Throws kUsage if no class can
// express the model (with all reasons) or the adapter, if the tokenizer has more ids than the
// model, or if `out` exists; also kNonFinite and kEnvironment.
ExportReport ExportModel(const ckpt::StepReader& step, const data::Tokenizer* tokenizer,
                         const std::filesystem::path& out, const ExportOptions& options);

}  // namespace halflife::interop
