// The input of `prepare`, for plain text and for labelled text.
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
  std::vector<std::string> paths;  // file names, folders or patterns, see FindInputFiles
  // Inputs of the validation split. If given, all of `paths` is for training, and
  // validation_fraction and split_seed have no effect.
  std::vector<std::string> validation_paths = {};
  std::string tokenizer = {};  // see OpenTokenizer
  std::string field = "text";  // the field of a record that holds the text
  // The share of documents for validation, chosen by their content; 0: none. If not set, the
  // default share is used, or a tail of that share if there are only few documents and all are
  // whole text files.
  std::optional<double> validation_fraction = std::nullopt;
  uint64_t split_seed = 0;
  double validation_tail = 0;  // see ChunkerConfig; replaces validation_fraction
  bool replace_invalid_utf8 = false;
  // The longest document or record that is held in memory as a whole, in bytes.
  int64_t max_document_bytes = int64_t{256} << 20;

  // Throws Error kUsage for invalid values. File formats and tokenizers are checked by the code
  // that reads them.
  void Check() const;
  double FractionOrUsual() const { return validation_fraction.value_or(kUsualValidationShare); }
};

}  // namespace halflife::data
