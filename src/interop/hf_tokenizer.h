// Reads and writes the tokenizer files of a Hugging Face folder. With these files, the
// AutoTokenizer of transformers and this program's tokenizer produce the same ids.
//
//   WriteHfTokenizer(*tokenizer, hf_folder);
//   const auto same = LoadHfTokenizer(hf_folder);   // special_ids() has bos, eos and pad
//
// | tokenizer | files |
// |---|---|
// | bytes | tokenizer_config.json that names ByT5Tokenizer without sentinels, or tokenizer.json |
// | sentencepiece | tokenizer.json of the model, tokenizer.model itself, tokenizer_config.json |
// | bpe | tokenizer.json as it came, tokenizer_config.json |
//
// The tokenizer's chat templates are written as well (data::ChatTemplates). transformers reads
// the name of a special token in a text, such as "</s>", as that token. SpecialTokens::kParse does
// the same, except that `bytes` has no named special tokens.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace halflife::interop {

// Converts a sentencepiece model to tokenizer.json: the same pieces and rules in the format of the
// Hugging Face tokenizers library, which then produces the same ids.
//
//   const SentencePieceJson json = ConvertSentencePiece(model_bytes, tokenizer.special_ids());
//
// The result is exact for BPE models. For unigram models it is exact except for rounding between
// paths of equal score. Under nmt_nfkc, the two libraries treat combining marks after a composed
// character differently.
struct SentencePieceJson {
  std::string tokenizer;  // tokenizer.json
  std::string config;     // tokenizer_config.json
};

// Throws kData if the bytes are not a sentencepiece model, or if the model cannot be expressed
// exactly (word and char models, user-defined or unused pieces, white space as suffix). The message
// names the reason.
// With `begins_with_bos`, tokenizer.json has a template that begins each text with bos.
SentencePieceJson ConvertSentencePiece(std::string_view model_bytes, const data::SpecialIds& ids,
                                       bool begins_with_bos = false,
                                       data::PrefixSpace prefix_space = data::PrefixSpace::kModel);

// The forms of the tokenizer `bytes`. Some classes cannot load kByT5 (Layout::loads_byt5).
enum class BytesForm {
  kByT5,           // Names ByT5Tokenizer, which appends </s> to a text.
  kTokenizerJson,  // Byte-level BPE without merges, which appends nothing.
};

// Returns the contents of the files by file name. Throws kData if a sentencepiece model cannot be
// expressed exactly as tokenizer.json.
std::map<std::string, std::string> HfTokenizerFiles(const data::Tokenizer& tokenizer,
                                                    BytesForm bytes = BytesForm::kByT5);

// Writes these files and the chat templates to an existing folder.
void WriteHfTokenizer(const data::Tokenizer& tokenizer, const std::filesystem::path& folder,
                      BytesForm bytes = BytesForm::kByT5);

// Reads such files, also if another program wrote them: see data::FindTokenizer. Returns null if
// the folder has no tokenizer.
std::unique_ptr<data::Tokenizer> LoadHfTokenizer(const std::filesystem::path& folder);

}  // namespace halflife::interop
