// halflife generate: text from a prompt, streamed.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"
#include "cli/command_line/place.h"
#include "cli/command_line/value_checks.h"

namespace halflife::cli {

void AddGenerate(CLI::App& app, Request& request) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt");
  DescribeUse(
      *command,
      {.notes = "The text goes to stdout as it is made, --stats to stderr. Where a model knows so "
                "many positions and no more, a text ends there, with a warning.",
       .examples = {"halflife generate --model runs/first --prompt 'In the beginning' "
                    "--max-tokens 300 --temperature 0.8 --top-p 0.95 --stats"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kNonFinite,
                      ExitCode::kNoUsableCheckpoint}});
  infer::GenerateConfig& generate = options->generate;
  command->add_option("--model", options->model, kModelHelp)->type_name("RUN")->required();
  command
      ->add_option("--prompt", options->prompt,
                   "The text to continue; - is standard input, as it is")
      ->required();
  command->add_option("--tokenizer", options->tokenizer, "A tokenizer folder [the run's]")
      ->type_name("DIR");
  AddPlace(*command, options->place);
  command->add_option("--threads", options->threads, "LibTorch threads")
      ->check(NumThreads(1))
      ->capture_default_str();
  command->add_flag("--stats", options->stats, "Print tokens/s and the size of the state");

  command->add_flag_callback(
      "--no-cuda-graph", [options] { options->generate.decoder.use_graph = false; },
      "On a GPU start each token's kernels one by one");

  command->option_defaults()->group("Length");
  command->add_option("--max-tokens", generate.max_tokens, "New tokens at most")
      ->check(AtLeast(0))
      ->capture_default_str();
  command->add_flag("--ignore-eos", options->ignore_eos, "Go on past the end of a document");

  command->option_defaults()->group("Sampling");
  command
      ->add_option("--temperature", generate.sampler.temperature,
                   "Divides the logits; 0: the most likely token")
      ->capture_default_str();
  command
      ->add_option("--top-k", generate.sampler.top_k, "Draw from the k most likely; 0: all tokens")
      ->capture_default_str();
  command
      ->add_option("--top-p", generate.sampler.top_p,
                   "Draw from the fewest whose probability reaches p; 1: all tokens")
      ->capture_default_str();
  command->add_option("--seed", generate.sampler.seed, "Of the draws: the same seed, the same text")
      ->check(AtLeast(0))
      ->capture_default_str();
  command->callback([=, &request] { request = *options; });
}

}  // namespace halflife::cli
