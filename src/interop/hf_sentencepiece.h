// A sentencepiece model as tokenizer.json: the same pieces and rules in the terms of the Hugging
// Face tokenizers library, which then gives the same ids.
//
//   const SentencePieceJson json = ConvertSentencePiece(model_bytes, tokenizer.special_ids());
//
// Exact for BPE models. For unigram models too, but for rounding between paths of equal score;
// under nmt_nfkc both see combining marks that follow a composed character differently.
#pragma once

#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace halflife::interop {

struct SentencePieceJson {
  std::string tokenizer;  // tokenizer.json
  std::string config;     // tokenizer_config.json
};

// Error kData: no model, or one without an exact form there (word and char models, user-defined or
// unused pieces, white space as suffix), by name.
SentencePieceJson ConvertSentencePiece(std::string_view model_bytes, const data::SpecialIds& ids);

}  // namespace halflife::interop
