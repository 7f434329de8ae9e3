#include "data/bpe/tokenizer_json.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/error.h"
#include "core/json_text.h"
#include "data/bpe/merger.h"

namespace halflife::data {
namespace {

using nlohmann::json;

// The largest files in use have 35 MB. Parsed JSON takes up to about 20 times its size in memory.
constexpr size_t kMaxFileBytes = 128 << 20;
constexpr size_t kMaxAddedTokens = 1 << 16;
constexpr size_t kMaxAddedTokenBytes = 1024;
constexpr size_t kMaxJsonSteps = 16;
constexpr int kMaxJsonNesting = 32;
constexpr size_t kMaxShownBytes = 60;  // excerpts of the file in error messages
constexpr char kRemedy[] =
    ". Use a byte-level BPE tokenizer such as those of GPT-2, Llama 3 and Qwen, or a sentencepiece "
    ".model.";

// From GPT-2's encoder.py. ByteLevel splits by this pattern if use_regex is true.
constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string Shown(const std::string& text) {
  return text.size() <= kMaxShownBytes ? text : Concat(text.substr(0, kMaxShownBytes), "...");
}
std::string Shown(const json& value) { return Shown(value.dump()); }

class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  json Parse(std::string_view text) const {
    Require(text.size() <= kMaxFileBytes, "has ", text.size(), " bytes, more than the limit of ",
            kMaxFileBytes);
    Require(JsonNesting(text) <= kMaxJsonNesting, "is nested too deeply");
    json root;
    try {
      root = json::parse(text);
    } catch (const json::exception& error) {
      // The text is "[json.exception.parse_error.101] parse error at ..."; this drops the bracketed
      // part.
      const std::string words = error.what();
      HL_FAIL(ExitCode::kData, name_, " is not JSON: ", words.substr(words.find("] ") + 2));
    }
    Require(root.is_object(), "is not a JSON object");
    return root;
  }

  BpeSpec Read(const json& root) {
    CheckKeys(root, "the file",
              {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
               "post_processor", "decoder", "model"});
    // Truncation and padding apply to batches and are ignored for text.
    const json& version = Field(root, "version");
    Require(version.is_string() && version == "1.0", "has version ", Shown(version),
            ", not \"1.0\"");
    ReadModel(Field(root, "model"));
    ReadNormalizer(Field(root, "normalizer"));
    ReadPreTokenizer(Field(root, "pre_tokenizer"));
    CheckDecoder(Field(root, "decoder"));
    ReadAddedTokens(Field(root, "added_tokens"));
    ReadPostProcessor(Field(root, "post_processor"), 0);
    spec_.template_begin = BeginOfTemplate(Field(root, "post_processor"));
    return std::move(spec_);
  }

  // Returns the "type" of a part; "" if it has none.
  std::string Type(const json& part) const {
    const json& type = Field(part, "type");
    return type.is_string() ? Shown(type.get<std::string>()) : std::string();
  }

  // Returns null if the key is missing.
  const json& Field(const json& object, const char* key) const {
    if (!object.is_object()) return null_;
    const auto found = object.find(key);
    return found == object.end() ? null_ : *found;
  }

 private:
  template <typename... Pieces>
  [[noreturn]] void Fail(const Pieces&... problem) const {
    HL_FAIL(ExitCode::kData, name_, " ", problem..., kRemedy);
  }
  template <typename... Pieces>
  void Require(bool condition, const Pieces&... problem) const {
    if (!condition) Fail(problem...);
  }

  void CheckKeys(const json& object, const std::string& part,
                 std::initializer_list<std::string_view> known) const {
    Require(object.is_object(), "has no object for ", part);
    for (const auto& [key, value] : object.items()) {
      Require(std::find(known.begin(), known.end(), key) != known.end(), "has a key '", Shown(key),
              "' in ", part, ", which is not supported");
    }
  }

  bool Flag(const json& object, const char* key, bool absent) const {
    const json& value = Field(object, key);
    if (value.is_null()) return absent;
    Require(value.is_boolean(), "has a ", key, " that is neither true nor false");
    return value.get<bool>();
  }

  std::string Text(const json& object, const char* key) const {
    const json& value = Field(object, key);
    Require(value.is_string(), "has a ", key, " that is not a string");
    return value.get<std::string>();
  }

  int64_t Id(const json& value) const {
    if (!value.is_number_integer() || value < 0 || value > INT32_MAX) {
      Fail("has the id ", Shown(value), ", which is not a whole number from 0 to 2147483647");
    }
    return value.get<int64_t>();
  }

  void ReadModel(const json& model) {
    Require(model.is_object(), "has no model");
    std::string type = Type(model);
    if (type.empty() && model.contains("merges")) type = "BPE";  // older versions omit the type
    Require(type == "BPE", "has a model of type ", type.empty() ? "unknown" : type);
    CheckKeys(model, "model",
              {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
               "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    const json& dropout = Field(model, "dropout");
    Require(dropout.is_null() || dropout == 0.0, "drops merges at random (dropout)");
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const json& value = Field(model, affix);
      Require(value.is_null() || value == "", "has a ", affix, ", ", Shown(value));
    }
    // fuse_unk, byte_fallback and unk_token only matter for bytes without a token. Here every byte
    // has one.
    spec_.ignore_merges = Flag(model, "ignore_merges", false);
    ReadVocabulary(Field(model, "vocab"));
    ReadMerges(Field(model, "merges"));
  }

  void ReadVocabulary(const json& vocab) {
    Require(vocab.is_object() && !vocab.empty(), "has no vocabulary");
    spec_.tokens.resize(vocab.size());
    std::vector<bool> taken(vocab.size());
    ids_.reserve(vocab.size());
    for (const auto& [token, value] : vocab.items()) {
      const auto id = static_cast<size_t>(Id(value));
      if (id >= taken.size() || taken[id]) {
        Fail("gives '", Shown(token), "' the id ", id, ", but the ids of ", taken.size(),
             " tokens must be 0 to ", taken.size() - 1, ", each used once");
      }
      Require(!token.empty(), "has an empty token");
      taken[id] = true;
      spec_.tokens[id] = token;
      ids_.emplace(token, static_cast<int32_t>(id));
    }
    spec_.num_model_tokens = static_cast<int>(spec_.tokens.size());
    for (int byte = 0; byte < 256; ++byte) {
      Require(ids_.contains(AlphabetCharacter(static_cast<uint8_t>(byte))),
              "has no token for byte ", byte, ", so some texts cannot be encoded");
    }
  }

  int32_t TokenId(const std::string& token, const json& merge) const {
    const auto found = ids_.find(token);
    if (found == ids_.end()) {
      Fail("has the merge ", Shown(merge), ", but no token '", Shown(token), "'");
    }
    return found->second;
  }

  // ["a", "b"], or "a b" in files of older versions.
  std::pair<std::string, std::string> Pair(const json& merge) const {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : "";
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      Fail("has the merge ", Shown(merge), ", which is not a pair");
    }
    return {text.substr(0, space), text.substr(space + 1)};
  }

  void ReadMerges(const json& merges) {
    Require(merges.is_array(), "has no list of merges");
    spec_.merges.reserve(merges.size());
    std::unordered_set<uint64_t> pairs(merges.size());
    for (const json& merge : merges) {
      const auto [left, right] = Pair(merge);
      const Merge read = {TokenId(left, merge), TokenId(right, merge),
                          TokenId(left + right, merge)};
      const uint64_t pair =
          static_cast<uint64_t>(read.left) << 32 | static_cast<uint32_t>(read.right);
      if (!pairs.insert(pair).second) Fail("lists the merge ", Shown(merge), " twice");
      spec_.merges.push_back(read);
    }
  }

  void ReadNormalizer(const json& normalizer) {
    if (normalizer.is_null()) return;
    const std::string type = Type(normalizer);
    if (type == "Sequence") {
      const json& parts = Field(normalizer, "normalizers");
      Require(parts.is_array() && parts.size() <= kMaxJsonSteps,
              "has a normalizer without its parts");
      for (const json& part : parts) {
        Require(Type(part) != "Sequence", "has a normalizer of sequences of sequences");
        ReadNormalizer(part);
      }
      return;
    }
    Require(type == "NFC", "has a normalizer of type '", type, "'; only NFC is supported");
    spec_.nfc = true;
  }

  void AddSplit(SplitStep step) {
    Require(spec_.splits.size() < kMaxJsonSteps, "has too many pre-tokenizers");
    spec_.splits.push_back(std::move(step));
  }

  void ReadPreTokenizer(const json& pre_tokenizer) {
    std::vector<const json*> parts = {&pre_tokenizer};
    if (Type(pre_tokenizer) == "Sequence") {
      parts.clear();
      const json& list = Field(pre_tokenizer, "pretokenizers");
      Require(list.is_array(), "has a pre_tokenizer without its parts");
      for (const json& part : list) parts.push_back(&part);
    }
    for (const json* part : parts) {
      const bool last = part == parts.back();
      const std::string type = Type(*part);
      if (type == "Split") {
        ReadSplit(*part);
      } else if (type == "Digits") {
        const bool individual = Flag(*part, "individual_digits", false);
        AddSplit({.pattern = individual ? R"(\p{N})" : R"(\p{N}+)"});
      } else {
        Require(type == "ByteLevel", "has a pre_tokenizer of type '", type,
                "'; only Split, Digits, ByteLevel and a Sequence of them are supported");
        Require(last, "has a pre_tokenizer after ByteLevel");
        AddSplit({.pattern = Flag(*part, "use_regex", true) ? kGpt2Pattern : "",
                  .add_prefix_space = Flag(*part, "add_prefix_space", true)});
      }
      Require(!last || type == "ByteLevel", "has a pre_tokenizer that does not end in ByteLevel");
    }
    Require(!parts.empty(), "has a pre_tokenizer without its parts");
  }

  void ReadSplit(const json& split) {
    const std::string behavior = Text(split, "behavior");
    const bool invert = Flag(split, "invert", false);
    Require(behavior == "Isolated" || (behavior == "Removed" && invert),
            "splits with the behavior '", Shown(behavior), "'", invert ? " inverted" : "",
            "; only Isolated, and Removed inverted, are supported");
    const json& pattern = Field(split, "pattern");
    Require(pattern.is_object() && pattern.size() == 1, "has a Split without a pattern");
    SplitStep step{.keep_between = behavior == "Isolated"};
    if (pattern.contains("Regex")) {
      step.pattern = Text(pattern, "Regex");
    } else {
      for (const char c : Text(pattern, "String")) {
        const bool mark = static_cast<uint8_t>(c) < 0x80 && std::ispunct(c) != 0 && c != '_';
        if (mark) step.pattern += '\\';
        step.pattern += c;
      }
    }
    Require(!step.pattern.empty(), "has a Split without a pattern");
    AddSplit(std::move(step));
  }

  void CheckDecoder(const json& decoder) const {
    const json& parts = Field(decoder, "decoders");
    const bool alone = Type(decoder) == "Sequence" && parts.is_array() && parts.size() == 1;
    const std::string type = Type(alone ? parts[0] : decoder);
    Require(type == "ByteLevel", "has a decoder of type '", type, "', not ByteLevel");
  }

  void ReadAddedTokens(const json& added) {
    if (added.is_null()) return;
    Require(added.is_array() && added.size() <= kMaxAddedTokens, "has a bad list of added tokens");
    std::unordered_set<int64_t> listed;
    for (const json& entry : added) {
      CheckKeys(entry, "an added token",
                {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      Require(entry.size() == 7, "has an added token without all its parts");
      AddedToken token{.content = Text(entry, "content"),
                       .special = Flag(entry, "special", false),
                       .lstrip = Flag(entry, "lstrip", false),
                       .rstrip = Flag(entry, "rstrip", false),
                       .normalized = Flag(entry, "normalized", false)};
      const std::string shown = Concat("the added token '", Shown(token.content), "'");
      Require(!token.content.empty() && token.content.size() <= kMaxAddedTokenBytes,
              "has an added token that is empty or too long");
      Require(!Flag(entry, "single_word", false), "has ", shown,
              " with single_word, which is not supported");
      // The library uses the model's id or the next free one and ignores a different id in the
      // file.
      const int64_t id = Id(Field(entry, "id"));
      const auto [found, is_new] =
          ids_.emplace(token.content, static_cast<int32_t>(spec_.tokens.size()));
      Require(found->second == id, "gives ", shown, " the id ", id, ", but it gets ",
              found->second);
      Require(listed.insert(id).second, "lists ", shown, " twice");
      if (is_new) spec_.tokens.push_back(token.content);
      token.id = found->second;
      spec_.added.push_back(std::move(token));
    }
  }

  // Finds eos, the special token at the end of the post-processor's template.
  void ReadPostProcessor(const json& processor, size_t depth) {
    if (processor.is_null()) return;
    const std::string type = Type(processor);
    if (type == "Sequence") {
      const json& parts = Field(processor, "processors");
      Require(parts.is_array() && depth < kMaxJsonSteps, "has a post_processor without its parts");
      for (const json& part : parts) ReadPostProcessor(part, depth + 1);
      return;
    }
    Require(type == "ByteLevel" || type == "TemplateProcessing" || type == "RobertaProcessing" ||
                type == "BertProcessing",
            "has a post_processor of type '", type,
            "'; only TemplateProcessing, ByteLevel, RobertaProcessing and BertProcessing are "
            "supported");
    const json& single = Field(processor, "single");
    if (type != "TemplateProcessing" || !single.is_array() || single.empty()) return;
    const json& last = Field(single.back(), "SpecialToken");
    const json& token = Field(last, "id");
    if (token.is_string()) spec_.template_end = token.get<std::string>();
  }

  const std::string& name_;
  const json null_;
  BpeSpec spec_;
  std::unordered_map<std::string, int32_t> ids_;
};

}  // namespace

int32_t BpeSpec::Find(std::string_view token) const {
  const auto found = std::find(tokens.begin(), tokens.end(), token);
  return found == tokens.end() ? -1 : static_cast<int32_t>(found - tokens.begin());
}

BpeSpec ReadTokenizerJson(std::string_view text, const std::string& name) {
  Reader reader(name);
  return reader.Read(reader.Parse(text));
}

std::string BeginOfTemplate(const json& post_processor) {
  if (!post_processor.is_object()) return "";
  if (const auto parts = post_processor.find("processors");
      parts != post_processor.end() && parts->is_array()) {
    for (const json& part : *parts)
      if (std::string name = BeginOfTemplate(part); !name.empty()) return name;
    return "";
  }
  const auto single = post_processor.find("single");
  if (single == post_processor.end() || !single->is_array() || single->size() < 2) return "";
  const json& first = single->at(0);
  const json& second = single->at(1);
  if (!first.is_object() || !second.is_object() || !second.contains("Sequence")) return "";
  const auto special = first.find("SpecialToken");
  if (special == first.end() || !special->is_object()) return "";
  const auto id = special->find("id");
  return id != special->end() && id->is_string() ? id->get<std::string>() : "";
}

bool IsByteLevelBpe(std::string_view text, const std::string& name) {
  const Reader reader(name);
  const json root = reader.Parse(text);
  return reader.Type(reader.Field(root, "decoder")) == "ByteLevel";
}

}  // namespace halflife::data
