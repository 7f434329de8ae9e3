#include "interop/hf_tokenizer.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"

namespace halflife::interop {
namespace {

constexpr const char* kConfig = "tokenizer_config.json";

}  // namespace

void WriteHfTokenizer(const data::Tokenizer& tokenizer, const std::filesystem::path& folder) {
  HL_CHECK_AS(ExitCode::kUsage, tokenizer.kind() == "bytes", "a tokenizer of kind ",
              tokenizer.kind(), " is not exported; bytes would work");
  const nlohmann::ordered_json json = {{"tokenizer_class", "ByT5Tokenizer"},
                                       {"extra_ids", 0},
                                       {"pad_token", "<pad>"},
                                       {"eos_token", "</s>"},
                                       {"unk_token", "<unk>"}};
  AtomicWriteFile(folder / kConfig, json.dump(2) + "\n", ExitCode::kEnvironment);
}

std::unique_ptr<data::Tokenizer> LoadHfTokenizer(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / kConfig)) return nullptr;
  const auto json = nlohmann::json::parse(ReadFile(folder / kConfig, ExitCode::kData), nullptr,
                                          /*allow_exceptions=*/false);
  const bool bytes =
      json.is_object() && json.value("tokenizer_class", nlohmann::json()) == "ByT5Tokenizer";
  return bytes ? data::MakeByteTokenizer() : nullptr;
}

}  // namespace halflife::interop
