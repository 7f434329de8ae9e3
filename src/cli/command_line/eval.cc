// halflife eval: validation loss and perplexity of a checkpoint, or accuracy on labelled rows and
// masked tokens.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "cli/command_line/command.h"
#include "cli/command_line/modes.h"
#include "cli/command_line/shared_options.h"
#include "cli/command_line/value_checks.h"
#include "eval/eval_options.h"

namespace halflife::cli {
namespace {

constexpr char kExplainGroup[] = "Explanations (--explain)";
constexpr char kLengthsGroup[] = "Tables by length (--lengths)";
constexpr char kRetrievalGroup[] = "Retrieval from text (--retrieval)";

Use EvalUse() {
  return {
      .table =
          "Methods for --method, with the [default] of their number:\n" + eval::LengthMethodHelp(),
      .notes =
          "The documents, each with its eos, are concatenated and cut into windows, which start "
          "from an empty state. The rest after the last whole window is not scored. "
          "--windows N scores the same N windows in every call, on any number of ranks. "
          "Under mpirun, the ranks share the windows. --text gives the same numbers as "
          "`prepare --documents file`: each file is one UTF-8 document, decompressed if its "
          "name ends in .gz or .zst. Bits per byte compare models with different tokenizers: "
          "the loss in bits, times (tokens - documents) / bytes of text of the whole split. A "
          "document's eos thus counts instead of its first token, which is not predicted, and "
          "with the bytes tokenizer the value is the loss / ln 2. A labelled row is one window. "
          "Accuracy is the share of labels to which the model gives the highest probability, "
          "also by segment if the dataset has several. Ctrl-C ends the command by the signal, "
          "which a shell reports as "
          "130.",
      .examples = {"halflife eval --model runs/first --data datasets/mine --bigram",
                   "halflife eval --model runs/first --text chapter.txt",
                   "halflife eval --model runs/softmax --data datasets/mine "
                   "--lengths 512,1024,2048 --method as_trained,blocks,yarn+info_scale",
                   "halflife eval --model runs/first --data datasets/mine --lengths 256,512 "
                   "--retrieval passkey --depths 0,0.5,1",
                   "halflife eval --model runs/leap --text chapter.txt --seq-len 256 "
                   "--explain looked_at.json",
                   "halflife eval --model runs/recall --data mqar.data --split test"},
      .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kNoUsableCheckpoint,
                     ExitCode::kInterrupted}};
}

// Adds the options that select the scored data.
void AddScored(CLI::App& command, EvalOptions& options) {
  CLI::Option* data =
      command
          .add_option("--data", options.data,
                      "Dataset folder. Its validation split is scored [none: --text]")
          ->type_name("DATASET");
  command
      .add_option("--split", options.split,
                  "Split of --data to score. Labelled rows also have a test split")
      ->check(OneOf({"train", "validation", "test"}))
      ->capture_default_str();
  CLI::Option* text = command
                          .add_option("--text", options.texts,
                                      "Text files to score instead of --data. Each is one document")
                          ->type_name("FILE");
  data->excludes(text);
}

void AddExplain(CLI::App& command, EvalOptions& options) {
  command.option_defaults()->group(kExplainGroup);
  command
      .add_option(
          "--explain", options.explain,
          "Instead of the loss, report the tokens of the first window (or of the first "
          "--windows windows) with the largest weights in leap and fastformer layers. The JSON "
          "file contains the weights of all tokens [none]")
      ->type_name("FILE");
  command.add_option("--top", options.top, "Number of tokens to print per layer")
      ->check(AtLeast(1))
      ->capture_default_str();
}

void AddLengths(CLI::App& command, EvalOptions& options) {
  command.option_defaults()->group(kLengthsGroup);
  command
      .add_option("--lengths", options.lengths,
                  "Row lengths in tokens. Prints a table of perplexity by length. Each must divide "
                  "the longest, so that all score the same targets. --windows counts windows of "
                  "the longest length")
      ->delimiter(',')
      ->check(AtLeast(1))
      ->type_name("N,...");
  command
      .add_option(
          "--method", options.methods,
          "How attention handles lengths other than the training length. A method is a list "
          "of steps joined by '+' that set different things: " +
              eval::LengthMethodNames())
      ->delimiter(',')
      ->type_name("METHOD,...")
      ->capture_default_str();
  command
      .add_option(
          "--protocol", options.protocols,
          "How rows of a length score the text. segments: adjacent rows, each from an empty "
          "state. sliding:STRIDE: each row scores its last STRIDE tokens. carried:PIECE: "
          "like segments, but in pieces with a carried state, so memory is constant")
      ->delimiter(',')
      ->type_name("PROTOCOL,...")
      ->capture_default_str();
  command
      .add_option("--bin", options.bin,
                  "Also write the loss per block of N positions to --out [none]")
      ->check(AtLeast(1));
  command.add_flag("--recall", options.recall,
                   "Also report perplexity separately for tokens that occurred earlier in their "
                   "document of the row and for new tokens, and the same for pairs of tokens");
  command.add_flag(
      "--attention", options.attention,
      "Also report the entropy of softmax attention by the number of keys that a query "
      "sees, and its resolution of distances");
  command
      .add_option(
          "--out", options.out,
          "JSON file with the results. A later call continues from it. - is standard output [none]")
      ->type_name("FILE");
  command.add_option("--csv", options.csv, "Write the table as CSV [none]")->type_name("FILE");
  command.add_option("--figure", options.figure, "Write the curves as SVG [none]")
      ->type_name("FILE");
}

void AddRetrieval(CLI::App& command, EvalOptions& options) {
  command.option_defaults()->group(kRetrievalGroup);
  command
      .add_option(
          "--retrieval", options.retrieval,
          "With --lengths: instead of the loss, report how often the model retrieves hidden "
          "information: a passkey of five digits, or pairs of tokens (mqar) [none]")
      ->check(OneOf({"passkey", "mqar"}));
  command
      .add_option("--depths", options.depths,
                  "Positions of the hidden information, from 0 (beginning) to 1 (end)")
      ->delimiter(',')
      ->check(BetweenNumbers(0, 1))
      ->type_name("DEPTH,...")
      ->capture_default_str();
  command.add_option("--samples", options.samples, "Number of prompts per cell of the table")
      ->check(AtLeast(1))
      ->capture_default_str();
  command.add_option("--pairs", options.pairs, "Number of pairs per prompt of mqar")
      ->check(AtLeast(1))
      ->capture_default_str();
  command
      .add_option("--seed", options.seed,
                  "Seed of the hidden information and of the positions of the texts")
      ->check(AtLeast(0))
      ->capture_default_str();
}

Modes EvalModes(const CLI::App& command) {
  Modes modes(command);
  modes.OnlyWith("--data", {"--split", "--bigram"});
  modes.OnlyWith("--explain", modes.Group(kExplainGroup));
  modes.NotWith("--explain", {"--batch", "--bigram"});
  modes.OnlyWith("--retrieval mqar", {"--pairs"});
  modes.OnlyWith("--retrieval", modes.Group(kRetrievalGroup));
  modes.NotWith("--retrieval", {"--windows", "--protocol", "--bin", "--recall", "--attention"});
  modes.OnlyWith("--lengths", {"--retrieval"});
  modes.OnlyWith("--lengths", modes.Group(kLengthsGroup));
  modes.NotWith("--lengths", {"--seq-len", "--bigram"});
  return modes;
}

// A cell of a table is scored once, even if its position is named repeatedly.
template <typename T>
void KeepFirsts(std::vector<T>& values) {
  std::vector<T> kept;
  for (T& value : values)
    if (std::ranges::find(kept, value) == kept.end()) kept.push_back(std::move(value));
  values = std::move(kept);
}

}  // namespace

void AddEval(CLI::App& app, Request& request) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command = app.add_subcommand("eval", "Validation loss and perplexity of a model");
  DescribeUse(*command, EvalUse());
  command->add_option("--model", options->model, kModelHelp)->type_name("RUN")->required();
  AddScored(*command, *options);
  AddTokenizer(*command, options->tokenizer, "the model's");
  command
      ->add_option("--seq-len", options->seq_len,
                   "Tokens per window [the training length; labelled rows: their length]")
      ->check(AtLeast(1));
  command
      ->add_option("--windows", options->windows,
                   "Number of windows to score, spread over the split by a fixed permutation [all]")
      ->check(AtLeast(0));
  command->add_option("--batch", options->batch, "Windows per forward pass")
      ->check(AtLeast(1))
      ->capture_default_str();
  AddPlace(*command, options->place);
  command->add_option("--threads", options->threads, "LibTorch threads per rank [all cores]")
      ->check(NumThreads(0));
  command->add_flag("--bigram", options->bigram,
                    "Also score an add-one-smoothed bigram model of the training split");
  command->add_flag("--json", options->json, "Print JSON");

  AddExplain(*command, *options);
  AddLengths(*command, *options);
  AddRetrieval(*command, *options);
  command->get_option("--explain")->excludes(command->get_option("--lengths"));
  command->callback([=, &request, modes = EvalModes(*command)] {
    modes.Require();
    KeepFirsts(options->lengths);
    KeepFirsts(options->methods);
    KeepFirsts(options->protocols);
    KeepFirsts(options->depths);
    request = *options;
  });
}

}  // namespace halflife::cli
