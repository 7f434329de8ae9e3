// Reads tokenizer.json, the file format of the Hugging Face tokenizers library, for byte-level BPE.
// This covers the tokenizers of GPT-2, Llama 3, Qwen and similar models.
//
// Every part is either read with exactly the library's meaning or rejected by name, so that ids
// agree for every accepted file. The result is consistent: ids are 0 .. n-1, each used once; all
// 256 bytes have a token; each merge joins two tokens into a third.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace halflife::data {

struct Merge {
  int32_t left = 0, right = 0, result = 0;
};

// A text that becomes a single id at every place where it occurs.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;     // decodes to no text
  bool lstrip = false;      // includes the white space before it
  bool rstrip = false;      // includes the white space after it
  bool normalized = false;  // matched in the normalized text, after all others
};

// One step of splitting the text into the matches of a pattern and the text between them.
struct SplitStep {
  std::string pattern;            // empty: no split
  bool keep_between = true;       // false: text between matches is dropped
  bool add_prefix_space = false;  // adds a space first if the text begins with none
};

struct BpeSpec {
  std::vector<std::string> tokens;  // by id; written in the alphabet of merger.h if possible
  int num_model_tokens = 0;         // ids from here on are only added tokens
  std::vector<Merge> merges;        // by rank
  bool ignore_merges = false;       // a word that is itself a token becomes that token
  bool nfc = false;                 // text is first normalized to form C
  std::vector<SplitStep> splits;
  std::vector<AddedToken> added;  // their contents are unique
  // The special tokens at the ends of the post-processor's template, or "".
  std::string template_begin, template_end;

  int32_t Find(std::string_view token) const;  // -1 if there is none; linear time
};

// Throws Error kData that names the file, the part and the supported alternative.
BpeSpec ReadTokenizerJson(std::string_view json, const std::string& name);

// Returns the special token with which a post_processor begins each text; "" if there is none, or
// several.
std::string BeginOfTemplate(const nlohmann::json& post_processor);

// True if the file is for byte-level BPE. This decides between it and a sentencepiece model in the
// same folder. Throws Error kData if the file is not a JSON object.
bool IsByteLevelBpe(std::string_view json, const std::string& name);

}  // namespace halflife::data
