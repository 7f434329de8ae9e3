// Encodes labelled text as tokens and labels, and packs the examples into rows. An example is a
// text with its class, a prompt with its answer, a conversation, or a pair of answers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/chat/chat_tokens.h"
#include "data/tokenizer.h"

namespace halflife::data {

class ShardWriter;

// A record of preference data in the forms of TRL: a prompt with a preferred (chosen) and a
// rejected answer, as texts or as lists of messages.
//
// - {"prompt": "2 + 2 =", "chosen": " 4", "rejected": " 5"}
// - {"prompt": [{"role": "user", ...}], "chosen": [{"role": "assistant", ...}], "rejected": [...]}
// - {"chosen": [user, assistant], "rejected": [user, assistant]}
//
// In the third form, the prompt is the messages that both lists begin with. A prompt that is a text
// next to lists is not read: the lists contain it.
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

// Reads a record from JSON texts. An empty `prompt` means that the record has none. Throws Error
// kData, with `place` in front of the message, for another form.
PreferenceRecord ReadPreference(const std::string& prompt, const std::string& chosen,
                                const std::string& rejected, const std::string& place);

// The treatment of an example with more tokens than a row.
enum class TooLong : uint8_t { kError, kCut, kDrop };
const char* Name(TooLong rule);  // "error", "cut", "drop"

struct ExampleRules {
  int64_t row_len = 512;
  TooLong too_long = TooLong::kError;
  // How prompts and answers are encoded. The text of a class example always uses kPlain.
  SpecialTokens special_tokens = SpecialTokens::kParse;
};

// A dropped example is empty.
struct Example {
  std::vector<int32_t> ids, labels;  // equal lengths; kNoTarget marks a token without a label
  // In a pair, the place where the rejected sequence begins, as a document of its own. 0: one
  // document.
  size_t rejected_begin = 0;
  int64_t num_bytes = 0;  // bytes of text before truncation
  bool cut = false, dropped = false;
};

class ExampleEncoder {
 public:
  // `tokenizer` is borrowed and must outlive the encoder.
  ExampleEncoder(const Tokenizer& tokenizer, const ExampleRules& rules)
      : tokenizer_(tokenizer), rules_(rules) {}

  // Encodes the text and an eos, which is kept if the text is truncated. The label of the first
  // token is the class. Throws Error kData, with `place` in the message, if the example is too long
  // and the rules allow neither truncating nor dropping it.
  Example OfClass(std::string_view text, int32_t label, const std::string& place) const;
  // Encodes prompt, answer and eos. Prompt and answer are tokenised separately, so that the prompt
  // has the same ids without its answer. They may contain eos tokens
  // (ExampleRules::special_tokens), but the example is still one document. The label of a token is
  // the next token if that belongs to the answer or is the final eos. A truncated answer ends
  // without eos. An example without any token of its answer left is dropped.
  Example OfAnswer(std::string_view prompt, std::string_view answer,
                   const std::string& place) const;
  // Returns an example in which the label of a token is the next token if an assistant writes that.
  // No eos is added, because the template ends the turns. An example without any label is dropped.
  Example OfChat(ChatTokens tokens, const std::string& place) const;
  // Joins two sequences, which may be of any length, to a pair. Both must fit into one row, and the
  // pair is dropped with either of them. They are never truncated, because the ends of answers
  // count.
  Example OfPair(const Example& chosen, const Example& rejected, const std::string& place) const;

 private:
  // Truncates `ids` to the row length, or throws. Returns false if the example must be dropped.
  bool Fit(std::vector<int32_t>& ids, const std::string& place) const;
  // Labels each token with the next token if that belongs to an answer. Returns whether any does.
  bool LabelNext(Example& example, const std::function<bool(size_t token)>& is_answer) const;

  const Tokenizer& tokenizer_;
  const ExampleRules rules_;
};

struct RowPackerConfig {
  int64_t row_len = 512;
  int32_t pad_id = 0;
  bool one_per_row = false;  // one example per row; otherwise as many as fit, in order
};

// Packs examples into rows of equal length. An example is one document or a pair of documents. The
// rest of a row is another document, of padding without labels, which no example can attend to.
class RowPacker {
 public:
  // `writer` is borrowed and must be configured with labels.
  RowPacker(ShardWriter& writer, const RowPackerConfig& config)
      : writer_(writer), config_(config) {}
  // `example` must have at most row_len tokens.
  void Add(const Example& example);
  void Finish();  // pads the last row
  int64_t num_rows() const { return num_rows_; }

 private:
  void PadRow();

  ShardWriter& writer_;
  const RowPackerConfig config_;
  int64_t used_ = 0;  // tokens in the current row
  int64_t num_rows_ = 0;
};

}  // namespace halflife::data
