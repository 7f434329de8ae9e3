// What `prepare` reads, of plain text and of labelled text.
//
//   const PrepareInput input = {.paths = {"books/"}, .tokenizer = "bytes"};
//   input.Check();
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace halflife::data {

struct PrepareInput {
  std::vector<std::string> paths;  // as FindInputFiles takes them
  // Of the validation split. Where there are any, all of `paths` trains, and validation_fraction
  // and split_seed choose nothing.
  std::vector<std::string> validation_paths = {};
  std::string tokenizer = {};  // as OpenTokenizer takes it
  std::string field = "text";  // of a record: the one that holds the text
  double validation_fraction = 0.05;
  uint64_t split_seed = 0;
  bool replace_invalid_utf8 = false;
  int64_t max_document_bytes = 16 << 20;  // of a document or record that must be held whole

  // Error kUsage for what cannot be. Which formats and tokenizers would work is said by those who
  // read them.
  void Check() const;
};

}  // namespace halflife::data
