#include "data/chat/chat_template.h"

#include <algorithm>
#include <ranges>

#include "core/error.h"

namespace halflife::data {
namespace {

constexpr std::string_view kUser = "user", kAssistant = "assistant", kSystem = "system";
constexpr char kDefaultTemplate[] = "default";  // its name in ChatTemplates

// Returns the three roles, with the role's name between `open` and `close`.
std::vector<TurnFormat> EqualTurns(const std::string& open, const std::string& close,
                                   const std::string& end, const std::string& after) {
  std::vector<TurnFormat> turns;
  for (const std::string_view role : {kSystem, kUser, kAssistant}) {
    const std::string name(role);
    turns.push_back({.role = name, .before = open + name + close, .end = end, .after = after});
  }
  return turns;
}

ChatTemplate ChatMl(const std::string& name, const std::string& default_system) {
  return {.name = name,
          .default_system = default_system,
          .turns = EqualTurns("<|im_start|>", "\n", "<|im_end|>", "\n"),
          .generation_prompt = "<|im_start|>assistant\n"};
}

ChatTemplate Llama3() {
  return {.name = "llama3",
          .begins_with_bos = true,
          .trims = true,
          .turns = EqualTurns("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", ""),
          .generation_prompt = "<|start_header_id|>assistant<|end_header_id|>\n\n"};
}

ChatTemplate Mistral() {
  return {.name = "mistral",
          .begins_with_bos = true,
          .alternates = true,
          .turns = {{.role = "user", .before = " [INST] ", .end = " [/INST]", .after = ""},
                    {.role = "assistant", .before = " ", .end = "", .after = ""}},
          .generation_prompt = ""};
}

ChatTemplate Zephyr() {
  return {.name = "zephyr",
          .turns = EqualTurns("<|", "|>\n", /*end=*/"", "\n"),
          .generation_prompt = "<|assistant|>\n"};
}

// Removes white space as Python's str.strip does, which Jinja's filter `trim` calls.
std::string_view Stripped(std::string_view text) {
  using std::string_view_literals::operator""sv;
  constexpr std::string_view kSpaces[] = {
      "\t"sv,     "\n"sv,     "\v"sv,     "\f"sv,     "\r"sv,       "\x1C"sv,
      "\x1D"sv,   "\x1E"sv,   "\x1F"sv,   " "sv,      "\xC2\x85"sv, "\xC2\xA0"sv,
      "\u1680"sv, "\u2000"sv, "\u2001"sv, "\u2002"sv, "\u2003"sv,   "\u2004"sv,
      "\u2005"sv, "\u2006"sv, "\u2007"sv, "\u2008"sv, "\u2009"sv,   "\u200A"sv,
      "\u2028"sv, "\u2029"sv, "\u202F"sv, "\u205F"sv, "\u3000"sv};
  const auto at_end = [&](std::string_view space) { return text.ends_with(space); };
  const auto at_start = [&](std::string_view space) { return text.starts_with(space); };
  for (auto found = std::ranges::find_if(kSpaces, at_start); found != std::end(kSpaces);
       found = std::ranges::find_if(kSpaces, at_start))
    text.remove_prefix(found->size());
  for (auto found = std::ranges::find_if(kSpaces, at_end); found != std::end(kSpaces);
       found = std::ranges::find_if(kSpaces, at_end))
    text.remove_suffix(found->size());
  return text;
}

// Appends text to the last piece if both are text of the same kind.
void AppendText(std::string_view text, bool assistant, std::vector<ChatPiece>& pieces) {
  if (text.empty()) return;
  const bool joins = !pieces.empty() && pieces.back().kind == ChatPiece::Kind::kText &&
                     pieces.back().assistant == assistant;
  if (!joins) pieces.push_back({.assistant = assistant});
  pieces.back().text += text;
}

// Appends a turn of this content. `given`: as in ChatMessage.
void AppendTurn(const ChatTemplate& chat, const TurnFormat& turn, std::string_view content,
                bool given_turn, std::vector<ChatPiece>& pieces) {
  const bool assistant = turn.role == kAssistant && !given_turn;
  const size_t given = assistant ? chat.generation_prompt.size() : turn.before.size();
  AppendText(std::string_view(turn.before).substr(0, given), false, pieces);
  AppendText(std::string_view(turn.before).substr(given), true, pieces);
  AppendText(content, assistant, pieces);
  if (turn.end.empty())
    pieces.push_back({.kind = ChatPiece::Kind::kEos, .assistant = assistant});
  else
    AppendText(turn.end, assistant, pieces);
  AppendText(turn.after, false, pieces);
}

std::string RolesOf(const ChatTemplate& chat) {
  std::string names = chat.alternates ? "system, " : "";
  for (size_t i = 0; i < chat.turns.size(); ++i)
    names += Concat(i == 0 ? "" : i + 1 < chat.turns.size() ? ", " : " or ", chat.turns[i].role);
  return names;
}

void CheckRoles(const ChatTemplate& chat, const std::vector<ChatMessage>& messages,
                const std::string& place) {
  HL_CHECK_AS(ExitCode::kData, !messages.empty(), place,
              "the conversation has no messages. Remove it, or add messages.");
  const bool joins_system = chat.alternates && messages[0].role == kSystem;
  for (size_t i = joins_system ? 1 : 0; i < messages.size(); ++i) {
    HL_CHECK_AS(ExitCode::kData, chat.Turn(messages[i].role) != nullptr, place, "message ", i + 1,
                " has the role '", messages[i].role, "', which the template ", chat.name,
                " does not have here. Use ", RolesOf(chat),
                chat.alternates ? ", and system only in the first message." : ".");
    if (!chat.alternates) continue;
    const std::string_view due = (i - (joins_system ? 1 : 0)) % 2 == 0 ? kUser : kAssistant;
    HL_CHECK_AS(ExitCode::kData, messages[i].role == due, place, "message ", i + 1,
                " has the role '", messages[i].role, "'. In the template ", chat.name,
                ", user and assistant take turns, and the user begins. Use the role ", due,
                " here, or another template.");
  }
}

// Returns a string literal of Jinja.
std::string Quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\n' ? std::string("\\n") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

const TurnFormat* ChatTemplate::Turn(std::string_view role) const {
  const auto found = std::ranges::find(turns, role, &TurnFormat::role);
  return found == turns.end() ? nullptr : &*found;
}

std::vector<ChatPiece> ChatTemplate::Render(const std::vector<ChatMessage>& messages,
                                            GenerationPrompt prompt,
                                            const std::string& place) const {
  CheckRoles(*this, messages, place);
  const bool has_system = messages[0].role == kSystem;
  const bool joins_system = alternates && has_system;
  std::vector<ChatPiece> pieces;
  if (begins_with_bos) pieces.push_back({.kind = ChatPiece::Kind::kBos});
  if (!has_system && !default_system.empty())
    AppendTurn(*this, *Turn(kSystem), default_system, /*given_turn=*/true, pieces);
  std::string joined = joins_system ? messages[0].content + "\n\n" : "";
  for (const ChatMessage& message : messages | std::views::drop(joins_system ? 1 : 0)) {
    const std::string_view content = trims ? Stripped(message.content) : message.content;
    AppendTurn(*this, *Turn(message.role), joined + std::string(content), message.given, pieces);
    joined.clear();
  }
  if (prompt == GenerationPrompt::kAdd) AppendText(generation_prompt, false, pieces);
  return pieces;
}

std::string ChatTemplate::Jinja() const {
  std::string jinja = "{% set turns = messages %}{% set system = '' %}";
  if (alternates)
    jinja +=
        "{% if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}"
        "{% set system = messages[0]['content'] + '\\n\\n' %}{% endif %}";
  if (begins_with_bos) jinja += "{{ bos_token }}";
  if (!default_system.empty())
    jinja += Concat(
        "{% if messages[0]['role'] != 'system' %}{{ ",
        Quoted(Turn(kSystem)->before + default_system + Turn(kSystem)->end + Turn(kSystem)->after),
        " }}{% endif %}");
  jinja += "{% for message in turns %}";
  for (size_t i = 0; i < turns.size(); ++i) {
    const TurnFormat& turn = turns[i];
    jinja += Concat(i == 0 ? "{% if" : "{% elif", " message['role'] == ", Quoted(turn.role),
                    " %}{{ ", Quoted(turn.before), " + ",
                    alternates && turn.role == kUser ? "(system if loop.first else '') + " : "",
                    "message['content']", trims ? " | trim" : "", " + ",
                    turn.end.empty() ? "eos_token" : Quoted(turn.end),
                    turn.after.empty() ? "" : " + " + Quoted(turn.after), " }}");
  }
  jinja +=
      "{% else %}{{ raise_exception('the chat template does not have the role ' + "
      "message['role']) }}{% endif %}{% endfor %}";
  if (!generation_prompt.empty())
    jinja +=
        Concat("{% if add_generation_prompt %}{{ ", Quoted(generation_prompt), " }}{% endif %}");
  return jinja;
}

std::vector<ChatTemplate> KnownChatTemplates() {
  return {ChatMl("chatml", ""), Llama3(),
          ChatMl("qwen", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
          Mistral(), Zephyr()};
}

std::vector<std::string> ChatTemplateNames() {
  std::vector<std::string> names;
  for (const ChatTemplate& chat : KnownChatTemplates()) names.push_back(chat.name);
  return names;
}

ChatTemplate RequireChatTemplate(std::string_view name) {
  std::vector<ChatTemplate> all = KnownChatTemplates();
  const auto found = std::ranges::find(all, name, &ChatTemplate::name);
  HL_CHECK_AS(ExitCode::kUsage, found != all.end(), "'", std::string(name),
              "' is not a chat template. Use one of ", Join(ChatTemplateNames(), ", "), ".");
  return *found;
}

std::optional<ChatTemplate> DetectChatTemplate(const ChatTemplates& templates) {
  const auto source = templates.find(kDefaultTemplate);
  if (source == templates.end()) return std::nullopt;
  for (ChatTemplate& chat : KnownChatTemplates())
    if (chat.Jinja() == source->second) return std::move(chat);
  return std::nullopt;
}

}  // namespace halflife::data
