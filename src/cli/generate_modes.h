// The modes of `halflife generate`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/command_line/options.h"
#include "data/chat/chat_tokens.h"
#include "data/tokenizer.h"
#include "infer/batch_decoder.h"
#include "infer/model_loader.h"

namespace halflife::cli {

// The conversations of `halflife generate --chat` as prompts.
class ChatPrompts {
 public:
  // Borrows the tokenizer. Throws Error kUsage for an unknown template.
  ChatPrompts(const GenerateOptions& options, const data::Tokenizer& tokenizer);

  // Returns the ids of a conversation up to the beginning of the assistant's turn. The system
  // message of the options comes first, unless there is one. Throws Error kData, with `place` in
  // front of the message, for messages that the template does not allow.
  std::vector<int32_t> Encode(std::vector<data::ChatMessage> messages,
                              const std::string& place) const;
  const data::EndOfTurn& end() const { return end_; }

 private:
  const data::Tokenizer& tokenizer_;
  const data::ChatTemplate chat_;
  const std::string system_;
  const data::EndOfTurn end_;
};

// `halflife generate --prompts`: continues every prompt of a file, several at a time.
//
// Writes one JSON line per prompt to standard output, in the order of the file. A failed text has
// `error` instead of `text` and does not stop the others. The exit code is that of the first failed
// text: kEnvironment if there was no memory for it, otherwise kNonFinite. Throws Error kData for a
// line that is no prompt.
ExitCode GenerateFromFile(const GenerateOptions& options, const infer::LoadedModel& loaded,
                          const data::Tokenizer& tokenizer);

// `halflife generate --chat` without --prompts: answers --prompt as a message of the user, or each
// line of standard input in one conversation.
ExitCode GenerateChat(const GenerateOptions& options, const infer::LoadedModel& loaded,
                      const data::Tokenizer& tokenizer);

// Returns the request for the text that continues `ids`, without its functions. `chat` is null
// without --chat.
infer::TextRequest RequestOf(const GenerateOptions& options, const data::Tokenizer& tokenizer,
                             const ChatPrompts* chat, std::vector<int32_t> ids);

// A finished text, as --json prints it.
struct FinishedText {
  std::string prompt;                       // Without --chat.
  std::vector<data::ChatMessage> messages;  // With --chat: those before the text.
  std::string text;
  std::string finish_reason;  // "stop" or "length"
  int64_t prompt_tokens = 0, new_tokens = 0;
};
std::string JsonLine(const FinishedText& text);

// Prints --stats of texts that a BatchDecoder has continued.
void PrintBatchStats(int64_t num_texts, const infer::BatchStats& stats, double seconds);

// Returns the stop strings of the options, with \n, \t and \\ replaced, and the end of a turn of
// `chat` if it is a text. Throws Error kUsage if one is empty.
std::vector<std::string> StopStrings(const GenerateOptions& options,
                                     const ChatPrompts* chat = nullptr);

}  // namespace halflife::cli
