// The names of the files in a tokenizer folder: one file with the kind, and the files that this
// kind needs.
#pragma once

namespace halflife::data {

constexpr char kTokenizerKindFile[] = "kind.txt";
constexpr char kSentencePieceFile[] = "sentencepiece.model";
constexpr char kTokenizerJsonFile[] = "tokenizer.json";
constexpr char kHfSentencePieceFile[] = "tokenizer.model";  // in a Hugging Face folder
constexpr char kAddedTokensFile[] = "added_tokens.json";    // next to tokenizer.model: ids by token
constexpr char kTokenizerConfigFile[] = "tokenizer_config.json";
constexpr char kBytesKind[] = "bytes";
constexpr char kSentencePieceKind[] = "sentencepiece";
constexpr char kBpeKind[] = "bpe";

}  // namespace halflife::data
