// Chat templates: how the messages of a conversation become one text for a model.
//
// The program knows the templates by name and runs no Jinja. Each renders the same text as the
// Jinja template that its model family published. The text comes in pieces, and each piece says
// whether an assistant must learn to write it.
//
// | name | published with |
// |---|---|
// | chatml | many models; also the usual choice for a model without a template |
// | llama3 | Llama 3 Instruct |
// | qwen | Qwen2.5 Instruct: chatml with a system message if the conversation has none |
// | mistral | Mistral 7B Instruct v0.2 and Mixtral 8x7B Instruct |
// | zephyr | Zephyr 7B and TinyLlama Chat |
//
//   const ChatTemplate chat = RequireChatTemplate("chatml");
//   const auto pieces = chat.Render({{"user", "2 + 2?"}}, GenerationPrompt::kAdd);
//   const ChatTokens prompt = EncodeChat(*tokenizer, pieces);   // chat_tokens.h
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace halflife::data {

struct ChatMessage {
  std::string role;  // system, user or assistant
  std::string content;
  bool given = false;  // an assistant's message that the model need not learn to write
};

// A part of a rendered conversation: text, or one special token.
struct ChatPiece {
  enum class Kind : uint8_t { kText, kBos, kEos };
  Kind kind = Kind::kText;
  std::string text = {};   // empty for special tokens
  bool assistant = false;  // the model writes it: the content and the end of an assistant's turn
};

// The text of a turn: `before`, the content, `end` and `after`.
struct TurnFormat {
  std::string role;
  std::string before;
  std::string end;    // empty: the tokenizer's eos token
  std::string after;  // not written by the model
};

// Whether the text ends with the beginning of an assistant's turn, which the model continues.
enum class GenerationPrompt : uint8_t { kOmit, kAdd };

struct ChatTemplate {
  std::string name;
  bool begins_with_bos = false;
  bool trims = false;               // white space around a content is removed
  std::string default_system = {};  // the first message of conversations without a system message
  // User and assistant take turns, and the system message becomes the beginning of the first user
  // message, before an empty line.
  bool alternates = false;
  std::vector<TurnFormat> turns;  // one per role
  // The part of the assistant's `before` that is given; the model writes the rest of it.
  std::string generation_prompt;

  // Throws Error kData, with `place` in front of the message, if there is no message, if the
  // template does not have a role, or if the order of roles is wrong.
  std::vector<ChatPiece> Render(const std::vector<ChatMessage>& messages, GenerationPrompt prompt,
                                const std::string& place = "") const;
  // Returns the text that an assistant writes at the end of its turn. Empty: the tokenizer's eos
  // token.
  std::string_view end_of_turn() const { return Turn("assistant")->end; }
  // Returns a Jinja template that renders the same text. Exported models contain it.
  std::string Jinja() const;

  const TurnFormat* Turn(std::string_view role) const;  // null: the template does not have the role
};

std::vector<ChatTemplate> KnownChatTemplates();
std::vector<std::string> ChatTemplateNames();
// Throws Error kUsage with all names if there is no template of this name.
ChatTemplate RequireChatTemplate(std::string_view name);
// Returns the template whose Jinja form is the default template of a tokenizer. Returns nothing if
// there is no default, or if it is none of these.
std::optional<ChatTemplate> DetectChatTemplate(const ChatTemplates& templates);

}  // namespace halflife::data
