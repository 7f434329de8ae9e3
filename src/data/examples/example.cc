#include "data/examples/example.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "data/batch.h"
#include "data/chat/chat_tokens.h"
#include "data/prepare/shard_writer.h"

namespace halflife::data {
namespace {

bool HasAnswer(const PreferenceRecord::Answer& answer) {
  return !answer.text.empty() ||
         std::ranges::any_of(answer.messages, [](const ChatMessage& message) {
           return message.role == "assistant" && !message.given;
         });
}

// Returns the number of equal messages at the beginning of both lists, without the last message of
// each.
size_t SharedMessages(const std::vector<ChatMessage>& one, const std::vector<ChatMessage>& other) {
  size_t shared = 0;
  while (shared + 1 < std::min(one.size(), other.size()) &&
         one[shared].role == other[shared].role && one[shared].content == other[shared].content)
    ++shared;
  return shared;
}

// Puts the prompt in front of an answer and marks it as given. Without a prompt, marks the first
// `num_given` messages.
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

const char* Name(TooLong rule) {
  constexpr const char* kNames[] = {"error", "cut", "drop"};
  return kNames[static_cast<int>(rule)];
}

bool ExampleEncoder::Fit(std::vector<int32_t>& ids, const std::string& place) const {
  const auto most = static_cast<size_t>(rules_.row_len);
  if (ids.size() <= most) return true;
  HL_CHECK_AS(ExitCode::kData, rules_.too_long != TooLong::kError, place, "an example of ",
              ids.size(), " tokens, but rows have ", most, ". Use --row-len ", ids.size(),
              ", --too-long cut or --too-long drop.");
  ids.resize(most);
  return rules_.too_long == TooLong::kCut;
}

Example ExampleEncoder::OfClass(std::string_view text, int32_t label,
                                const std::string& place) const {
  Example example = {.ids = tokenizer_.EncodeText(text),
                     .num_bytes = static_cast<int64_t>(text.size())};
  example.ids.push_back(tokenizer_.eos_id());
  const size_t whole = example.ids.size();
  if (!Fit(example.ids, place)) return {.dropped = true};
  example.cut = example.ids.size() < whole;
  example.ids.back() = tokenizer_.eos_id();
  example.labels.assign(example.ids.size(), kNoTarget);
  example.labels.front() = label;
  return example;
}

Example ExampleEncoder::OfAnswer(std::string_view prompt, std::string_view answer,
                                 const std::string& place) const {
  Example example = {.ids = tokenizer_.EncodeText(prompt, rules_.special_tokens),
                     .num_bytes = static_cast<int64_t>(prompt.size() + answer.size())};
  const size_t answer_begin = example.ids.size();
  if (prompt.empty()) {
    tokenizer_.EncodeAppend(answer, rules_.special_tokens, example.ids);
  } else {
    tokenizer_.ContinueAppend(answer, rules_.special_tokens, example.ids);
  }
  example.ids.push_back(tokenizer_.eos_id());
  const size_t whole = example.ids.size();
  if (!Fit(example.ids, place) || example.ids.size() <= answer_begin) return {.dropped = true};
  example.cut = example.ids.size() < whole;
  LabelNext(example, [&](size_t token) { return token >= answer_begin; });
  return example;
}

Example ExampleEncoder::OfChat(ChatTokens tokens, const std::string& place) const {
  Example example = {.ids = std::move(tokens.ids)};
  const size_t whole = example.ids.size();
  if (!Fit(example.ids, place)) return {.dropped = true};
  example.cut = example.ids.size() < whole;
  const bool has_label = LabelNext(example, [&](size_t token) { return tokens.assistant[token]; });
  return has_label ? example : Example{.dropped = true};
}

Example ExampleEncoder::OfPair(const Example& chosen, const Example& rejected,
                               const std::string& place) const {
  if (chosen.dropped || rejected.dropped) return {.dropped = true};
  const size_t length = chosen.ids.size() + rejected.ids.size();
  if (length > static_cast<size_t>(rules_.row_len)) {
    HL_CHECK_AS(ExitCode::kData, rules_.too_long == TooLong::kDrop, place, "a pair of ", length,
                " tokens in both sequences, but rows have ", rules_.row_len, ". Use --row-len ",
                length, " or --too-long drop.");
    return {.dropped = true};
  }
  Example pair = chosen;
  pair.rejected_begin = chosen.ids.size();
  pair.ids.insert(pair.ids.end(), rejected.ids.begin(), rejected.ids.end());
  pair.labels.insert(pair.labels.end(), rejected.labels.begin(), rejected.labels.end());
  pair.num_bytes += rejected.num_bytes;
  return pair;
}

bool ExampleEncoder::LabelNext(Example& example,
                               const std::function<bool(size_t token)>& is_answer) const {
  example.labels.assign(example.ids.size(), kNoTarget);
  bool any = false;
  for (size_t i = 0; i + 1 < example.ids.size(); ++i) {
    if (!is_answer(i + 1)) continue;
    example.labels[i] = example.ids[i + 1];
    any = true;
  }
  return any;
}

void RowPacker::Add(const Example& example) {
  const auto length = static_cast<int64_t>(example.ids.size());
  HL_CHECK(length >= 1 && length <= config_.row_len, "an example has ", length,
           " tokens, and a row ", config_.row_len);
  if (used_ + length > config_.row_len) PadRow();
  if (used_ == 0) ++num_rows_;
  const size_t pair = example.rejected_begin;
  const std::span<const int32_t> ids(example.ids), labels(example.labels);
  if (pair > 0) writer_.AppendLabelled(ids.first(pair), labels.first(pair));
  writer_.AppendLabelled(ids.subspan(pair), labels.subspan(pair));
  writer_.CountBytes(example.num_bytes);
  used_ += length;
  if (config_.one_per_row || used_ == config_.row_len) PadRow();
}

void RowPacker::Finish() {
  if (used_ > 0) PadRow();
}

void RowPacker::PadRow() {
  const auto rest = static_cast<size_t>(config_.row_len - used_);
  used_ = 0;
  if (rest == 0) return;
  writer_.AppendLabelled(std::vector<int32_t>(rest, config_.pad_id),
                         std::vector<int32_t>(rest, kNoTarget));
}

}  // namespace halflife::data
