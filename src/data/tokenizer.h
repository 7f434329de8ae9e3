// Text to token ids and back. A dataset and a run carry their tokenizer in a folder of their own
// (`tokenizer/`).
//
//   auto tokenizer = LoadTokenizer(run / "tokenizer");
//   std::vector<int32_t> ids = tokenizer->Encode("In the beginning");
//
// `bytes` uses ByT5's layout: pad 0, eos 1, unk 2, byte b = b + 3; vocabulary 259.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat_templates.h"

namespace halflife::data {

// Ids that stand for no text; -1: the tokenizer has none. eos is always there.
struct SpecialIds {
  int bos = -1;
  int eos = -1;
  int pad = -1;
  int unk = -1;
  bool operator==(const SpecialIds&) const = default;
};

// How the name of a special token in a text is read, such as "<|im_end|>" or "</s>".
//
// | kind | special tokens with a name |
// |---|---|
// | bytes | none: both ways give the same ids |
// | sentencepiece | the unknown and the control pieces. User-defined pieces are found either way |
// | bpe | the eos token. The other added tokens are found either way |
enum class SpecialTokens : uint8_t {
  kPlain,  // As characters. eos is then never among the ids.
  kParse,  // As the id of that token, as the Hugging Face libraries do.
};
constexpr const char* Name(SpecialTokens special) {
  return special == SpecialTokens::kPlain ? "plain" : "parse";
}

// How often a text contains the name of each special token. Names that it lacks have no entry.
using NameCounts = std::map<std::string, int64_t>;

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual const std::string& kind() const = 0;  // "bytes" | "sentencepiece" | "bpe"
  virtual int vocab_size() const = 0;
  virtual SpecialIds special_ids() const = 0;
  int eos_id() const { return special_ids().eos; }
  // Adds no bos and no eos around the text. Thread-safe.
  std::vector<int32_t> Encode(std::string_view text,
                              SpecialTokens special = SpecialTokens::kPlain) const;
  virtual void EncodeAppend(std::string_view text, SpecialTokens special,
                            std::vector<int32_t>& ids) const = 0;
  // Adds the names in `text` that kPlain reads as characters and kParse as ids. Thread-safe.
  virtual void CountSpecialNames(std::string_view text, NameCounts& counts) const;
  // Special ids decode to nothing. Bytes that are not UTF-8 come back as they were (bytes) or as
  // U+FFFD.
  std::string Decode(const std::vector<int32_t>& ids) const;
  // Appends the bytes that `id` stands for and returns true; false for special ids, which stand for
  // none. A character may take several ids. `at_start`: no id before it stood for text; there a
  // sentencepiece model with a dummy prefix drops its own leading space.
  virtual bool AppendBytes(int32_t id, bool at_start, std::string& bytes) const = 0;
  // What a byte sequence that is not UTF-8 becomes in decoded text: itself, or U+FFFD.
  virtual bool keeps_invalid_bytes() const = 0;
  // What the kind needs besides its name: bytes by file name.
  virtual std::map<std::string, std::string> Files() const = 0;
  // Those that came with the tokenizer. They change no id.
  const ChatTemplates& chat_templates() const { return chat_templates_; }
  void set_chat_templates(ChatTemplates templates) { chat_templates_ = std::move(templates); }
  // Writes everything LoadTokenizer needs into an existing folder.
  void Save(const std::filesystem::path& folder) const;

 private:
  ChatTemplates chat_templates_;
};

// Decodes a stream of ids so that only whole UTF-8 characters are handed out. A stream that goes on
// from a text of other ids, such as a prompt, is no start (see AppendBytes).
class StreamDecoder {
 public:
  enum class Begins { kText, kAfterText };
  explicit StreamDecoder(const Tokenizer& tokenizer, Begins begins = Begins::kText)
      : tokenizer_(tokenizer), at_start_(begins == Begins::kText) {}
  std::string Push(int32_t id);  // the text that became certain with this id; may be empty
  std::string Finish();          // what is left; further ids are another text

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;  // the beginning of a character: at most 3 bytes
  bool at_start_;
};

// The characters of `text` (UTF-8) that become unk, each once, in their order; none where the
// tokenizer falls back on bytes.
std::vector<std::string> UnknownCharacters(const Tokenizer& tokenizer, std::string_view text,
                                           SpecialTokens special = SpecialTokens::kPlain);

std::unique_ptr<Tokenizer> MakeByteTokenizer();
// A sentencepiece .model file's bytes. Error kData where they are no model.
std::unique_ptr<Tokenizer> MakeSentencePieceTokenizer(std::string model_bytes);
// Byte-level BPE from a tokenizer.json and those of kSpecialTokenFiles (bpe/special_tokens.h) that
// lie beside it: bytes by file name. `name` of tokenizer.json is for errors. With kParse, ids are
// those of the Hugging Face tokenizers library without special tokens around the text. Bytes that
// are not UTF-8 are read as U+FFFD. Error kData names what is not supported.
std::unique_ptr<Tokenizer> MakeBpeTokenizer(std::map<std::string, std::string> files,
                                            const std::string& name);
// From a folder that Save wrote to.
std::unique_ptr<Tokenizer> LoadTokenizer(const std::filesystem::path& folder);

}  // namespace halflife::data
