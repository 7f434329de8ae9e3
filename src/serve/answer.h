// Builds the answers of the API from the events of a request's texts: one JSON object, or the
// chunks of a stream.
//
//   Answer answer(call, {.id = "cmpl-1", .model = "gla"}, tokenizer);
//   while (!answer.done()) stream << answer.Add(NextEvent());  // "" unless the call streams.
//   if (!call.stream) stream << answer.Whole();
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "serve/api_request.h"
#include "serve/engine.h"

namespace halflife::serve {

struct AnswerNames {
  std::string id;  // "cmpl-..." or "chatcmpl-..."
  std::string model;
  int64_t created = 0;  // Unix seconds.
};

class Answer {
 public:
  // Borrows the call and the tokenizer.
  Answer(const ApiCall& call, AnswerNames names, const data::Tokenizer& tokenizer);

  // Adds an event. Returns the chunks that it makes, or "" if the call does not stream.
  std::string Add(const TextEvent& event);
  bool done() const { return num_ended_ == call_.num_texts(); }
  bool has_token() const { return has_token_; }
  // The error of a text that failed. Empty: none.
  const std::string& error() const { return error_; }
  // Call these once done() is true.
  std::string Whole() const;
  std::string LastChunks() const;

 private:
  struct Choice {
    std::string text;                        // Without the prompt of `echo`.
    std::vector<infer::ScoredToken> prompt;  // Scored tokens: all but the first.
    std::vector<infer::ScoredToken> tokens;
    const char* finish_reason = nullptr;
    int64_t prompt_tokens = 0, kept_tokens = 0;
    bool begun = false;
    int64_t offset = 0;  // Characters of the tokens so far, for text_offset.
  };
  const ApiPrompt& PromptOf(size_t text) const {
    return call_.prompts[text / static_cast<size_t>(call_.num_choices)];
  }
  std::string ChunkOf(size_t text, const std::string& added, const TextEvent& event);
  nlohmann::ordered_json Envelope(const char* object) const;
  nlohmann::ordered_json Usage() const;
  // logprobs of the tokens: of completions (four lists) or of chats (a list of objects). `echoed`:
  // the first token of the prompt, which has no probability, comes first.
  nlohmann::ordered_json Logprobs(const std::vector<infer::ScoredToken>& tokens, bool echoed,
                                  size_t text, int64_t& offset) const;
  // Returns the text of a token: "bytes:\xe2" if it is a part of a character, "token_id:5" without
  // text.
  std::string TokenText(int32_t id, int64_t& num_characters) const;

  const ApiCall& call_;
  const AnswerNames names_;
  const data::Tokenizer& tokenizer_;
  std::vector<Choice> choices_;
  int64_t num_ended_ = 0;
  bool has_token_ = false;
  std::string error_;
};

// Returns one server-sent event.
std::string ServerSentEvent(const std::string& json);

}  // namespace halflife::serve
