// tokenizer.json, the file of the Hugging Face tokenizers library, read for byte-level BPE: the
// tokenizers of GPT-2, Llama 3, Qwen and their like.
//
//   const BpeSpec spec = ReadTokenizerJson(bytes, "gpt2/tokenizer.json");
//
// Every part is either read with exactly the library's meaning or refused by its name, so that ids
// agree wherever a file is accepted. What comes back is consistent: ids are 0 .. n-1, each once;
// all 256 bytes have a token; each merge joins two tokens into a third.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace halflife::data {

struct Merge {
  int32_t left = 0, right = 0, result = 0;
};

// A text that becomes one id wherever it stands.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;     // decodes to nothing
  bool lstrip = false;      // takes the white space before it
  bool rstrip = false;      // takes the white space after it
  bool normalized = false;  // searched for in the normalised text, after the others
};

// One cut of the text: into what the pattern matches, and what lies between.
struct SplitStep {
  std::string pattern;            // empty: no cut
  bool keep_between = true;       // false: text between matches is dropped
  bool add_prefix_space = false;  // before the cut, where the text begins with none
};

struct BpeSpec {
  std::vector<std::string> tokens;  // by id, in the alphabet of byte_alphabet.h where they can be
  int num_model_tokens = 0;         // ids from here on are added tokens alone
  std::vector<Merge> merges;        // by rank
  bool ignore_merges = false;       // a word that is a token is that token
  bool nfc = false;                 // text is brought into normalisation form C first
  std::vector<SplitStep> splits;
  std::vector<AddedToken> added;  // unique contents
  std::string template_end;       // the last special token of the post-processor's template, or ""

  int32_t Find(std::string_view token) const;  // -1: none; linear
};

// Error kData names the file, the part and what is read instead.
BpeSpec ReadTokenizerJson(std::string_view json, const std::string& name);

// Whether the file is for byte-level BPE at all: what decides between it and a sentencepiece model
// beside it. Error kData where it is no JSON object.
bool IsByteLevelBpe(std::string_view json, const std::string& name);

}  // namespace halflife::data
