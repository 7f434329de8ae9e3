// Prepares a dataset of labelled text: rows of texts with their classes, of prompts with their
// answers, of conversations, or of prompts with two answers, of which one is preferred.
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
#include "data/prepare/prepare_options.h"

namespace halflife::data {

struct PrepareExamplesConfig {
  RowLabels labels = RowLabels::kClasses;  // kClasses, kAnswers or kPreferences
  // .tsv files whose first line names the columns, or .jsonl files, which preferences must be.
  // Without validation_paths, the split of an example depends on its text or prompt (or on the
  // answer if there is no prompt). The prompt of a conversation is all that comes before the first
  // answer. `input.field` is used only with kClasses.
  PrepareInput input;
  std::vector<std::string> test_inputs;
  ExampleRules rules;
  std::string label_field = "label";    // only with kClasses
  std::string prompt_field = "prompt";  // kAnswers, kPreferences
  std::string answer_field = "answer";  // only with kAnswers
  // Only with kPreferences (data/examples/example.h).
  std::string chosen_field = "chosen", rejected_field = "rejected";
  // With kAnswers: a record is a conversation, and the turns of its assistant are the answers. The
  // field is a list of messages (data/chat/chat_tokens.h), and prompt_field and answer_field are
  // not used.
  bool conversations = false;
  std::string messages_field = "messages";
  // The name of the chat template of conversations, also those of preferences. If empty, the one
  // that is detected in the tokenizer.
  std::string chat_template;
  // Class names in the order of their numbers. If empty, the labels of `input`: sorted numerically
  // if all are whole numbers, otherwise by bytes.
  std::vector<std::string> classes;
  PrepareOutput output;
};

struct ExampleCounts {
  int64_t num_examples = 0, num_rows = 0;
  int64_t num_dropped = 0;  // because of ExampleRules::too_long; not in num_examples
};
struct ExamplesSummary {
  ExampleCounts train, validation, test;
  std::vector<std::string> classes;  // only with kClasses
  std::string tokenizer_kind;
  std::string chat_template;             // of conversations and preferences; may be empty
  int64_t num_empty = 0;                 // skipped because they have no text or no answer
  int64_t num_cut = 0, num_dropped = 0;  // because of ExampleRules::too_long
  NameCounts special_names;              // special token names that were encoded as characters
  // The number of validation and test examples whose text or prompt also occurs in --input.
  int64_t num_held_out_in_train = 0;
  double seconds = 0;
  Hash128 hash;  // hash of the manifest
};

// The result depends only on the files and the config, except `out`, `threads` and file names.
// Throws Error kUsage for invalid options, and Error kData with file and line for invalid records.
ExamplesSummary PrepareExamples(const PrepareExamplesConfig& config);

}  // namespace halflife::data
