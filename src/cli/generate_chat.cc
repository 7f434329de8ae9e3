// halflife generate --chat: answers the user's messages in one conversation.
#include <unistd.h>

#include <iostream>
#include <utility>

#include "cli/generate_modes.h"
#include "cli/model_source.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "infer/generator.h"
#include "infer/text_stream.h"

namespace halflife::cli {
namespace {

class Conversation {
 public:
  Conversation(const GenerateOptions& options, const infer::LoadedModel& loaded,
               const data::Tokenizer& tokenizer)
      : options_(options),
        model_(*loaded.model),
        tokenizer_(tokenizer),
        prompts_(options, tokenizer),
        decoder_(model_, {.max_texts = 1}) {}

  // Adds a message of the user and the model's answer, which is printed while it is generated.
  void Answer(std::string message) {
    messages_.push_back({.role = "user", .content = std::move(message)});
    FinishedText whole = {.messages = messages_};
    infer::TextStream stream(tokenizer_, StopStrings(options_, &prompts_));
    const auto add = [&](const std::string& text) {
      whole.text += text;
      if (!options_.json) std::cout << text << std::flush;
      return !stream.stopped() && static_cast<bool>(std::cout);
    };
    infer::TextRequest request =
        RequestOf(options_, tokenizer_, &prompts_, prompts_.Encode(messages_, ""));
    infer::RequirePrompt(model_, request.prompt);
    infer::TextResult result;
    request.on_token = [&](const infer::ScoredToken& token) {
      if (token.is_end) return false;
      ++whole.new_tokens;
      return add(stream.Push(token.id));
    };
    request.on_end = [&](const infer::TextResult& ended) { result = ended; };
    const Stopwatch watch;
    decoder_.Add(std::move(request));
    while (decoder_.Advance()) continue;
    seconds_ += watch.Seconds();
    ++num_answers_;
    add(stream.Finish());
    HL_CHECK_AS(ExitCode::kEnvironment, result.end != infer::TextEnd::kNoMemory,
                "there was no memory for an answer to a conversation of ", result.prompt_tokens,
                " tokens. Free memory, or use a shorter conversation.");
    HL_CHECK_AS(ExitCode::kNonFinite, result.error.empty(), result.error);
    whole.finish_reason =
        result.end == infer::TextEnd::kStop || stream.stopped() ? "stop" : "length";
    whole.prompt_tokens = result.prompt_tokens;
    std::cout << (options_.json ? JsonLine(whole) : "\n") << std::flush;
    if (result.end == infer::TextEnd::kPositions)
      HL_WARN("generate", "the answer ends after ", result.new_tokens, " of ",
              options_.generate.max_tokens, " new tokens, at ", model_.LimitOfPositions());
    messages_.push_back({.role = "assistant", .content = whole.text});
  }

  void PrintStats() const {
    if (num_answers_ > 0) PrintBatchStats(num_answers_, decoder_.stats(), seconds_);
  }

 private:
  const GenerateOptions& options_;
  const model::LanguageModel& model_;
  const data::Tokenizer& tokenizer_;
  const ChatPrompts prompts_;
  infer::BatchDecoder decoder_;  // Keeps the states of earlier turns.
  std::vector<data::ChatMessage> messages_;
  int64_t num_answers_ = 0;
  double seconds_ = 0;  // of the answers
};

}  // namespace

ExitCode GenerateChat(const GenerateOptions& options, const infer::LoadedModel& loaded,
                      const data::Tokenizer& tokenizer) {
  HL_CHECK_AS(ExitCode::kUsage, options.generate.max_tokens > 0,
              "--max-tokens 0 leaves no room for an answer. Use 1 or more.");
  Conversation conversation(options, loaded, tokenizer);
  if (options.prompt) {
    constexpr uint64_t kMaxPromptBytes = 1ull << 30;
    conversation.Answer(*options.prompt == "-" ? ReadStream("-", ExitCode::kUsage, kMaxPromptBytes)
                                               : *options.prompt);
    if (options.stats) conversation.PrintStats();
    return ExitCode::kFinished;
  }
  const bool asks = ::isatty(STDIN_FILENO) == 1;
  if (asks) std::cerr << "Write a message and press Enter. Ctrl-D ends the conversation.\n";
  for (std::string line; std::cout;) {
    if (asks) std::cerr << "> " << std::flush;
    if (!std::getline(std::cin, line)) break;
    if (line.find_first_not_of(" \t\r") != std::string::npos) conversation.Answer(line);
  }
  if (options.stats) conversation.PrintStats();
  return ExitCode::kFinished;
}

ChatPrompts::ChatPrompts(const GenerateOptions& options, const data::Tokenizer& tokenizer)
    : tokenizer_(tokenizer),
      chat_(ChatTemplateOf(options.chat_template, tokenizer)),
      system_(options.system),
      end_(data::EndOfTurnOf(tokenizer, chat_)) {}

std::vector<int32_t> ChatPrompts::Encode(std::vector<data::ChatMessage> messages,
                                         const std::string& place) const {
  if (!system_.empty() && (messages.empty() || messages[0].role != "system"))
    messages.insert(messages.begin(), {.role = "system", .content = system_});
  return data::EncodeChat(tokenizer_, chat_.Render(messages, data::GenerationPrompt::kAdd, place))
      .ids;
}

}  // namespace halflife::cli
