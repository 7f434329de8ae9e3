// halflife eval: validation loss and perplexity of a checkpoint, or accuracy on labelled rows and
// hidden tokens.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "cli/command_line/command.h"
#include "cli/command_line/modes.h"
#include "cli/command_line/place.h"
#include "cli/command_line/text_options.h"
#include "cli/command_line/value_checks.h"
#include "eval/length_method_help.h"

namespace halflife::cli {
namespace {

constexpr char kExplainGroup[] = "What was looked at (--explain)";
constexpr char kLengthsGroup[] = "Tables by length (--lengths)";
constexpr char kRetrievalGroup[] = "What is hidden in the text (--retrieval)";

Use EvalUse() {
  return {
      .table = "--method, each with the [default] of its number:\n" + eval::LengthMethodHelp(),
      .notes =
          "Windows are cut from the documents one after the other, each with its eos, and "
          "start from an empty state; what is left behind the last whole one is not scored. "
          "--windows N scores the same N windows in every call, on any number of ranks. "
          "Under mpirun the ranks share the windows. --text reads as `prepare --documents "
          "file` and gives the same numbers: a file is one document of UTF-8, unpacked where "
          "it ends in .gz or .zst. Bits per byte compare models with different tokenizers: "
          "the loss in bits, times (tokens - documents) / bytes of text of the whole split. So a "
          "document's eos counts in place of its first token, which nothing predicts, and "
          "with the bytes tokenizer it is the loss / ln 2. A labelled row is a window; accuracy "
          "is the share of labels that are the model's likeliest token, also by segment where the "
          "dataset has several. Ctrl-C ends the command by the signal, which a shell reports as "
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

// What is scored.
void AddScored(CLI::App& command, EvalOptions& options) {
  CLI::Option* data =
      command
          .add_option("--data", options.data,
                      "A dataset folder, whose validation split is scored [none: --text]")
          ->type_name("DATASET");
  command
      .add_option("--split", options.split,
                  "Another split of --data; labelled rows have a test split")
      ->check(OneOf({"train", "validation", "test"}))
      ->capture_default_str();
  CLI::Option* text =
      command
          .add_option("--text", options.texts,
                      "Text files instead of --data, each one document, read by the tokenizer")
          ->type_name("FILE");
  data->excludes(text);
}

void AddExplain(CLI::App& command, EvalOptions& options) {
  command.option_defaults()->group(kExplainGroup);
  command
      .add_option(
          "--explain", options.explain,
          "Instead of the loss: which tokens of the first window, or of the first --windows "
          "windows, layers of leap and fastformer looked at. Prints those with most "
          "weight; the JSON file has the weights of all [none]")
      ->type_name("FILE");
  command.add_option("--top", options.top, "Tokens of a layer to name")
      ->check(AtLeast(1))
      ->capture_default_str();
}

void AddLengths(CLI::App& command, EvalOptions& options) {
  command.option_defaults()->group(kLengthsGroup);
  command
      .add_option("--lengths", options.lengths,
                  "Tokens a row, several: a table of perplexity by length. Each divides the "
                  "longest, so that all score the same targets. --windows counts windows of the "
                  "longest length")
      ->delimiter(',')
      ->check(AtLeast(1))
      ->type_name("N,...");
  command
      .add_option("--method", options.methods,
                  "What attention does at other lengths than in training, each joined of steps by "
                  "'+', of which no two set the same: " +
                      eval::LengthMethodNames())
      ->delimiter(',')
      ->type_name("METHOD,...")
      ->capture_default_str();
  command
      .add_option("--protocol", options.protocols,
                  "How rows of a length score the text: segments (side by side, from nothing), "
                  "sliding:STRIDE (each scores its last STRIDE tokens), carried:PIECE (as "
                  "segments, in pieces on a carried state: memory does not grow with the length)")
      ->delimiter(',')
      ->type_name("PROTOCOL,...")
      ->capture_default_str();
  command
      .add_option("--bin", options.bin,
                  "Tell losses by positions of so many tokens in --out [none]")
      ->check(AtLeast(1));
  command.add_flag("--recall", options.recall,
                   "Also perplexity of tokens that their document in the row has held before, and "
                   "of new ones; likewise of pairs with the token before");
  command.add_flag("--attention", options.attention,
                   "Also what softmax attention looks at: its entropy by the keys that a query "
                   "sees, its resolution of distances");
  command
      .add_option("--out", options.out,
                  "A JSON file, which a later call goes on from; - is standard output [none]")
      ->type_name("FILE");
  command.add_option("--csv", options.csv, "The table as CSV [none]")->type_name("FILE");
  command.add_option("--figure", options.figure, "The curves as SVG [none]")->type_name("FILE");
}

void AddRetrieval(CLI::App& command, EvalOptions& options) {
  command.option_defaults()->group(kRetrievalGroup);
  command
      .add_option("--retrieval", options.retrieval,
                  "With --lengths: instead of the loss, how often the model finds what is hidden "
                  "in the text: a passkey of five digits, or pairs of tokens (mqar) [none]")
      ->check(OneOf({"passkey", "mqar"}));
  command
      .add_option("--depths", options.depths,
                  "Where it is hidden, from 0, the beginning, to 1, the end")
      ->delimiter(',')
      ->check(BetweenNumbers(0, 1))
      ->type_name("DEPTH,...")
      ->capture_default_str();
  command.add_option("--samples", options.samples, "Prompts of a cell")
      ->check(AtLeast(1))
      ->capture_default_str();
  command.add_option("--pairs", options.pairs, "Pairs of a prompt of mqar")
      ->check(AtLeast(1))
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Of what is hidden, and of the places of the texts")
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

// A cell of a table is scored once, however often its place is named.
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
                   "Tokens a window [as trained; of labelled rows: theirs]")
      ->check(AtLeast(1));
  command
      ->add_option("--windows", options->windows,
                   "Windows to score, spread over the split by a fixed permutation [all]")
      ->check(AtLeast(0));
  command->add_option("--batch", options->batch, "Windows of one forward")
      ->check(AtLeast(1))
      ->capture_default_str();
  AddPlace(*command, options->place);
  command->add_option("--threads", options->threads, "Threads a rank [all cores]")
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
