// The names inside a tokenizer folder: one file that says the kind, and what that kind needs.
#pragma once

namespace halflife::data {

constexpr char kTokenizerKindFile[] = "kind.txt";
constexpr char kSentencePieceFile[] = "sentencepiece.model";
constexpr char kTokenizerJsonFile[] = "tokenizer.json";
constexpr char kHfSentencePieceFile[] = "tokenizer.model";  // in a Hugging Face folder
constexpr char kAddedTokensFile[] = "added_tokens.json";    // beside it: ids by token
constexpr char kTokenizerConfigFile[] = "tokenizer_config.json";
constexpr char kBytesKind[] = "bytes";
constexpr char kSentencePieceKind[] = "sentencepiece";
constexpr char kBpeKind[] = "bpe";

}  // namespace halflife::data
