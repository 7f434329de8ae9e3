#include "interop/hf_tokenizer.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"
#include "data/tokenizer_folder.h"
#include "interop/hf_sentencepiece.h"

namespace halflife::interop {
namespace {

using Files = std::map<std::string, std::string>;

Files ByteFiles(const data::Tokenizer&) {
  // Without extra_ids, the tokenizer would append 125 sentinels to the bytes.
  const nlohmann::ordered_json config = {{"tokenizer_class", "ByT5Tokenizer"},
                                         {"extra_ids", 0},
                                         {"pad_token", "<pad>"},
                                         {"eos_token", "</s>"},
                                         {"unk_token", "<unk>"}};
  return {{data::kTokenizerConfigFile, config.dump(2) + "\n"}};
}

Files SentencePieceFiles(const data::Tokenizer& tokenizer) {
  const std::string model = tokenizer.Files().at(data::kSentencePieceFile);
  const SentencePieceJson json = ConvertSentencePiece(model, tokenizer.special_ids());
  return {{data::kTokenizerJsonFile, json.tokenizer},
          {data::kTokenizerConfigFile, json.config},
          {data::kHfSentencePieceFile, model}};
}

Files BpeFiles(const data::Tokenizer& tokenizer) { return tokenizer.Files(); }

struct Format {
  const char* kind;
  Files (*make)(const data::Tokenizer&);
};
constexpr Format kFormats[] = {{data::kBytesKind, &ByteFiles},
                               {data::kSentencePieceKind, &SentencePieceFiles},
                               {data::kBpeKind, &BpeFiles}};

}  // namespace

Files HfTokenizerFiles(const data::Tokenizer& tokenizer) {
  for (const Format& format : kFormats) {
    if (tokenizer.kind() == format.kind) return format.make(tokenizer);
  }
  HL_FAIL(ExitCode::kInternal, "no Hugging Face form of the tokenizer kind ", tokenizer.kind());
}

void WriteHfTokenizer(const data::Tokenizer& tokenizer, const std::filesystem::path& folder) {
  for (const auto& [name, bytes] : HfTokenizerFiles(tokenizer)) {
    AtomicWriteFile(folder / name, bytes, ExitCode::kData);
  }
  data::WriteChatTemplates(tokenizer.chat_templates(), folder);
}

std::unique_ptr<data::Tokenizer> LoadHfTokenizer(const std::filesystem::path& folder) {
  return data::FindTokenizer(folder);
}

}  // namespace halflife::interop
