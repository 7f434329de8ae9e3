// The subcommands that apply a model to text: generate and score.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"
#include "cli/command_line/modes.h"
#include "cli/command_line/shared_options.h"
#include "cli/command_line/value_checks.h"

namespace halflife::cli {

// halflife generate: continues a prompt and streams the text.
void AddGenerate(CLI::App& app, Request& request) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt");
  DescribeUse(
      *command,
      {.notes =
           "The text is written to stdout while it is generated, and --stats to stderr. A model "
           "with a limited number of positions stops at the limit, with a warning. An eos "
           "token in the prompt does not reset the state. Ctrl-C ends the "
           "command by the signal, which a shell reports as 130.",
       .examples = {"halflife generate --model runs/first --prompt 'In the beginning' "
                    "--max-tokens 300 --temperature 0.8 --top-p 0.95 --stats"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kNonFinite,
                      ExitCode::kNoUsableCheckpoint, ExitCode::kInterrupted}});
  infer::GenerateConfig& generate = options->generate;
  command->add_option("--model", options->model, kModelHelp)->type_name("RUN")->required();
  command->add_option("--prompt", options->prompt, "The text to continue; - is standard input")
      ->required();
  AddTokenizer(*command, options->tokenizer, "the model's");
  AddSpecialTokens(*command, options->special_tokens, "the prompt");
  AddPlace(*command, options->place);
  command->add_option("--threads", options->threads, "LibTorch threads")
      ->check(NumThreads(1))
      ->capture_default_str();
  command->add_flag("--stats", options->stats, "Print tokens/s and the size of the state");

  command->add_flag_callback(
      "--no-cuda-graph", [options] { options->generate.decoder.use_graph = false; },
      "On a GPU, launch the kernels of each token one by one");

  command->option_defaults()->group("Length");
  command->add_option("--max-tokens", generate.max_tokens, "Maximum number of new tokens")
      ->check(AtLeast(0))
      ->capture_default_str();
  command->add_flag("--ignore-eos", options->ignore_eos, "Continue after the end of a document");

  command->option_defaults()->group("Sampling");
  command
      ->add_option("--temperature", generate.sampler.temperature,
                   "Divisor of the logits; 0: always the most likely token")
      ->capture_default_str();
  command
      ->add_option("--top-k", generate.sampler.top_k,
                   "Sample from the k most likely tokens; 0: all tokens")
      ->capture_default_str();
  command
      ->add_option("--top-p", generate.sampler.top_p,
                   "Sample from the fewest tokens whose total probability reaches p; 1: all tokens")
      ->capture_default_str();
  command
      ->add_option("--seed", generate.sampler.seed,
                   "Seed of the sampling. The same seed gives the same text")
      ->check(AtLeast(0))
      ->capture_default_str();
  command->callback([=, &request] { request = *options; });
}

// halflife score: writes log-probabilities of given tokens or texts.
void AddScore(CLI::App& app, Request& request) {
  auto options = std::make_shared<ScoreOptions>();
  CLI::App* command =
      app.add_subcommand("score", "Write log-probabilities of given tokens or texts");
  DescribeUse(
      *command,
      {.notes =
           "Writes one line per sequence: {\"ids\":[...],\"logprobs\":[...]} with logprobs[i] = ln "
           "p(ids[i+1] | ids[..i]) in fp32, or null if that is not finite. Prints the mean, for "
           "--text also in bits per byte (the first token of a text is not scored and counts as "
           "an average one). For a masked language model, the value is ln p(ids[i+1] | all other "
           "ids), with each token masked in a separate row. Under mpirun, the ranks share the "
           "sequences. An eos token inside a sequence does not reset the state. Ctrl-C ends the "
           "command by the signal, which a shell reports as 130, and --out is not written.",
       .examples = {"halflife score --model runs/first --text chapter.txt --out chapter.jsonl"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kNoUsableCheckpoint,
                      ExitCode::kInterrupted}});
  command->add_option("--model", options->model, kModelHelp)->type_name("RUN")->required();
  CLI::Option* tokens =
      command
          ->add_option("--tokens", options->tokens,
                       "JSON file with a list of lists of token ids. It may be a pipe; - is "
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
  command->add_option("--piece", options->score.piece, "Tokens of a sequence per forward pass")
      ->check(AtLeast(1))
      ->capture_default_str();
  command->add_option("--batch-tokens", options->score.batch_tokens, "Tokens per forward pass")
      ->check(AtLeast(1))
      ->capture_default_str();
  AddPlace(*command, options->place);
  command->add_option("--threads", options->threads, "LibTorch threads per rank [all cores]")
      ->check(NumThreads(0));
  Modes modes(*command);
  modes.OnlyWith("--text", {"--tokenizer", "--special-tokens"});
  command->callback([=, &request] {
    modes.Require();
    request = *options;
  });
}

}  // namespace halflife::cli
