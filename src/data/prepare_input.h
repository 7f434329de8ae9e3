// What `prepare` reads, of plain text and of labelled text.
//
//   const PrepareInput input = {.paths = {"books/"}, .tokenizer = "bytes"};
//   input.Check();
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace halflife::data {

constexpr double kUsualValidationShare = 0.05;

struct PrepareInput {
  std::vector<std::string> paths;  // as FindInputFiles takes them
  // Of the validation split. Where there are any, all of `paths` trains, and validation_fraction
  // and split_seed choose nothing.
  std::vector<std::string> validation_paths = {};
  std::string tokenizer = {};  // as OpenTokenizer takes it
  std::string field = "text";  // of a record: the one that holds the text
  // The share of documents that validate, chosen by their content; 0: none. Not set: the usual
  // share, or a tail of that share if there are few documents, all of them whole text files.
  std::optional<double> validation_fraction = std::nullopt;
  uint64_t split_seed = 0;
  double validation_tail = 0;  // as in ChunkerConfig, in place of validation_fraction
  bool replace_invalid_utf8 = false;
  // The longest document or record that is held in memory as a whole.
  int64_t max_document_bytes = int64_t{256} << 20;

  // Error kUsage for what cannot be. Which formats and tokenizers would work is said by those who
  // read them.
  void Check() const;
  double FractionOrUsual() const { return validation_fraction.value_or(kUsualValidationShare); }
};

}  // namespace halflife::data
