#include "cli/chat_prompts.h"

#include <utility>

#include "cli/model_source.h"

namespace halflife::cli {

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
