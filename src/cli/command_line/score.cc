// halflife score: log-probabilities of given tokens or texts.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"
#include "cli/command_line/modes.h"
#include "cli/command_line/place.h"
#include "cli/command_line/text_options.h"
#include "cli/command_line/value_checks.h"

namespace halflife::cli {

void AddScore(CLI::App& app, Request& request) {
  auto options = std::make_shared<ScoreOptions>();
  CLI::App* command = app.add_subcommand("score", "Log-probabilities of given tokens or texts");
  DescribeUse(
      *command,
      {.notes =
           "Writes a line a sequence: {\"ids\":[...],\"logprobs\":[...]} with logprobs[i] = ln "
           "p(ids[i+1] | ids[..i]) in fp32, null where that is not finite, and prints the mean, of "
           "--text also in bits per byte "
           "(a text's first token, which is not scored, counts as an average one). A model of "
           "hidden tokens gives ln p(ids[i+1] | all other ids), each hidden in a row of its own, "
           "whole. Under mpirun the ranks share the sequences. An eos token inside a sequence is "
           "a token like any other: the state is not reset. Ctrl-C ends the command by the "
           "signal, which a shell reports as 130, and --out is not written.",
       .examples = {"halflife score --model runs/first --text chapter.txt --out chapter.jsonl"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kNoUsableCheckpoint,
                      ExitCode::kInterrupted}});
  command->add_option("--model", options->model, kModelHelp)->type_name("RUN")->required();
  CLI::Option* tokens =
      command
          ->add_option("--tokens", options->tokens,
                       "A JSON file: a list of lists of token ids. It may be a pipe; - is "
                       "standard input [none]")
          ->type_name("FILE");
  CLI::Option* text = command
                          ->add_option("--text", options->texts,
                                       "Text files, each one sequence; - is standard input")
                          ->type_name("FILE");
  tokens->excludes(text);
  command->add_option("--out", options->out, "The JSONL file to write; - is standard output")
      ->type_name("FILE")
      ->required();
  AddTokenizer(*command, options->tokenizer, "the model's");
  AddSpecialTokens(*command, options->special_tokens, "--text");
  command->add_option("--piece", options->score.piece, "Tokens of a sequence in one forward")
      ->check(AtLeast(1))
      ->capture_default_str();
  command->add_option("--batch-tokens", options->score.batch_tokens, "Tokens of one forward")
      ->check(AtLeast(1))
      ->capture_default_str();
  AddPlace(*command, options->place);
  command->add_option("--threads", options->threads, "Threads a rank [all cores]")
      ->check(NumThreads(0));
  Modes modes(*command);
  modes.OnlyWith("--text", {"--tokenizer", "--special-tokens"});
  command->callback([=, &request] {
    modes.Require();
    request = *options;
  });
}

}  // namespace halflife::cli
