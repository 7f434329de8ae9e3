// halflife generate: continues a prompt and streams the text.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"
#include "cli/command_line/place.h"
#include "cli/command_line/text_options.h"
#include "cli/command_line/value_checks.h"

namespace halflife::cli {

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

}  // namespace halflife::cli
