// What a user asked for, as plain values: parsing the command line gives a Request, and nothing
// else. No LibTorch here. The structs hold what the options write to; what each means is said where
// it is declared, in the subcommand's file of this folder.
//
//   Request request;
//   MakeProgram(request)->parse(argc, argv);                                    // program.h
//   std::visit([](const auto& options) { return Run(options); }, request);     // run.h
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ckpt/retention.h"
#include "data/examples/prepare_examples.h"
#include "data/prepare/prepare.h"
#include "data/synthetic/prepare_mqar.h"
#include "eval/score_config.h"
#include "infer/config.h"
#include "interop/export.h"
#include "train/config/warm_start_rules.h"

namespace halflife::cli {

struct PrepareOptions {
  data::PrepareOutput output;  // of all that follow, which have none of their own
  data::PrepareInput input;    // of text, plain or labelled, likewise
  data::PrepareConfig text;
  // What labels records have, in place of text: "classes", "answers" or "".
  std::string labels;
  data::PrepareExamplesConfig examples_config;
  // In place of text: the name of a task, and its segments, whose lists are as long as each other
  // or have one entry for all.
  std::string synthetic;
  data::PrepareMqarConfig mqar;
  std::vector<int64_t> seq_len = {64}, num_pairs = {4}, examples = {100000};
  std::vector<int64_t> validation_examples = {3000}, test_examples = {3000};
};

struct RecipeOptions {
  std::vector<std::string> configs;  // a later file changes fields of the earlier ones
  std::vector<std::string> overrides;
  bool explain = false;
};

struct MixersOptions {
  std::string name;
  bool json = false;
};

struct TrainOptions {
  std::vector<std::string> configs;  // a later file changes fields of the earlier ones
  std::vector<std::string> overrides;
  std::string run;
  std::string resume = "auto";
  std::vector<std::string> allow_change;
  bool steal_lock = false, dry_run = false, json = false;
  std::optional<std::string> plan;
  int local_ranks = 1;
  std::string trace;
  int64_t trace_steps = 50;
  bool check_sync = false;
  std::string init_from, init_map, init_new_rows = "refuse";
  train::WarmStartRules init_rules;
};

struct SweepOptions {
  std::string config, out;
  std::vector<std::string> overrides;
  int jobs = 0, retries = 0;
  std::string share = "0/1";
  bool dry_run = false;
};

// Where a model computes, and in what.
struct PlaceOptions {
  std::string device = "auto", precision = "fp32";
};

struct EvalOptions {
  PlaceOptions place;
  std::string model, tokenizer, data, split = "validation";
  std::vector<std::string> texts;
  int64_t seq_len = 0, windows = 0, batch = 8;
  int threads = 0;
  bool bigram = false, json = false;
  std::vector<int64_t> lengths;  // any: a table by length, for which all below is
  std::vector<std::string> methods = {"as_trained"}, protocols = {"segments"};
  std::string retrieval;  // passkey or mqar, for which the next four are; empty: a table of losses
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1};
  int64_t samples = 20, pairs = 4;
  uint64_t seed = 0;
  std::string explain;  // a file; empty: not
  int64_t top = 5;      // of it
  int64_t bin = 0;
  bool recall = false, attention = false;
  std::string out, csv, figure;
};

struct ScoreOptions {
  PlaceOptions place;
  std::string model, tokenizer, tokens, out;
  std::vector<std::string> texts;
  data::SpecialTokens special_tokens = data::SpecialTokens::kParse;
  eval::ScoreConfig score;
  int threads = 0;
};

struct GenerateOptions {
  PlaceOptions place;
  std::string model, tokenizer, prompt;
  data::SpecialTokens special_tokens = data::SpecialTokens::kParse;
  infer::GenerateConfig generate;
  int threads = 1;  // one token's matrices are too small to share
  bool stats = false, ignore_eos = false;
};

struct ExportOptions {
  std::string run, out, tokenizer, dtype = "fp32";
  interop::ExportOptions exported;
};

struct ImportOptions {
  std::string from, out;
  std::string layout;  // empty: config.json's model_type
};

struct InspectOptions {
  std::string path;
  bool json = false;
};

struct CkptOptions {
  std::string verb;  // ls, inspect, verify, ...
  std::vector<std::string> paths;
  std::string out, pattern = "*", states = "main,adam_m,adam_v";
  bool json = false, stats = false, bitwise = false, dry_run = false;
  int jobs = 2, world = 1;
  // Of prune; what is not given is the recipe's.
  std::optional<int> keep_last, keep_every;
  std::optional<std::string> keep_best;
};

struct ReportOptions {
  std::vector<std::string> runs;
  std::string out;
};

struct DoctorOptions {
  std::string run = "runs";
  bool json = false, quick = false;
};

struct CompletionOptions {
  std::string shell;
};

// The one subcommand that was chosen; std::monostate before parsing.
#define HL_COMMAND(Name) , Name##Options
using Request = std::variant<std::monostate
#include "cli/command_line/commands.inc"
                             >;
#undef HL_COMMAND

}  // namespace halflife::cli
