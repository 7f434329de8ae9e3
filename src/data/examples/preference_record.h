// A record of preference data in the forms of TRL: a prompt with a preferred (chosen) and a
// rejected answer, as texts or as lists of messages.
//
// - {"prompt": "2 + 2 =", "chosen": " 4", "rejected": " 5"}
// - {"prompt": [{"role": "user", ...}], "chosen": [{"role": "assistant", ...}], "rejected": [...]}
// - {"chosen": [user, assistant], "rejected": [user, assistant]}
//
// In the third form, the prompt is the messages that both lists begin with. A prompt that is a text
// next to lists is not read: the lists contain it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"

namespace halflife::data {

struct PreferenceRecord {
  struct Answer {
    std::string text;                   // after the prompt; only of texts
    std::vector<ChatMessage> messages;  // with those of the prompt, which are given
  };
  std::string prompt;  // of a conversation: the contents of its messages
  Answer chosen, rejected;

  bool is_conversation() const { return !chosen.messages.empty(); }
  bool has_answers() const;  // False if an answer is empty, or a list has no assistant's message.
};

// The arguments are JSON; an empty prompt means that the record has none. Throws Error kData, with
// `place` in front of the message, for another form.
PreferenceRecord ReadPreference(const std::string& prompt, const std::string& chosen,
                                const std::string& rejected, const std::string& place);

}  // namespace halflife::data
