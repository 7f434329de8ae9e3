// The parsed command line as plain values. Parsing only creates a Request. LibTorch is not used
// here. The structs are the targets of the options. The meaning of each field is given at its
// declaration, in the subcommand's file of this folder.
//
//   Request request;
//   MakeProgram(request)->parse(argc, argv);  // program.h
//   std::visit([](const auto& options) { return Run(options); }, request);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ckpt/retention.h"
#include "core/exit_code.h"
#include "data/examples/prepare_examples.h"
#include "data/prepare/prepare.h"
#include "data/synthetic/mqar.h"
#include "eval/eval_options.h"
#include "infer/sampler.h"
#include "interop/export.h"
#include "serve/server_config.h"
#include "train/config/warm_start_rules.h"

namespace halflife::cli {

struct PrepareOptions {
  data::PrepareOutput output;  // The output of all the inputs below, whose own output is unused.
  data::PrepareInput input;  // For text, plain or labelled. The inputs below do not use their own.
  data::PrepareConfig text;
  // The kind of labelled records, instead of text: "classes", "answers" or "".
  std::string labels;
  data::PrepareExamplesConfig examples_config;
  // Instead of text: the name of a task, and its segments. Their lists have equal lengths, or one
  // entry for all segments.
  std::string synthetic;
  data::PrepareMqarConfig mqar;
  std::vector<int64_t> seq_len = {64}, num_pairs = {4}, examples = {100000};
  std::vector<int64_t> validation_examples = {3000}, test_examples = {3000};
};

struct RecipeOptions {
  std::vector<std::string> configs;  // Later files override fields of earlier ones.
  std::vector<std::string> overrides;
  bool explain = false;
};

struct MixersOptions {
  std::string name;
  bool json = false;
};

struct TrainOptions {
  std::vector<std::string> configs;  // Later files override fields of earlier ones.
  std::vector<std::string> overrides;
  std::string run;
  std::string resume = "auto";
  std::vector<std::string> allow_change;
  int64_t skip_data = 0;
  bool steal_lock = false, dry_run = false, json = false;
  std::optional<std::string> plan, against;
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

// The device and the type of computation. The precision auto, for commands that decode token by
// token, is bf16 on a GPU and fp32 on the CPU: on a GPU, the time of a token is that of reading the
// weights.
struct ComputeOptions {
  std::string device = "auto", precision = "fp32";
};

struct EvalOptions {
  ComputeOptions compute;
  std::string model, weights = "main", tokenizer, data, split = "validation";
  std::vector<std::string> texts;
  std::string tasks;  // A file of questions. Empty: off.
  int64_t seq_len = 0, windows = 0, batch = 8;
  int threads = 0;
  bool bigram = false, json = false;
  std::vector<int64_t> lengths;  // Not empty: a table by length, with the fields below.
  std::vector<std::string> methods = {"as_trained"}, protocols = {"segments"};
  // passkey, mqar or a task of RULER, with the next four fields. Empty: a table of losses.
  std::string retrieval;
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1};
  int64_t samples = 20, pairs = 4;
  uint64_t seed = 0;
  std::string explain;  // A file. Empty: off.
  int64_t top = 5;      // Number of tokens per layer that `explain` names.
  int64_t bin = 0;
  bool recall = false, attention = false;
  std::string out, csv, figure;
};

struct ScoreOptions {
  ComputeOptions compute;
  std::string model, weights = "main", tokenizer, tokens, out = "-";
  std::vector<std::string> texts;
  data::SpecialTokens special_tokens = data::SpecialTokens::kParse;
  eval::ScoreConfig score;
  int threads = 0;
};

struct GenerateOptions {
  ComputeOptions compute = {.precision = "auto"};
  std::string model, weights = "main", tokenizer;
  std::optional<std::string> prompt;  // One of prompt and prompts.
  std::string prompts;                // A file.
  bool chat = false;                  // Without prompt and prompts: a conversation at the terminal.
  std::string system, chat_template;  // With chat. Empty: none; as ServeOptions::chat_template.
  int64_t batch = 8;                  // Number of texts at a time.
  int64_t samples = 1;                // Texts per prompt. Text i has the seed plus i.
  data::SpecialTokens special_tokens = data::SpecialTokens::kParse;
  infer::GenerateConfig generate;
  std::vector<std::string> stops;
  int threads = 1;  // The matrices of one token are too small for several threads.
  bool stats = false, ignore_eos = false, json = false;
};

struct ServeOptions {
  ComputeOptions compute = {.precision = "auto"};
  std::string model, tokenizer, host = "127.0.0.1";
  std::string chat_template;  // Empty: the tokenizer's, else chatml.
  int port = 8080;
  serve::ServerConfig server;
  int threads = 1;  // The matrices of a few tokens are too small for several threads.
};

struct ExportOptions {
  std::string run, out, tokenizer, dtype = "fp32";
  interop::ExportOptions exported;
};

struct ImportOptions {
  std::string from, out;
  std::string layout;  // Empty: model_type of config.json.
};

struct InspectOptions {
  std::string path;
  bool json = false;
  int64_t samples = 0;
};

struct CkptOptions {
  std::string verb;  // ls, inspect, verify, ...
  std::vector<std::string> paths;
  std::string out, pattern = "*", states = "all";
  bool json = false, stats = false, bitwise = false, dry_run = false;
  int jobs = 2, world = 1;
  // For prune. Absent values are the recipe's.
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
  std::vector<std::string> words;  // Empty: print the script.
};

// Expands use(Name) for every subcommand, in the order in which `halflife --help` shows them.
#define HL_FOR_EACH_COMMAND(use)                                                                \
  use(Prepare) use(Recipe) use(Mixers) use(Train) use(Sweep) use(Eval) use(Score) use(Generate) \
      use(Serve) use(Export) use(Import) use(Inspect) use(Ckpt) use(Report) use(Doctor)         \
          use(Completion)

// The chosen subcommand, or std::monostate before parsing.
#define HL_ALTERNATIVE(Name) , Name##Options
using Request = std::variant<std::monostate HL_FOR_EACH_COMMAND(HL_ALTERNATIVE)>;
#undef HL_ALTERNATIVE

// Runs a subcommand.
#define HL_RUN(Name) ExitCode Run(const Name##Options& options);
HL_FOR_EACH_COMMAND(HL_RUN)
#undef HL_RUN

}  // namespace halflife::cli
