// Continues many texts at once (continuous batching): texts join and leave between any two steps.
// Prompts are read in chunks, and between two chunks all other texts advance by one token.
//
//   BatchDecoder decoder(model, {.max_texts = 32});
//   decoder.Add({.prompt = ids, .max_tokens = 100, .on_token = [](const ScoredToken& token) {
//     return token.logprob > -10;  // Or end the text.
//   }});
//   while (decoder.Advance()) {
//   }
//
// The bits of a text do not depend on the other texts, on the step in which it joins, or on whether
// its prefix was kept, on the CPU with the same number of LibTorch threads. Two rules ensure this:
// every operation has the same shape each time (RowGroup), and chunks of a prompt begin at
// multiples of the chunk size.
//
// Not thread-safe. Callbacks run within Advance and must not call the decoder.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/hash.h"
#include "infer/batch_config.h"
#include "infer/row_group.h"
#include "infer/sampler.h"
#include "model/language_model.h"

namespace halflife::infer {

// Keeps the states of prompts' beginnings, so that a later prompt with the same beginning does not
// compute it again. The least recently used states are dropped when the store is full.
//
//   PrefixStore store({.max_bytes = int64_t{1} << 30, .chunk = 256});
//   model::ModelState state = store.Find(prompt);  // After the longest kept beginning.
//   // Read the rest of the prompt, then keep a part of it:
//   if (store.Wants(1024, std::ssize(prompt))) store.Keep(prompt.first(1024), state);
class PrefixStore {
 public:
  explicit PrefixStore(const PrefixConfig& config) : config_(config) {}

  // Returns the state after the longest kept beginning that is shorter than the prompt. Its tensors
  // are shared with the store and must not be changed. num_tokens is 0 if there is none.
  model::ModelState Find(std::span<const int32_t> prompt);
  // Keeps the state after `prefix`, unless it is larger than the store. Call it if Wants(). Views
  // are copied, so that bytes() is the memory that the store occupies.
  void Keep(std::span<const int32_t> prefix, const model::ModelState& state);
  // Returns true if the state after `length` tokens of a prompt should be kept: after the last
  // whole chunk, and after 1, 2, 4, 8, ... chunks. A prompt then has few states, and prompts that
  // share half of their text find at least a quarter of it.
  bool Wants(int64_t length, int64_t prompt_tokens) const;

  int64_t bytes() const { return bytes_; }
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  // Numbers of prompt tokens: those that Find has returned states for, and those of all prompts
  // passed to Find.
  int64_t tokens_found() const { return tokens_found_; }
  int64_t tokens_sought() const { return tokens_sought_; }

 private:
  struct Entry {
    std::vector<int32_t> tokens;
    model::ModelState state;
    int64_t bytes = 0;
    uint64_t key = 0;
  };
  using Entries = std::list<Entry>;  // The most recently used first.
  Entries::iterator Lookup(uint64_t key, std::span<const int32_t> prefix);

  PrefixConfig config_;
  Entries entries_;
  std::unordered_multimap<uint64_t, Entries::iterator> by_key_;
  int64_t bytes_ = 0, tokens_found_ = 0, tokens_sought_ = 0;
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};
// A token of a text with ln p(token | tokens before it), at temperature 1 and before the penalty.
struct ScoredToken {
  int32_t id = 0;
  float logprob = 0;              // 0 unless logprobs were requested.
  std::vector<TokenLogprob> top;  // The most likely tokens, in descending order.
  bool is_end = false;            // One of end_ids, which is not a part of the text.
};

enum class TextEnd {
  kStop,       // The eos token, or on_token returned false.
  kLength,     // max_tokens.
  kPositions,  // The model supports no further position.
  kCancelled,
  kNoMemory,  // There was too little memory for the text. The caller knows the fix.
  kFailed,    // See TextResult::error.
};

struct TextResult {
  TextEnd end = TextEnd::kStop;
  int64_t prompt_tokens = 0, kept_tokens = 0;  // kept_tokens: prompt tokens of a kept prefix.
  int64_t new_tokens = 0;
  std::string error;
};

struct TextRequest {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 16;       // 0: only scores the prompt.
  std::vector<int32_t> end_ids;  // Tokens that end the text: eos.
  int64_t vocab_size = 0;        // Samples only ids below it. 0: all.
  SamplerConfig sampler;
  int top_logprobs = -1;      // Number of alternatives per token. -1: no logprobs.
  bool score_prompt = false;  // Calls on_prompt with the scores of the prompt's tokens.
  // The prompt's tokens from the second on. A call has those of one chunk.
  std::function<void(std::vector<ScoredToken> tokens)> on_prompt = {};
  // Each new token. Returns false to end the text.
  std::function<bool(const ScoredToken& token)> on_token = {};
  std::function<void(const TextResult& result)> on_end = {};
};

struct BatchStats {
  int64_t prompt_tokens = 0, kept_tokens = 0, new_tokens = 0, steps = 0;
};

class BatchDecoder {
 public:
  // Number of rows that are decoded together. Larger groups use the weights more often per read,
  // but where bits depend on the number of rows (see RowGroup), one text costs as much as a full
  // group.
  static constexpr int64_t kGroupRows = 8;

  // Borrows `model`. Throws kUsage if the model does not predict next tokens.
  BatchDecoder(const model::LanguageModel& model, const BatchConfig& config);

  bool has_room() const { return static_cast<int64_t>(texts_.size()) < config_.max_texts; }
  bool Contains(int64_t text) const { return texts_.contains(text); }
  int64_t num_texts() const { return static_cast<int64_t>(texts_.size()); }
  // Adds a text and returns its number. There must be room. Throws the errors of RequirePrompt and
  // of Sampler.
  int64_t Add(TextRequest request);
  // Ends a text with kCancelled. Does nothing if it has ended.
  void Cancel(int64_t text);
  // Reads a chunk of one prompt, and decodes one token of every text whose prompt is read. Returns
  // false if no text is left.
  bool Advance();

  const BatchStats& stats() const { return stats_; }
  const PrefixStore& prefixes() const { return prefixes_; }
  int64_t state_bytes() const;

 private:
  struct Text {
    TextRequest request;
    Sampler sampler;
    TextResult result;
    std::vector<int32_t> tokens;  // The prompt and the new tokens.
    // An earlier text with the same prompt, which was still being read when this one was added.
    // -1: none.
    int64_t same_prompt = -1;
    bool begun = false;         // Reading the prompt has begun.
    int64_t num_read = 0;       // Prompt tokens that the state contains.
    model::ModelState state;    // While the prompt is read.
    at::Tensor last_logits;     // After num_read tokens, [1, vocab], to score the next chunk.
    RowGroup* group = nullptr;  // Once the prompt is read: its place.
    int64_t row = 0;
  };
  using Texts = std::map<int64_t, Text>;

  // Returns the next text whose prompt is read. Prompts take turns, so that a short one need not
  // wait long. A text waits while an earlier one reads the same prompt, and then continues from the
  // kept prefix.
  int64_t NextToRead();
  // Starts at the longest kept prefix of the prompt. Called by Add, or before the first chunk of a
  // text that waits.
  void BeginReading(Text& text);
  void ReadChunk(int64_t number);
  // Scores the prompt's tokens that follow the positions of `logits`, which begin at num_read.
  void ScorePrompt(Text& text, const at::Tensor& logits);
  void BeginDecoding(int64_t number, const at::Tensor& logits);
  void DecodeGroup(RowGroup& group);
  // Returns false if there was no memory. The group's texts have then failed, because its states
  // are lost.
  bool DecodeOrFail(RowGroup& group);
  // Samples from logits [1, vocab] and reports the token. Returns false if the text has ended.
  bool TakeToken(int64_t number, const at::Tensor& logits);
  void End(int64_t number, TextEnd end, const std::string& error = {});

  const model::LanguageModel& model_;
  BatchConfig config_;
  RowBits row_bits_;
  PrefixStore prefixes_;
  BatchStats stats_;
  int64_t next_number_ = 0;
  Texts texts_;
  std::deque<int64_t> reading_;  // Texts whose prompt is being read, the next one first.
  std::vector<std::unique_ptr<RowGroup>> groups_;
};

}  // namespace halflife::infer
