// halflife generate: continues a prompt and streams the text.
#include <ATen/Parallel.h>

#include <csignal>
#include <iostream>

#include "cli/command_line/options.h"
#include "cli/generate_modes.h"
#include "cli/model_source.h"
#include "cli/readable_text.h"
#include "cli/world.h"
#include "core/error.h"
#include "core/files.h"
#include "core/human.h"
#include "core/log.h"
#include "infer/generator.h"
#include "infer/text_stream.h"

namespace halflife::cli {
namespace {

void PrintStats(const infer::GenerateStats& stats) {
  const auto rate = [](int64_t tokens, double seconds) {
    return seconds > 0 ? HumanCount(static_cast<double>(tokens) / seconds) : std::string("-");
  };
  std::cerr << "prompt  " << stats.prompt_tokens << " tokens, "
            << rate(stats.prompt_tokens, stats.prefill_seconds) << " tokens/s\n"
            << "new     " << stats.new_tokens << " tokens, "
            << rate(stats.new_tokens, stats.decode_seconds) << " tokens/s\n"
            << "state   " << HumanBytes(stats.state_bytes) << "\n";
}

std::string ReadPrompt(const GenerateOptions& options, const data::Tokenizer& tokenizer) {
  constexpr uint64_t kMaxPromptBytes = 1ull << 30;
  const std::string prompt =
      options.prompt == "-" ? ReadStream("-", ExitCode::kUsage, kMaxPromptBytes) : *options.prompt;
  CheckReadable("--prompt", prompt, tokenizer, options.special_tokens, ExitCode::kUsage);
  if (options.special_tokens == data::SpecialTokens::kPlain) {
    data::NameCounts names;
    tokenizer.CountSpecialNames(prompt, names);
    WarnOfSpecialNames("generate", "--prompt", names, kParseThem);
  }
  return prompt;
}

void GenerateOne(const GenerateOptions& options, const infer::LoadedModel& loaded,
                 const data::Tokenizer& tokenizer, const std::string& prompt,
                 const infer::GenerateConfig& config) {
  FinishedText whole = {.prompt = prompt};
  const std::vector<int32_t> ids = tokenizer.EncodeText(whole.prompt, options.special_tokens);
  infer::RequirePrompt(*loaded.model, ids);  // Before any text is printed.
  infer::TextStream stream(tokenizer, StopStrings(options));
  const auto print = [&](const std::string& text) {
    if (options.json)
      whole.text += text;
    else
      std::cout << text << std::flush;
  };
  if (!options.json) print(whole.prompt);
  const infer::GenerateStats stats = infer::Generate(*loaded.model, ids, config, [&](int32_t id) {
    print(stream.Push(id));
    return !stream.stopped() && static_cast<bool>(std::cout);  // A closed pipe ends the text.
  });
  print(stream.Finish());
  whole.finish_reason = stats.reached_eos || stream.stopped() ? "stop" : "length";
  whole.prompt_tokens = stats.prompt_tokens, whole.new_tokens = stats.new_tokens;
  std::cout << (options.json ? JsonLine(whole) : "\n") << std::flush;
  if (stats.reached_limit)
    HL_WARN("generate", "the text ends after ", stats.new_tokens, " of ", config.max_tokens,
            " new tokens, at ", loaded.model->LimitOfPositions());
  if (options.stats) PrintStats(stats);
}

ExitCode GenerateSamples(const GenerateOptions& options, const infer::LoadedModel& loaded,
                         const data::Tokenizer& tokenizer) {
  infer::GenerateConfig config = options.generate;
  if (!options.ignore_eos) config.eos_id = tokenizer.eos_id();
  config.vocab_size = tokenizer.vocab_size();
  const std::string prompt = ReadPrompt(options, tokenizer);
  for (int64_t i = 0; i < options.samples && std::cout; ++i, ++config.sampler.seed) {
    if (i > 0 && !options.json) std::cout << "---\n";
    GenerateOne(options, loaded, tokenizer, prompt, config);
  }
  return ExitCode::kFinished;
}

}  // namespace

ExitCode Run(const GenerateOptions& options) {
  HL_CHECK_AS(ExitCode::kUsage, options.prompt || !options.prompts.empty() || options.chat,
              "there is nothing to continue. Use --prompt TEXT, --prompts FILE.jsonl or --chat.");
  HL_CHECK_AS(ExitCode::kUsage, options.samples == 1 || !options.chat || !options.prompts.empty(),
              "--samples does not apply to a conversation. Use --chat with --prompts FILE.jsonl.");
  at::set_num_threads(options.threads);
  WarnOfBusyCores(options.threads);
  // Checks the options before the model is loaded.
  const infer::Sampler check(options.generate.sampler);
  StopStrings(options);
  const infer::LoadedModel loaded =
      LoadAnyModel(options.model, options.tokenizer, PlacementOf(options.compute), options.weights);
  infer::RequireNextTokens(*loaded.model);
  const data::Tokenizer& tokenizer = infer::RequireTokenizer(loaded);
  std::signal(SIGPIPE, SIG_IGN);  // A closed pipe fails std::cout and ends the text.
  if (!options.prompts.empty()) return GenerateFromFile(options, loaded, tokenizer);
  return options.chat ? GenerateChat(options, loaded, tokenizer)
                      : GenerateSamples(options, loaded, tokenizer);
}

}  // namespace halflife::cli
