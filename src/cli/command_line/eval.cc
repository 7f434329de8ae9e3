// halflife eval: validation loss and perplexity of a checkpoint, or accuracy on labelled rows and
// masked tokens.
#include <algorithm>
#include <utility>

#include "cli/command_line/declare.h"
#include "eval/eval_options.h"

namespace halflife::cli {
namespace {

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
                   "halflife eval --model runs/first --tasks hellaswag.jsonl",
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

// Declares the options of the model, the scored data and the windows.
void AddScoring(OptionDeclarer& declare, EvalOptions& options) {
  declare.Required("--model RUN", options.model, kModelHelp);
  AddWeights(declare, options.weights);
  CLI::Option* const data =
      declare("--data DATASET", options.data,
              "Dataset folder. Its validation split is scored [none: --text]");
  declare("--split", options.split,
          "Split of --data to score. Labelled rows also have a test split",
          OneOf({"train", "validation", "test"}))
      ->needs(data);
  declare("--text FILE", options.texts,
          "Text files, or folders of .txt files, to score instead of --data. Each file is one "
          "document")
      ->excludes(data);
  declare("--tasks FILE", options.tasks,
          "Instead of the loss, score multiple choice: JSON lines {\"context\", \"choices\", "
          "\"answer\"}. Prints the accuracy, and the accuracy by log-probability per character "
          "(acc and acc_norm of lm-evaluation-harness) [none]")
      ->excludes(data)
      ->excludes("--text");
  AddTokenizer(declare, options.tokenizer, "the model's");
  declare("--seq-len", options.seq_len,
          "Tokens per window [the training length; labelled rows: their length]", AtLeast(1));
  declare("--windows", options.windows,
          "Number of windows to score, spread over the split by a fixed permutation [all]",
          AtLeast(0));
  declare("--batch", options.batch, "Windows per forward pass", AtLeast(1));
  AddCompute(declare, options.compute);
  declare("--threads", options.threads, "LibTorch threads per rank [all cores]", NumThreads(0));
  declare
      .Flag("--bigram", options.bigram,
            "Also score an add-one-smoothed bigram model of the training split")
      ->needs(data);
  declare.Flag("--json", options.json, "Print JSON");
}

void AddExplain(OptionDeclarer& declare, EvalOptions& options) {
  declare.BeginMode("Explanations (--explain)");
  declare("--explain FILE", options.explain,
          "Instead of the loss, report the tokens of the first window (or of the first --windows "
          "windows) with the largest weights in leap and fastformer layers. The JSON file contains "
          "the weights of all tokens [none]");
  declare("--top", options.top, "Number of tokens to print per layer", AtLeast(1));
}

void AddLengths(OptionDeclarer& declare, EvalOptions& options) {
  declare.BeginMode("Tables by length (--lengths)");
  declare("--lengths N,...", options.lengths,
          "Row lengths in tokens. Prints a table of perplexity by length. Each must divide the "
          "longest, so that all score the same targets. --windows counts windows of the longest "
          "length",
          AtLeast(1));
  declare("--method METHOD,...", options.methods,
          "How attention handles lengths other than the training length. A method is a list of "
          "steps joined by '+' that set different things: " +
              eval::LengthMethodNames());
  declare("--protocol PROTOCOL,...", options.protocols,
          "How rows of a length score the text. segments: adjacent rows, each from an empty state. "
          "sliding:STRIDE: each row scores its last STRIDE tokens. carried:PIECE: like segments, "
          "but in pieces with a carried state, so memory is constant");
  declare("--bin", options.bin, "Also write the loss per block of N positions to --out [none]",
          AtLeast(1));
  declare.Flag("--recall", options.recall,
               "Also report perplexity separately for tokens that occurred earlier in their "
               "document of the row and for new tokens, and the same for pairs of tokens");
  declare.Flag("--attention", options.attention,
               "Also report the entropy of softmax attention by the number of keys that a query "
               "sees, and its resolution of distances");
  declare("--out FILE", options.out,
          "JSON file with the results. A later call continues from it. - is standard output "
          "[none]");
  declare("--csv FILE", options.csv, "Write the table as CSV [none]");
  declare("--figure FILE", options.figure, "Write the curves as SVG [none]");
}

void AddRetrieval(CLI::App& command, OptionDeclarer& declare, EvalOptions& options) {
  constexpr char kHeadline[] = "Retrieval from text (--retrieval)";
  declare.BeginMode(kHeadline);
  declare("--retrieval", options.retrieval,
          "With --lengths: instead of the loss, report how often the model retrieves hidden "
          "information: a passkey of five digits, pairs of tokens (mqar), or a task of RULER: the "
          "number of one of several words (multi_key), all numbers of a word (multi_value), or the "
          "variables of a chain of assignments (variables) [none]",
          OneOf({"passkey", "mqar", "multi_key", "multi_value", "variables"}))
      ->needs(command.get_option("--lengths"));
  declare("--depths DEPTH,...", options.depths,
          "Positions of the hidden information, from 0 (beginning) to 1 (end)",
          BetweenNumbers(0, 1));
  declare("--samples", options.samples, "Number of prompts per cell of the table", AtLeast(1));
  declare("--seed", options.seed,
          "Seed of the hidden information and of the positions of the texts", AtLeast(0));
  declare.BeginGroup(kHeadline);  // Not with --retrieval passkey.
  declare("--pairs", options.pairs,
          "Number of pairs of mqar, words of multi_key, numbers of multi_value, or variables of a "
          "chain",
          AtLeast(1));
}

// Removes repeated values, so that each cell of a table is scored once.
template <typename T>
void KeepFirsts(std::vector<T>& values) {
  std::vector<T> kept;
  for (T& value : values)
    if (std::ranges::find(kept, value) == kept.end()) kept.push_back(std::move(value));
  values = std::move(kept);
}

}  // namespace

void AddEval(CLI::App& app, Request& request) {
  auto [command, options] = AddSubcommand<EvalOptions>(
      app, request, "eval", "Validation loss and perplexity of a model", EvalUse());
  OptionDeclarer declare(command);
  AddScoring(declare, options);
  AddExplain(declare, options);
  AddLengths(declare, options);
  AddRetrieval(command, declare, options);
  Exclude(command, "--tasks",
          {"--seq-len", "--windows", "--batch", "--lengths", "--explain", "--out"});
  Exclude(command, "--explain", {"--batch", "--bigram", "--lengths"});
  Exclude(command, "--retrieval", {"--windows", "--protocol", "--bin", "--recall", "--attention"});
  Exclude(command, "--lengths", {"--seq-len", "--bigram"});
  command.parse_complete_callback([&command = command, &options = options] {
    if (options.retrieval.empty() || options.retrieval == "passkey")
      RequireValue(command, "--retrieval", "mqar", {"--pairs"});
    KeepFirsts(options.lengths);
    KeepFirsts(options.methods);
    KeepFirsts(options.protocols);
    KeepFirsts(options.depths);
  });
}

}  // namespace halflife::cli
