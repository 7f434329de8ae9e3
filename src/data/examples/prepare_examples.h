// A dataset of labelled text: rows of texts with their classes, or of prompts with their answers.
//
//   PrepareExamples({.labels = RowLabels::kClasses,
//                    .input = {.paths = {"train.tsv"},
//                              .validation_paths = {"dev.tsv"},
//                              .tokenizer = "bytes"},
//                    .rules = {.row_len = 128},
//                    .output = {.out = "reviews.data"}});
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/examples/example.h"
#include "data/prepare_input.h"
#include "data/prepare_output.h"

namespace halflife::data {

struct PrepareExamplesConfig {
  RowLabels labels = RowLabels::kClasses;  // or kAnswers
  // .tsv with a first line of names, or .jsonl. Without validation_paths examples are split by the
  // text, or the prompt (without one the answer). The field is that of kClasses.
  PrepareInput input;
  std::vector<std::string> test_inputs;
  ExampleRules rules;
  std::string label_field = "label";                             // of kClasses
  std::string prompt_field = "prompt", answer_field = "answer";  // of kAnswers
  // Names in the order of their numbers. Empty: those of `input`, whole numbers by their size, else
  // by their bytes.
  std::vector<std::string> classes;
  PrepareOutput output;
};

struct ExampleCounts {
  int64_t num_examples = 0, num_rows = 0;
};
struct ExamplesSummary {
  ExampleCounts train, validation, test;
  std::vector<std::string> classes;  // of kClasses
  std::string tokenizer_kind;
  int64_t num_empty = 0;                 // left out: without text, or without an answer
  int64_t num_cut = 0, num_dropped = 0;  // by ExampleRules::too_long
  NameCounts special_names;              // names of special tokens that were read as characters
  // Of the validation and test splits: examples whose text, or prompt, is one of --input's, too.
  int64_t num_held_out_in_train = 0;
  double seconds = 0;
  Hash128 hash;  // of the manifest
};

// A function of the files and the config but for `out`, `threads` and file names. Error kUsage for
// options that cannot be, kData with file and line for records that cannot.
ExamplesSummary PrepareExamples(const PrepareExamplesConfig& config);

}  // namespace halflife::data
