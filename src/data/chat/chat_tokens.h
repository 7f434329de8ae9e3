// Reads conversations from JSON and encodes rendered ones.
//
//   const auto messages = ReadChatMessages(R"([{"role": "user", "content": "2 + 2?"}])", "a:1: ");
//   const ChatTokens tokens = EncodeChat(*tokenizer, chat.Render(messages, prompt));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer.h"

namespace halflife::data {

// Reads a JSON list of objects with the strings `role` and `content`, the form of OpenAI's
// `messages`, or `from` and `value`, the form of ShareGPT. A content may also be a list of text
// parts. Other fields are ignored. Throws Error kData, with `place` in front of the message, for
// another form.
std::vector<ChatMessage> ReadChatMessages(std::string_view json, const std::string& place);

struct ChatTokens {
  std::vector<int32_t> ids;
  std::vector<bool> assistant;  // by token: it contains text that the assistant writes
};

// Encodes the pieces as one text, as transformers encodes what apply_chat_template renders: names
// of special tokens become their ids, also those in contents. A bos or eos that the tokenizer does
// not have is left out.
ChatTokens EncodeChat(const Tokenizer& tokenizer, const std::vector<ChatPiece>& pieces);

// How the model ends an assistant's turn. Both empty: by the tokenizer's eos token.
struct EndOfTurn {
  std::optional<int32_t> id;  // of the special token
  std::string text;           // its name, if the tokenizer has no such token
};
EndOfTurn EndOfTurnOf(const Tokenizer& tokenizer, const ChatTemplate& chat);

// Returns the names of special tokens in a template, such as <|im_end|>, that the tokenizer encodes
// as several tokens. Templates whose turns end with eos have no other special tokens.
std::vector<std::string> NamesWithoutToken(const Tokenizer& tokenizer, const ChatTemplate& chat);

}  // namespace halflife::data
