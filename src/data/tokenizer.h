// Converts text to token ids and back. Each dataset and each run contains its tokenizer in a folder
// `tokenizer/`.
//
//   auto tokenizer = LoadTokenizer(run / "tokenizer");
//   std::vector<int32_t> ids = tokenizer->Encode("In the beginning");
//
// The kind `bytes` uses the layout of ByT5: pad 0, eos 1, unk 2, byte b = b + 3; vocabulary size
// 259.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace halflife::data {

// The chat templates that come with a tokenizer: Jinja source that converts the messages of a chat
// into a prompt. They are kept as they are, so that an exported model has the templates of the
// imported one. No template is run; chat/chat_template.h has the templates that can be used.
//
//   const ChatTemplates templates = ReadChatTemplates("Qwen2-0.5B-Instruct/");
//   WriteChatTemplates(templates, "export/");
//
// The template "default" is the file chat_template.jinja, and any other is
// additional_chat_templates/NAME.jinja. This is how transformers writes them.
using ChatTemplates = std::map<std::string, std::string>;  // source by name

// Reads the files above. Without any, reads `chat_template` of tokenizer_config.json, which is a
// template or a list of named ones. Throws Error kData for a `chat_template` of another form, a
// name that is not usable as a file name, or a template of more than 16 MiB.
ChatTemplates ReadChatTemplates(const std::filesystem::path& folder);

// `folder` must exist. Throws Error kData on failure.
void WriteChatTemplates(const ChatTemplates& templates, const std::filesystem::path& folder);

// Ids that represent no text; -1 if the tokenizer has no such id. eos always exists.
struct SpecialIds {
  int bos = -1;
  int eos = -1;
  int pad = -1;
  int unk = -1;
  bool operator==(const SpecialIds&) const = default;
};

// How the name of a special token in a text, such as "<|im_end|>" or "</s>", is encoded.
//
// | kind | special tokens with a name |
// |---|---|
// | bytes | none: both ways give the same ids |
// | sentencepiece | the unknown and the control pieces. User-defined pieces are found either way |
// | bpe | the eos token. The other added tokens are found either way |
enum class SpecialTokens : uint8_t {
  kPlain,  // as characters; the ids then never contain eos
  kParse,  // as the id of that token, as in the Hugging Face libraries
};
constexpr const char* Name(SpecialTokens special) {
  return special == SpecialTokens::kPlain ? "plain" : "parse";
}

// Where a sentencepiece tokenizer puts a space in front of text, so that the first word is the same
// piece as in the middle of a sentence. A part is the text between two special tokens.
enum class PrefixSpace : uint8_t {
  kModel,   // the model's own rule: its add_dummy_prefix puts a space in front of each part
  kAlways,  // in front of each part that does not begin with a space
  kFirst,   // in front of a text that does not begin with a space or a special token
  kNever,
};

// The number of occurrences of each special token's name in a text. Names that do not occur have no
// entry.
using NameCounts = std::map<std::string, int64_t>;

// The bytes [begin, end) of a text, with the name of a special token.
struct NameRange {
  size_t begin = 0, end = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual const std::string& kind() const = 0;  // "bytes" | "sentencepiece" | "bpe"
  virtual int vocab_size() const = 0;
  virtual SpecialIds special_ids() const = 0;
  int eos_id() const { return special_ids().eos; }
  // Whether every text begins with bos. The tokenizer's files decide, as in transformers: the
  // template of tokenizer.json or, without that file, `add_bos_token` of tokenizer_config.json.
  // False without a bos, or if bos is eos, which ends a document.
  bool begins_with_bos() const { return begins_with_bos_; }
  void set_begins_with_bos(bool begins);
  // Encodes a text from its beginning. Prepends bos if begins_with_bos(), unless the text already
  // begins with the name of bos. Thread-safe.
  std::vector<int32_t> EncodeText(std::string_view text,
                                  SpecialTokens special = SpecialTokens::kPlain) const;
  void AppendText(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids) const;
  // Encodes a text without adding bos or eos. Thread-safe.
  std::vector<int32_t> Encode(std::string_view text,
                              SpecialTokens special = SpecialTokens::kPlain) const;
  virtual void EncodeAppend(std::string_view text, SpecialTokens special,
                            std::vector<int32_t>& ids) const = 0;
  // As EncodeAppend, for text that is not at the beginning. Differs with PrefixSpace::kFirst.
  virtual void ContinueAppend(std::string_view text, SpecialTokens special,
                              std::vector<int32_t>& ids) const {
    EncodeAppend(text, special, ids);
  }
  virtual PrefixSpace prefix_space() const { return PrefixSpace::kModel; }
  // Returns where names of special tokens are in a text that is encoded with kParse, in order. The
  // ids of the text are those of its parts between the begins of these names, one after another. So
  // are the ids of each beginning of the text, for the names that are whole in it. Names for which
  // this does not hold may be left out. Thread-safe.
  virtual std::vector<NameRange> SpecialNames(std::string_view text) const;
  // Adds the occurrences of names in `text` that kPlain encodes as characters and kParse as ids.
  // Thread-safe.
  virtual void CountSpecialNames(std::string_view text, NameCounts& counts) const;
  // Decodes ids. Special ids decode to nothing. Bytes that are not UTF-8 are returned unchanged
  // (kind bytes) or as U+FFFD.
  std::string Decode(const std::vector<int32_t>& ids) const;
  // Appends the bytes that `id` represents and returns true; returns false for special ids, which
  // represent none. A character may consist of several ids. `at_start` means that no previous id
  // represented text; a sentencepiece model with a dummy prefix then omits the leading space that
  // it added.
  virtual bool AppendBytes(int32_t id, bool at_start, std::string& bytes) const = 0;
  // True: decoded text keeps byte sequences that are not UTF-8. False: they become U+FFFD.
  virtual bool keeps_invalid_bytes() const = 0;
  // Returns the files that LoadTokenizer reads for ids, as contents by file name.
  std::map<std::string, std::string> Files() const;
  // The chat templates that came with the tokenizer. They do not affect ids.
  const ChatTemplates& chat_templates() const { return chat_templates_; }
  void set_chat_templates(ChatTemplates templates) { chat_templates_ = std::move(templates); }
  // Writes all files that LoadTokenizer needs into an existing folder.
  void Save(const std::filesystem::path& folder) const;

 protected:
  virtual std::map<std::string, std::string> FilesOfKind() const = 0;

 private:
  ChatTemplates chat_templates_;
  bool begins_with_bos_ = false;
};

// Decodes a stream of ids and returns only whole UTF-8 characters. A stream that continues a text
// of other ids, such as a prompt, does not begin at the start (see AppendBytes).
class StreamDecoder {
 public:
  enum class Begins { kText, kAfterText };
  explicit StreamDecoder(const Tokenizer& tokenizer, Begins begins = Begins::kText)
      : tokenizer_(tokenizer), at_start_(begins == Begins::kText) {}
  std::string Push(int32_t id);  // the text that is complete with this id; may be empty
  std::string Finish();          // the remaining text; further ids start a new text

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;  // the beginning of a character, at most 3 bytes
  bool at_start_;
};

// Returns the characters of `text` (UTF-8) that are encoded as unk, each once and in order. Empty
// if the tokenizer falls back to bytes.
std::vector<std::string> UnknownCharacters(const Tokenizer& tokenizer, std::string_view text,
                                           SpecialTokens special = SpecialTokens::kPlain);

std::unique_ptr<Tokenizer> MakeByteTokenizer();
// Makes a tokenizer from the content of a sentencepiece .model file. Throws Error kData if it is
// not a model.
std::unique_ptr<Tokenizer> MakeSentencePieceTokenizer(
    std::string model_bytes, PrefixSpace prefix_space = PrefixSpace::kModel);
// Makes a byte-level BPE tokenizer. `files` maps file names to contents: tokenizer.json and those
// of kSpecialTokenFiles (bpe/special_tokens.h) that exist in the same folder. `name` is the name of
// tokenizer.json in error messages. With kParse, ids equal those of the Hugging Face tokenizers
// library without special tokens around the text. The template of tokenizer.json decides
// begins_with_bos(). Bytes that are not UTF-8 are read as U+FFFD.
// Throws Error kData that names what is not supported.
std::unique_ptr<Tokenizer> MakeBpeTokenizer(std::map<std::string, std::string> files,
                                            const std::string& name);
// Loads a tokenizer from a folder that Save wrote to.
std::unique_ptr<Tokenizer> LoadTokenizer(const std::filesystem::path& folder);

}  // namespace halflife::data
