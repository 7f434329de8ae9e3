// The examples of src/interop's headers. The parameters of a function are the variables that its
// example uses.
#include <nlohmann/json.hpp>

#include "interop/export.h"
#include "interop/hf_folder.h"
#include "interop/hf_model.h"
#include "interop/hf_tokenizer.h"
#include "interop/layout.h"
#include "interop/layouts/zoology_modules.h"
#include "model/language_model.h"

namespace halflife::interop {

using Path = std::filesystem::path;
using TokenizerPointer = std::unique_ptr<data::Tokenizer>;

void ConfigReaderExample(const nlohmann::json& json, const Path& folder) {
#include "examples/interop/layout.h.2"
}

void ExportExample(const ckpt::StepReader& step, const data::Tokenizer* tokenizer) {
  using ckpt::StoredDType;
#include "examples/interop/export.h"
}

void HfFolderExample(const Path& path, int64_t count, float* out) {
#include "examples/interop/hf_folder.h"
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

void ZoologyModulesExample(ConfigReader& reader) {
#include "examples/interop/layouts/zoology_modules.h"
}

void PlacementExample() {
#include "examples/interop/layout.h"
}

}  // namespace halflife::interop
