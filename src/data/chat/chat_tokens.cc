#include "data/chat/chat_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "core/error.h"
#include "core/json_text.h"

namespace halflife::data {
namespace {

constexpr char kForm[] = R"(Use [{"role": "user", "content": "..."}, ...].)";

std::string StringOf(const nlohmann::json& message, const char* field, size_t number,
                     const std::string& place) {
  const auto value = message.find(field);
  HL_CHECK_AS(ExitCode::kData, value != message.end(), place, "message ", number, " has no field '",
              field, "'. ", kForm);
  HL_CHECK_AS(ExitCode::kData, value->is_string(), place, "the field '", field, "' of message ",
              number, " is a JSON ", value->type_name(), ", not a string. ", kForm);
  return value->get<std::string>();
}

// Joins a content that is a list of parts, [{"type": "text", "text": "..."}], to one string. Lists
// with parts of another type stay, so that they are refused.
void JoinTextParts(nlohmann::json& message) {
  if (!message.is_object() || !message.contains("content")) return;
  nlohmann::json& content = message["content"];
  if (!content.is_array() || content.empty()) return;
  std::string text;
  for (const nlohmann::json& part : content) {
    const bool is_text = part.is_object() && part.contains("type") && part["type"] == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text) return;
    text += part["text"].get<std::string>();
  }
  content = text;
}

// Gives a message of ShareGPT, {"from": "human", "value": "..."}, the form of OpenAI.
void ConvertFromShareGpt(nlohmann::json& message) {
  if (!message.is_object() || !message.contains("from") || message.contains("role")) return;
  const nlohmann::json from = message["from"];
  message["role"] = from == "human" ? "user" : from == "gpt" ? "assistant" : from;
  if (message.contains("value")) message["content"] = message["value"];
}

// Encodes consecutive pieces of text as one text. The names of special tokens cut it into parts
// that are encoded separately, so the time is linear in the length of a conversation with names.
class TextRun {
 public:
  // `at_start`: the pieces begin the conversation's text.
  TextRun(const Tokenizer& tokenizer, std::span<const ChatPiece> pieces, bool at_start)
      : tokenizer_(tokenizer), pieces_(pieces), at_start_(at_start) {
    for (const ChatPiece& piece : pieces) text_ += piece.text;
    for (const NameRange& name : tokenizer.SpecialNames(text_)) {
      EncodePart(name.begin);
      parts_.push_back({name.begin, name.end, ids_.size()});
    }
    EncodePart(text_.size());
  }

  void AppendTo(ChatTokens& tokens) const {
    std::vector<bool> assistant(ids_.size(), false);
    size_t end = 0;  // bytes of text so far
    for (const ChatPiece& piece : pieces_) {
      const size_t begin = end;
      end += piece.text.size();
      if (!piece.assistant) continue;
      const size_t first = Split(begin).first, last = Split(end).second;
      std::fill(assistant.begin() + static_cast<ptrdiff_t>(first),
                assistant.begin() + static_cast<ptrdiff_t>(std::max(first, last)), true);
    }
    tokens.ids.insert(tokens.ids.end(), ids_.begin(), ids_.end());
    tokens.assistant.insert(tokens.assistant.end(), assistant.begin(), assistant.end());
  }

 private:
  // A part of the text that begins with a name, except for the first one.
  struct Part {
    size_t begin = 0, name_end = 0;  // bytes of text
    size_t num_ids_before = 0;
  };

  // Encodes the last part, which ends at `end`.
  void EncodePart(size_t end) { EncodeRange(parts_.back().begin, end, ids_); }

  void EncodeRange(size_t begin, size_t end, std::vector<int32_t>& ids) const {
    const std::string_view text = std::string_view(text_).substr(begin, end - begin);
    if (at_start_ && begin == 0) return tokenizer_.EncodeAppend(text, SpecialTokens::kParse, ids);
    tokenizer_.ContinueAppend(text, SpecialTokens::kParse, ids);
  }

  // Returns the tokens before and after a position in the text: first is the number of tokens that
  // end before it, second the number of those that begin before it. They differ by the one token
  // that contains text on both sides.
  std::pair<size_t, size_t> Split(size_t position) const {
    if (position == text_.size()) return {ids_.size(), ids_.size()};
    // The last part whose name is not cut by the position. The tokens before it are not either.
    const Part& part = *std::prev(
        std::ranges::upper_bound(parts_, position, std::ranges::less(), &Part::name_end));
    std::vector<int32_t> before;
    EncodeRange(part.begin, position, before);
    const std::span<const int32_t> ids = std::span(ids_).subspan(part.num_ids_before);
    const auto common = static_cast<size_t>(std::ranges::mismatch(ids, before).in1 - ids.begin());
    const size_t first = part.num_ids_before + common;
    return {first, std::min(first + (common < before.size() ? 1 : 0), ids_.size())};
  }

  const Tokenizer& tokenizer_;
  const std::span<const ChatPiece> pieces_;
  const bool at_start_;
  std::string text_;
  std::vector<Part> parts_ = std::vector<Part>(1);
  std::vector<int32_t> ids_;
};

}  // namespace

std::vector<ChatMessage> ReadChatMessages(std::string_view json, const std::string& place) {
  HL_CHECK_AS(ExitCode::kData, JsonNesting(json) <= kMaxJsonNesting, place,
              "the messages are nested more than ", kMaxJsonNesting, " deep. ", kForm);
  auto list = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  HL_CHECK_AS(ExitCode::kData, list.is_array(), place, "the messages are a JSON ",
              list.is_discarded() ? "syntax error" : list.type_name(), ", not a list. ", kForm);
  std::vector<ChatMessage> messages;
  for (nlohmann::json& message : list) {
    ConvertFromShareGpt(message);
    JoinTextParts(message);
    const size_t number = messages.size() + 1;
    HL_CHECK_AS(ExitCode::kData, message.is_object(), place, "message ", number, " is a JSON ",
                message.type_name(), ", not an object. ", kForm);
    messages.push_back({.role = StringOf(message, "role", number, place),
                        .content = StringOf(message, "content", number, place)});
  }
  return messages;
}

ChatTokens EncodeChat(const Tokenizer& tokenizer, const std::vector<ChatPiece>& pieces) {
  const SpecialIds special = tokenizer.special_ids();
  ChatTokens tokens;
  for (size_t begin = 0; begin < pieces.size();) {
    size_t end = begin;
    while (end < pieces.size() && pieces[end].kind == ChatPiece::Kind::kText) ++end;
    if (end > begin) {
      TextRun(tokenizer, std::span(pieces).subspan(begin, end - begin), tokens.ids.empty())
          .AppendTo(tokens);
      begin = end;
      continue;
    }
    const int id = pieces[begin].kind == ChatPiece::Kind::kBos ? special.bos : special.eos;
    if (id >= 0) {
      tokens.ids.push_back(id);
      tokens.assistant.push_back(pieces[begin].assistant);
    }
    ++begin;
  }
  return tokens;
}

EndOfTurn EndOfTurnOf(const Tokenizer& tokenizer, const ChatTemplate& chat) {
  const std::string end(chat.end_of_turn());
  if (end.empty()) return {};
  const std::vector<int32_t> ids = tokenizer.Encode(end, SpecialTokens::kParse);
  std::string bytes;
  if (ids.size() == 1 && !tokenizer.AppendBytes(ids[0], /*at_start=*/false, bytes))
    return {.id = ids[0], .text = {}};
  return {.id = {}, .text = end};
}

std::vector<std::string> NamesWithoutToken(const Tokenizer& tokenizer, const ChatTemplate& chat) {
  std::set<std::string> names;
  const auto find = [&](std::string_view text) {
    for (size_t begin; (begin = text.find("<|")) != std::string_view::npos;) {
      const size_t end = text.find("|>", begin);
      if (end == std::string_view::npos) return;
      const std::string_view name = text.substr(begin, end + 2 - begin);
      if (tokenizer.Encode(name, SpecialTokens::kParse).size() != 1) names.emplace(name);
      text.remove_prefix(end + 2);
    }
  };
  for (const TurnFormat& turn : chat.turns)
    if (!turn.end.empty()) find(turn.before), find(turn.end);
  return {names.begin(), names.end()};
}

}  // namespace halflife::data
