#include "data/examples/preference_record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/chat/chat_tokens.h"

namespace halflife::data {
namespace {

bool HasAnswer(const PreferenceRecord::Answer& answer) {
  return !answer.text.empty() ||
         std::ranges::any_of(answer.messages, [](const ChatMessage& message) {
           return message.role == "assistant" && !message.given;
         });
}

// The number of equal messages at the beginning of both lists, without the last of each.
size_t SharedMessages(const std::vector<ChatMessage>& one, const std::vector<ChatMessage>& other) {
  size_t shared = 0;
  while (shared + 1 < std::min(one.size(), other.size()) &&
         one[shared].role == other[shared].role && one[shared].content == other[shared].content)
    ++shared;
  return shared;
}

// Puts the prompt in front of an answer and marks it as given. Without a prompt, the first
// `num_given` messages are it.
void MarkPrompt(const std::vector<ChatMessage>& prompt, size_t num_given,
                std::vector<ChatMessage>& messages) {
  messages.insert(messages.begin(), prompt.begin(), prompt.end());
  for (size_t i = 0; i < prompt.size() + num_given; ++i) messages[i].given = true;
}

}  // namespace

bool PreferenceRecord::has_answers() const { return HasAnswer(chosen) && HasAnswer(rejected); }

PreferenceRecord ReadPreference(const std::string& prompt, const std::string& chosen,
                                const std::string& rejected, const std::string& place) {
  using nlohmann::json;
  const json of_prompt = prompt.empty() ? json() : json::parse(prompt),
             of_chosen = json::parse(chosen), of_rejected = json::parse(rejected);
  const bool texts = of_chosen.is_string() && of_rejected.is_string();
  const bool lists = of_chosen.is_array() && of_rejected.is_array();
  HL_CHECK_AS(ExitCode::kData, texts || lists, place, "the chosen answer is a JSON ",
              of_chosen.type_name(), " and the rejected one a JSON ", of_rejected.type_name(),
              ". Use two strings, or two lists of messages.");
  PreferenceRecord record;
  if (texts) {
    HL_CHECK_AS(ExitCode::kData, of_prompt.is_string(), place,
                prompt.empty() ? "the record has no prompt"
                               : Concat("the prompt is a JSON ", of_prompt.type_name()),
                ". Answers that are texts need a prompt that is a text; choose it with "
                "--prompt-field.");
    record.prompt = of_prompt.get<std::string>();
    record.chosen.text = of_chosen.get<std::string>();
    record.rejected.text = of_rejected.get<std::string>();
    return record;
  }
  record.chosen.messages = ReadChatMessages(chosen, place);
  record.rejected.messages = ReadChatMessages(rejected, place);
  const std::vector<ChatMessage> before =
      of_prompt.is_array() ? ReadChatMessages(prompt, place) : std::vector<ChatMessage>();
  const size_t shared =
      of_prompt.is_array() ? 0 : SharedMessages(record.chosen.messages, record.rejected.messages);
  MarkPrompt(before, shared, record.chosen.messages);
  MarkPrompt(before, shared, record.rejected.messages);
  for (const ChatMessage& message : record.chosen.messages)
    if (message.given) record.prompt += message.content + "\n";
  return record;
}

}  // namespace halflife::data
