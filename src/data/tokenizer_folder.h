// Detects the kind of a tokenizer on disk and loads it.
//
//   const auto tokenizer = OpenTokenizer("Qwen2-0.5B/");   // as `prepare --tokenizer` does
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "data/tokenizer.h"

namespace halflife::data {

// The names of the files in a tokenizer folder: one file with the kind, and the files that this
// kind needs.
constexpr char kTokenizerKindFile[] = "kind.txt";
constexpr char kSentencePieceFile[] = "sentencepiece.model";
constexpr char kTokenizerJsonFile[] = "tokenizer.json";
constexpr char kHfSentencePieceFile[] = "tokenizer.model";  // in a Hugging Face folder
constexpr char kAddedTokensFile[] = "added_tokens.json";    // next to tokenizer.model: ids by token
constexpr char kTokenizerConfigFile[] = "tokenizer_config.json";
constexpr char kAddBosToken[] = "add_bos_token";     // its key for Tokenizer::begins_with_bos
constexpr char kPrependScheme[] = "prepend_scheme";  // ours, for Tokenizer::prefix_space
constexpr char kBytesKind[] = "bytes";
constexpr char kSentencePieceKind[] = "sentencepiece";
constexpr char kBpeKind[] = "bpe";

// Opens `bytes`, a sentencepiece .model file, a tokenizer.json with the files next to it, a folder
// as described below, or the tokenizer of the folder of a dataset or a run. Throws Error kData with
// the problem and a fix.
std::unique_ptr<Tokenizer> OpenTokenizer(const std::string& name);

// Opens the tokenizer of a folder, the first of these that exists: that of a dataset or run
// (kind.txt), byte-level BPE in tokenizer.json, a sentencepiece tokenizer.model, and ByT5's
// tokenizer_config.json. The last three are the forms of Hugging Face models. Returns null if there
// is none. Throws Error kData if a tokenizer cannot be read, or if the folder has only the
// vocabulary of an unsupported kind.
std::unique_ptr<Tokenizer> FindTokenizer(const std::filesystem::path& folder);

// The name of a rule in the tokenizers library ("always", "first", "never"); null for kModel.
const char* PrependScheme(PrefixSpace prefix_space);
// Returns the rule that Save has written to a tokenizer_config.json. Throws Error kData if it names
// an unknown one.
PrefixSpace SavedPrefixSpace(const std::filesystem::path& config);

// Returns the value of `add_bos_token` in a tokenizer_config.json; false if it does not exist.
bool AddsBos(const std::filesystem::path& config);

}  // namespace halflife::data
