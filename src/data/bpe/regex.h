// Regular expressions of a tokenizer.json, executed by PCRE2 with its JIT compiler, and the
// splitting of text into words that they define.
//
// Patterns come from files and may be hostile. The length and nesting of a pattern, and the steps,
// heap and stack of each search have limits. A search that reaches a limit throws kData.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe/tokenizer_json.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace halflife::data {

struct RegexDeleter {
  void operator()(pcre2_real_code_8* code) const noexcept;
  void operator()(pcre2_real_match_data_8* data) const noexcept;
  void operator()(pcre2_real_match_context_8* context) const noexcept;
  void operator()(pcre2_real_jit_stack_8* stack) const noexcept;
};

// Scratch memory of a search. Works with any Regex, for one search at a time.
class RegexScratch {
 public:
  RegexScratch();

 private:
  friend class Regex;
  std::unique_ptr<pcre2_real_match_data_8, RegexDeleter> data_;
  std::unique_ptr<pcre2_real_jit_stack_8, RegexDeleter> stack_;
  std::unique_ptr<pcre2_real_match_context_8, RegexDeleter> context_;
};

struct ByteSpan {
  size_t begin = 0, end = 0;
};

class Regex {
 public:
  // Compiles `pattern` with the meaning that the tokenizers library gives it (TranslatePattern).
  // Throws Error kData if it is not supported, malformed, too long, or can match an empty text.
  static Regex Compile(const std::string& pattern);

  // Returns the first match that begins at `from` or later; it is never empty. `text` must be valid
  // UTF-8 and `from` a character boundary. Throws Error kData if the search reaches a limit.
  std::optional<ByteSpan> Find(std::string_view text, size_t from, RegexScratch& scratch) const;

 private:
  std::string pattern_;
  std::unique_ptr<pcre2_real_code_8, RegexDeleter> code_;
  bool jit_ = false;
};

// Splits text into words as a tokenizer's pre_tokenizer defines. Merges never cross a word
// boundary.
class WordSplitter {
 public:
  // Throws Error kData if a pattern is not supported.
  explicit WordSplitter(const std::vector<SplitStep>& steps);

  // Calls `on_word` for each word of `text`, in order. Words are never empty. `text` must be valid
  // UTF-8.
  void Split(std::string_view text, RegexScratch& scratch,
             const std::function<void(std::string_view)>& on_word) const;

 private:
  struct Step {
    std::optional<Regex> regex;
    bool keep_between = true;
    bool add_prefix_space = false;
  };
  struct Sink {
    RegexScratch& scratch;
    const std::function<void(std::string_view)>& on_word;
  };
  // Passes `text` through step `index` and all steps after it.
  void Run(size_t index, std::string_view text, const Sink& sink) const;
  void Cut(size_t index, std::string_view text, const Sink& sink) const;

  std::vector<Step> steps_;
};

// Translates patterns of the tokenizers library, which are Oniguruma patterns with Ruby syntax, to
// PCRE2.
//
// The two agree on everything that real tokenizers use, but silently differ elsewhere. For example,
// \h is a hexadecimal digit in Oniguruma and a blank in PCRE2, {1,3}+ repeats in Oniguruma and is
// possessive in PCRE2, and only PCRE2's \s contains U+180E. TranslatePattern therefore translates
// only constructs that are known to mean the same and rejects all others by name. One difference
// remains: characters newer than PCRE2's Unicode tables (version 14 in Debian 12) have no category
// here.
//
// Throws Error kData, naming the unsupported construct and its position.
std::string TranslatePattern(std::string_view pattern);

}  // namespace halflife::data
