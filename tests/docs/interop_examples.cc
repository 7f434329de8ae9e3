// The examples of src/interop's headers. The parameters of a function are the variables that its
// example uses.
#include <nlohmann/json.hpp>

#include "interop/export.h"
#include "interop/hf_model.h"
#include "interop/hf_tokenizer.h"
#include "model/language_model.h"

namespace halflife::interop {

using Path = std::filesystem::path;
using TokenizerPointer = std::unique_ptr<data::Tokenizer>;

void ExportExample(const ckpt::StepReader& step, const data::Tokenizer* tokenizer) {
  using ckpt::StoredDType;
#include "examples/interop/export.h"
}

void HfModelExample(int64_t count, float* out) {
#include "examples/interop/hf_model.h"
}

void HfSentencePieceExample(std::string_view model_bytes, const data::Tokenizer& tokenizer) {
#include "examples/interop/hf_tokenizer.h.2"
}

void HfTokenizerExample(const TokenizerPointer& tokenizer, const Path& hf_folder) {
#include "examples/interop/hf_tokenizer.h"
}

}  // namespace halflife::interop
