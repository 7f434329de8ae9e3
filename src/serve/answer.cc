#include "serve/answer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/concat.h"
#include "core/human.h"
#include "core/json_text.h"

namespace halflife::serve {
namespace {

using Json = nlohmann::ordered_json;

int64_t NumCharacters(const std::string& text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
}

// Returns the shortest digits of the fp32 value. JSON has no infinities.
Json LogprobJson(float logprob) {
  if (!std::isfinite(logprob)) return -9999.0;
  return Json::parse(ShortestText(logprob));
}

// Replaces bytes that are not UTF-8 by U+FFFD. Whole answers and streams then have the same text,
// because both replace within the pieces of an event.
std::string Readable(const std::string& text) {
  return Json::parse(JsonText(Json(text))).get<std::string>();
}

}  // namespace

std::string ServerSentEvent(const std::string& json) { return Concat("data: ", json, "\n\n"); }

Answer::Answer(const ApiCall& call, AnswerNames names, const data::Tokenizer& tokenizer)
    : call_(call),
      names_(std::move(names)),
      tokenizer_(tokenizer),
      choices_(static_cast<size_t>(call.num_texts())) {
  for (size_t i = 0; i < choices_.size(); ++i)
    choices_[i].prompt_tokens = std::ssize(PromptOf(i).ids);
}

std::string Answer::Add(const TextEvent& event) {
  Choice& choice = choices_[event.text];
  choice.prompt.insert(choice.prompt.end(), event.prompt.begin(), event.prompt.end());
  if (event.token) choice.tokens.push_back(*event.token);
  has_token_ = has_token_ || event.token;
  const std::string added = Readable(event.added);
  choice.text += added;
  if (event.ended) {
    ++num_ended_;
    choice.finish_reason = event.stopped ? "stop" : "length";
    choice.kept_tokens = event.result.kept_tokens;
    if (event.result.end == infer::TextEnd::kFailed) error_ = event.result.error;
    if (event.result.end == infer::TextEnd::kNoMemory)
      error_ = "there was no memory for it. Send fewer requests at a time";
    if (event.result.end == infer::TextEnd::kCancelled)
      error_ = "the server cancelled it. Send the request again";
  }
  if (!call_.stream || !error_.empty()) return "";
  if (!event.prompt.empty()) return "";  // Streamed with the first token.
  return ChunkOf(event.text, added, event);
}

std::string Answer::ChunkOf(size_t text, const std::string& added, const TextEvent& event) {
  Choice& choice = choices_[text];
  std::string chunks;
  const bool begins = !choice.begun;
  choice.begun = true;
  const auto emit = [&](Json content, Json logprobs) {
    Json chunk = Envelope(call_.is_chat ? "chat.completion.chunk" : "text_completion");
    Json entry = {{"index", text}};
    entry[call_.is_chat ? "delta" : "text"] = std::move(content);
    entry["logprobs"] = std::move(logprobs);
    entry["finish_reason"] = event.ended ? Json(choice.finish_reason) : Json();
    chunk["choices"] = Json::array({entry});
    if (call_.include_usage) chunk["usage"] = nullptr;
    chunks += ServerSentEvent(JsonText(chunk));
  };
  Json logprobs;
  const bool wants = call_.top_logprobs >= 0;
  if (call_.is_chat) {
    Json delta = Json::object();
    if (begins) delta = {{"role", "assistant"}, {"content", ""}};
    if (!added.empty()) delta["content"] = added;
    if (wants && event.token) logprobs = Logprobs({*event.token}, false, text, choice.offset);
    if (!delta.empty() || !logprobs.is_null() || event.ended) emit(delta, logprobs);
    return chunks;
  }
  std::vector<infer::ScoredToken> tokens;
  const bool echoes = begins && call_.echo;
  if (echoes) tokens = choice.prompt;
  if (event.token) tokens.push_back(*event.token);
  if (wants && (echoes || !tokens.empty()))
    logprobs = Logprobs(tokens, echoes, text, choice.offset);
  const std::string whole = echoes ? PromptOf(text).text + added : added;
  if (!whole.empty() || !logprobs.is_null() || event.ended) emit(whole, logprobs);
  return chunks;
}

std::string Answer::LastChunks() const {
  std::string chunks;
  if (call_.include_usage) {
    Json chunk = Envelope(call_.is_chat ? "chat.completion.chunk" : "text_completion");
    chunk["choices"] = Json::array();
    chunk["usage"] = Usage();
    chunks += ServerSentEvent(JsonText(chunk));
  }
  return chunks + ServerSentEvent("[DONE]");
}

std::string Answer::Whole() const {
  Json answer = Envelope(call_.is_chat ? "chat.completion" : "text_completion");
  answer["choices"] = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    Json entry = {{"index", i}};
    int64_t offset = 0;
    Json logprobs;
    if (call_.top_logprobs >= 0) {
      std::vector<infer::ScoredToken> tokens;
      if (call_.echo) tokens = choice.prompt;
      tokens.insert(tokens.end(), choice.tokens.begin(), choice.tokens.end());
      logprobs = Logprobs(tokens, call_.echo, i, offset);
    }
    if (call_.is_chat)
      entry["message"] = {{"role", "assistant"}, {"content", choice.text}};
    else
      entry["text"] = call_.echo ? PromptOf(i).text + choice.text : choice.text;
    entry["logprobs"] = std::move(logprobs);
    entry["finish_reason"] = choice.finish_reason;
    answer["choices"].push_back(std::move(entry));
  }
  answer["usage"] = Usage();
  return JsonText(answer) + "\n";
}

Json Answer::Envelope(const char* object) const {
  return {
      {"id", names_.id}, {"object", object}, {"created", names_.created}, {"model", names_.model}};
}

// Counts tokens. A prompt counts once, for any number of its texts.
Json Answer::Usage() const {
  int64_t prompt = 0, kept = 0, completion = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    completion += std::ssize(choices_[i].tokens);
    if (i % static_cast<size_t>(call_.num_choices) != 0) continue;
    prompt += choices_[i].prompt_tokens;
    kept += choices_[i].kept_tokens;
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", completion},
          {"total_tokens", prompt + completion},
          {"prompt_tokens_details", {{"cached_tokens", kept}}}};
}

std::string Answer::TokenText(int32_t id, int64_t& num_characters) const {
  std::string bytes;
  num_characters = 0;
  if (!tokenizer_.AppendBytes(id, /*at_start=*/false, bytes)) return Concat("token_id:", id);
  num_characters = NumCharacters(bytes);
  if (Readable(bytes) == bytes) return bytes;
  std::string text = "bytes:";
  constexpr char kDigits[] = "0123456789abcdef";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += Concat("\\x", std::string(1, kDigits[byte >> 4]), std::string(1, kDigits[byte & 15]));
  }
  return text;
}

Json Answer::Logprobs(const std::vector<infer::ScoredToken>& tokens, bool echoed, size_t text,
                      int64_t& offset) const {
  int64_t characters = 0;
  if (call_.is_chat) {
    Json content = Json::array();
    const auto entry = [&](int32_t id, float logprob) {
      std::string bytes;
      tokenizer_.AppendBytes(id, /*at_start=*/false, bytes);
      Json values = Json::array();
      for (const char c : bytes) values.push_back(static_cast<unsigned char>(c));
      return Json{{"token", TokenText(id, characters)},
                  {"logprob", LogprobJson(logprob)},
                  {"bytes", values}};
    };
    for (const infer::ScoredToken& token : tokens) {
      Json one = entry(token.id, token.logprob);
      one["top_logprobs"] = Json::array();
      for (const infer::TokenLogprob& top : token.top)
        one["top_logprobs"].push_back(entry(top.id, top.logprob));
      content.push_back(std::move(one));
    }
    return {{"content", content}};
  }
  Json texts = Json::array(), logprobs = Json::array(), tops = Json::array(),
       offsets = Json::array();
  const auto add = [&](int32_t id, Json logprob, Json top) {
    texts.push_back(TokenText(id, characters));
    logprobs.push_back(std::move(logprob));
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += characters;
  };
  if (echoed) add(PromptOf(text).ids.front(), nullptr, nullptr);
  for (const infer::ScoredToken& token : tokens) {
    Json top = Json::object();
    for (const infer::TokenLogprob& other : token.top)
      top[TokenText(other.id, characters)] = LogprobJson(other.logprob);
    // As OpenAI does, the sampled token is always listed.
    top[TokenText(token.id, characters)] = LogprobJson(token.logprob);
    add(token.id, LogprobJson(token.logprob), call_.top_logprobs > 0 ? top : Json());
  }
  return {{"tokens", texts},
          {"token_logprobs", logprobs},
          {"top_logprobs", call_.top_logprobs > 0 ? tops : Json()},
          {"text_offset", offsets}};
}

}  // namespace halflife::serve
