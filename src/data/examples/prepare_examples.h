// A dataset of labelled text: rows of texts with their classes, or of prompts with their answers.
//
//   PrepareExamples({.labels = RowLabels::kClasses,
//                    .inputs = {"train.tsv"},
//                    .validation_inputs = {"dev.tsv"},
//                    .tokenizer = "bytes",
//                    .out = "reviews.data",
//                    .rules = {.row_len = 128}});
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/examples/example.h"
#include "data/prepare.h"

namespace halflife::data {

struct PrepareExamplesConfig {
  RowLabels labels = RowLabels::kClasses;  // or kAnswers
  // .tsv with a first line of names, or .jsonl.
  std::vector<std::string> inputs;
  std::vector<std::string> validation_inputs, test_inputs;
  std::string tokenizer;  // as OpenTokenizer takes it
  std::filesystem::path out;
  ExampleRules rules;
  std::string text_field = "text", label_field = "label";        // of kClasses
  std::string prompt_field = "prompt", answer_field = "answer";  // of kAnswers
  // Names in the order of their numbers. Empty: those of `inputs`, whole numbers by their size,
  // else by their bytes.
  std::vector<std::string> classes;
  // Without validation_inputs: the share of examples that goes there, by the text, or the prompt
  // (without one the answer).
  double validation_fraction = 0.05;
  uint64_t split_seed = 0;
  int threads = 0;  // 0: all cores
  int64_t shard_tokens = int64_t{1} << 26;
  bool replace_invalid_utf8 = false;
  int64_t max_record_bytes = 16 << 20;
  std::function<void(const PrepareProgress&)> on_progress = nullptr;
  const std::atomic<bool>* stop = nullptr;  // set: give up soon, leave nothing; Error kInterrupted
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
  // Of the validation and test splits: examples whose text, or prompt, is one of --input's, too.
  int64_t num_held_out_in_train = 0;
  double seconds = 0;
  Hash128 hash;  // of the manifest
};

// A function of the files and the config but for `threads`, `out`, and file names. Error kUsage for
// options that cannot be, kData with file and line for records that cannot.
ExamplesSummary PrepareExamples(const PrepareExamplesConfig& config);

}  // namespace halflife::data
