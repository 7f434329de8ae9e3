// The conversations of `halflife generate --chat` as prompts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/command_line/options.h"
#include "data/chat/chat_tokens.h"
#include "data/tokenizer.h"

namespace halflife::cli {

class ChatPrompts {
 public:
  // Borrows the tokenizer. Error kUsage for an unknown template.
  ChatPrompts(const GenerateOptions& options, const data::Tokenizer& tokenizer);

  // The ids of a conversation up to the beginning of the assistant's turn. The system message of
  // the options comes first, unless there is one. Error kData, with `place` in front of the
  // message, for messages that the template does not allow.
  std::vector<int32_t> Encode(std::vector<data::ChatMessage> messages,
                              const std::string& place) const;
  const data::EndOfTurn& end() const { return end_; }

 private:
  const data::Tokenizer& tokenizer_;
  const data::ChatTemplate chat_;
  const std::string system_;
  const data::EndOfTurn end_;
};

}  // namespace halflife::cli
