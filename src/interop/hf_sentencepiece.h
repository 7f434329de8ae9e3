// Converts a sentencepiece model to tokenizer.json: the same pieces and rules in the format of the
// Hugging Face tokenizers library, which then produces the same ids.
//
//   const SentencePieceJson json = ConvertSentencePiece(model_bytes, tokenizer.special_ids());
//
// The result is exact for BPE models. For unigram models it is exact except for rounding between
// paths of equal score. Under nmt_nfkc, the two libraries treat combining marks after a composed
// character differently.
#pragma once

#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace halflife::interop {

struct SentencePieceJson {
  std::string tokenizer;  // tokenizer.json
  std::string config;     // tokenizer_config.json
};

// Throws kData if the bytes are not a sentencepiece model, or if the model cannot be expressed
// exactly (word and char models, user-defined or unused pieces, white space as suffix). The message
// names the reason.
SentencePieceJson ConvertSentencePiece(std::string_view model_bytes, const data::SpecialIds& ids);

}  // namespace halflife::interop
