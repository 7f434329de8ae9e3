// halflife generate: text from a prompt, streamed.
#include <CLI/CLI.hpp>

#include <ATen/Parallel.h>

#include <csignal>
#include <iostream>

#include "cli/command.h"
#include "cli/model_source.h"
#include "cli/readable_text.h"
#include "core/files.h"
#include "core/human.h"
#include "infer/generator.h"

namespace halflife::cli {
namespace {

struct Options {
  std::string model, tokenizer, prompt;
  infer::GenerateConfig generate;
  int threads = 1;  // one token's matrices are too small to share
  bool stats = false, ignore_eos = false;
};

void PrintStats(const infer::GenerateStats& stats) {
  const auto rate = [](int64_t tokens, double seconds) {
    return seconds > 0 ? HumanCount(static_cast<double>(tokens) / seconds) : std::string("-");
  };
  std::cerr << "prompt  " << stats.prompt_tokens << " tokens, "
            << rate(stats.prompt_tokens, stats.prefill_seconds) << " tokens/s\n"
            << "new     " << stats.new_tokens << " tokens, "
            << rate(stats.new_tokens, stats.decode_seconds) << " tokens/s\n"
            << "state   " << HumanBytes(static_cast<uint64_t>(stats.state_bytes)) << "\n";
}

ExitCode Run(const Options& options) {
  at::set_num_threads(options.threads);
  const infer::Sampler check(options.generate.sampler);  // bad flags before a long load
  const infer::LoadedModel loaded = LoadAnyModel(options.model, options.tokenizer);
  const data::Tokenizer& tokenizer = infer::RequireTokenizer(loaded);
  constexpr uint64_t kMaxPromptBytes = 1ull << 30;
  const std::string prompt =
      options.prompt == "-" ? ReadStream("-", ExitCode::kUsage, kMaxPromptBytes) : options.prompt;
  CheckReadable("--prompt", prompt, tokenizer, ExitCode::kUsage);
  infer::GenerateConfig config = options.generate;
  if (!options.ignore_eos) config.eos_id = tokenizer.eos_id();
  config.vocab_size = tokenizer.vocab_size();
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe shows in std::cout and ends the text

  data::StreamDecoder decoder(tokenizer);
  std::cout << prompt << std::flush;
  const infer::GenerateStats stats =
      infer::Generate(*loaded.model, tokenizer.Encode(prompt), config, [&](int32_t id) {
        std::cout << decoder.Push(id) << std::flush;
        return static_cast<bool>(std::cout);  // a closed pipe ends it
      });
  std::cout << decoder.Finish() << std::endl;
  if (options.stats) PrintStats(stats);
  return ExitCode::kFinished;
}

}  // namespace

void AddGenerate(CLI::App& app, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt");
  DescribeUse(*command,
              {.notes = "The text goes to stdout as it is made, --stats to stderr.",
               .examples = {"halflife generate --model runs/first --prompt 'In the beginning' "
                            "--max-tokens 300 --temperature 0.8 --top-p 0.95 --stats"},
               .exit_codes = {ExitCode::kEnvironment, ExitCode::kNoUsableCheckpoint}});
  infer::GenerateConfig& generate = options->generate;
  command->add_option("--model", options->model, kModelHelp)->type_name("RUN")->required();
  command
      ->add_option("--prompt", options->prompt,
                   "The text to continue; - is standard input, as it is")
      ->required();
  command->add_option("--tokenizer", options->tokenizer, "A tokenizer folder [the run's]")
      ->type_name("DIR");
  command->add_option("--threads", options->threads, "LibTorch threads")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--stats", options->stats, "Print tokens/s and the size of the state");

  command->option_defaults()->group("Length");
  command->add_option("--max-tokens", generate.max_tokens, "New tokens at most")
      ->check(CLI::NonNegativeNumber)
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
      ->capture_default_str();
  command->callback([=, &action] { action = [options] { return Run(*options); }; });
}

}  // namespace halflife::cli
