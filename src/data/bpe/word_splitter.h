// Splits text into words as a tokenizer's pre_tokenizer defines. Merges never cross a word
// boundary.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "data/bpe/regex.h"
#include "data/bpe/tokenizer_json.h"

namespace halflife::data {

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

}  // namespace halflife::data
