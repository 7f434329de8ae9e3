#include "data/bpe/special_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "core/error.h"
#include "data/bpe/merger.h"

namespace halflife::data {
namespace {

using nlohmann::json;

constexpr size_t kMaxConfigBytes = 16 << 20;
constexpr std::span<const char* const> kNamedIn = std::span(kSpecialTokenFiles).first(2);
constexpr std::span<const char* const> kNumberedIn = std::span(kSpecialTokenFiles).last(2);

json ParseObject(const std::map<std::string, std::string>& files, const std::string& name) {
  const auto found = files.find(name);
  if (found == files.end()) return json::object();
  HL_CHECK_AS(ExitCode::kData, found->second.size() <= kMaxConfigBytes, name, " has ",
              found->second.size(), " bytes, more than the limit of ", kMaxConfigBytes);
  json parsed = json::parse(found->second, nullptr, false);
  HL_CHECK_AS(ExitCode::kData, parsed.is_object(), name, " is not a JSON object");
  return parsed;
}

// Reads "<s>" or, as the library writes it, {"content": "<s>", ...}. Returns "" if the key has
// neither form.
std::string TokenName(const json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_object()) return "";
  const auto content = found->find("content");
  return content != found->end() && content->is_string() ? content->get<std::string>() : "";
}

// Reads an id or the first of a list of ids; -1 if there is none.
int64_t TokenNumber(const json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) return -1;
  const json& value = found->is_array() && !found->empty() ? found->front() : *found;
  return value.is_number_integer() ? value.get<int64_t>() : -1;
}

class Finder {
 public:
  Finder(const BpeSpec& spec, const std::string& name,
         const std::map<std::string, std::string>& files)
      : spec_(spec), name_(name) {
    for (const char* file : kNamedIn) named_.push_back(ParseObject(files, file));
    for (const char* file : kNumberedIn) numbered_.push_back(ParseObject(files, file));
  }

  SpecialIds Find() const {
    const std::string bos = NameOf("bos_token");
    const SpecialIds ids = {.bos = SpecialNamed(bos.empty() ? spec_.template_begin : bos),
                            .eos = Eos(),
                            .pad = SpecialNamed(NameOf("pad_token")),
                            .unk = SpecialNamed(NameOf("unk_token"))};
    CheckEos(ids.eos);
    return ids;
  }

 private:
  std::string NameOf(const char* key) const {
    for (const json& config : named_) {
      if (std::string name = TokenName(config, key); !name.empty()) return name;
    }
    return "";
  }

  int SpecialNamed(const std::string& name) const {
    for (const AddedToken& token : spec_.added) {
      if (token.special && token.content == name) return token.id;
    }
    return -1;
  }

  int Eos() const {
    std::string name = NameOf("eos_token");
    if (name.empty()) {
      for (const json& config : numbered_) {
        const int64_t id = TokenNumber(config, "eos_token_id");
        if (id >= 0 && id < static_cast<int64_t>(spec_.tokens.size())) return static_cast<int>(id);
      }
      name = spec_.template_end;
    }
    std::string specials;
    for (const AddedToken& token : spec_.added) {
      if (token.special && specials.size() < 200) specials += Concat(" ", token.content);
    }
    HL_CHECK_AS(
        ExitCode::kData, !name.empty(), name_,
        " does not define the token that ends a document. Add a tokenizer_config.json "
        "with {\"eos_token\": \"...\"} to its folder, or the config.json of its model. Its special "
        "tokens are:",
        specials.empty() ? " none" : specials);
    const int id = spec_.Find(name);
    HL_CHECK_AS(ExitCode::kData, id >= 0, "the eos token '", name, "' is not a token of ", name_,
                "; its special tokens are:", specials.empty() ? " none" : specials);
    return id;
  }

  // Checks that the eos id always means the end of a document.
  void CheckEos(int eos) const {
    const std::string& token = spec_.tokens[static_cast<size_t>(eos)];
    const std::optional<std::string> bytes = BytesOfToken(token);
    const bool is_byte = bytes && bytes->size() == 1 && eos < spec_.num_model_tokens;
    const bool is_merged = std::any_of(spec_.merges.begin(), spec_.merges.end(),
                                       [&](const Merge& merge) { return merge.result == eos; });
    HL_CHECK_AS(ExitCode::kData, !is_byte && !is_merged, "the eos token '", token, "' of ", name_,
                " can also result from plain text. Name another one in tokenizer_config.json.");
  }

  const BpeSpec& spec_;
  const std::string& name_;
  std::vector<json> named_, numbered_;
};

}  // namespace

SpecialIds FindSpecialTokens(const BpeSpec& spec, const std::string& name,
                             const std::map<std::string, std::string>& files) {
  return Finder(spec, name, files).Find();
}

std::string TokenizerConfigJson(const BpeSpec& spec, const SpecialIds& ids) {
  // Other tokenizer classes rebuild the tokenizer from its vocabulary and lose its rules.
  nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
  const auto add = [&](const char* key, int id) {
    if (id >= 0) config[key] = spec.tokens[static_cast<size_t>(id)];
  };
  add("bos_token", ids.bos);
  add("eos_token", ids.eos);
  add("pad_token", ids.pad);
  add("unk_token", ids.unk);
  return config.dump(2) + "\n";
}

namespace {

// Returns the number of bytes of the white space character (Unicode White_Space) at the start of
// `text`, or 0 if there is none.
size_t SpaceAtStart(std::string_view text) {
  static constexpr std::array<std::string_view, 25> kSpaces = {
      "\t",           "\n",           "\v",
      "\f",           "\r",           " ",
      "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80",
      "\xE2\x80\x80", "\xE2\x80\x81", "\xE2\x80\x82",
      "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85",
      "\xE2\x80\x86", "\xE2\x80\x87", "\xE2\x80\x88",
      "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
      "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F",
      "\xE3\x80\x80"};
  for (const std::string_view space : kSpaces) {
    if (text.starts_with(space)) return space.size();
  }
  return 0;
}

size_t SkipSpaces(std::string_view text, size_t at) {
  while (const size_t bytes = SpaceAtStart(text.substr(at))) at += bytes;
  return at;
}

// Returns the start of the white space that ends at `end`.
size_t SpacesBefore(std::string_view text, size_t end) {
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    if (SpaceAtStart(text.substr(begin)) != end - begin) break;
    end = begin;
  }
  return end;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens) : tokens_(tokens) {
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    Range& range = by_first_byte_[static_cast<uint8_t>(tokens_[i].content.front())];
    if (range.end == 0) range.begin = i;
    range.end = i + 1;
  }
}

// Narrows the range of sorted tokens byte by byte to those that match the text.
const AddedToken* AddedTokenMatcher::LongestAt(std::string_view text, size_t at) const {
  const Range first = by_first_byte_[static_cast<uint8_t>(text[at])];
  auto begin = tokens_.begin() + first.begin, end = tokens_.begin() + first.end;
  const AddedToken* longest = nullptr;
  for (size_t depth = 1; begin != end; ++depth) {
    // The shortest token is first: either it is exactly the matched prefix, or no token is.
    if (begin->content.size() == depth) longest = &*begin++;
    if (at + depth == text.size()) break;
    const auto next = static_cast<uint8_t>(text[at + depth]);
    const auto byte = [depth](const AddedToken& token) {
      return static_cast<uint8_t>(token.content[depth]);
    };
    begin = std::partition_point(begin, end, [&](const auto& t) { return byte(t) < next; });
    end = std::partition_point(begin, end, [&](const auto& t) { return byte(t) == next; });
  }
  return longest;
}

void AddedTokenMatcher::Split(std::string_view text,
                              const std::function<void(std::string_view)>& on_text,
                              const std::function<void(int32_t)>& on_token) const {
  size_t done = 0;  // everything before was passed to a callback
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = LongestAt(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    const size_t begin = token->lstrip ? SpacesBefore(text, at) : at;
    if (begin > done) on_text(text.substr(done, begin - done));
    on_token(token->id);
    at += token->content.size();
    done = token->rstrip ? SkipSpaces(text, at) : at;
  }
  if (done < text.size()) on_text(text.substr(done));
}

std::vector<NameRange> AddedTokenMatcher::FindAll(std::string_view text) const {
  std::vector<NameRange> found;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = LongestAt(text, at);
    const size_t end = at + (token == nullptr ? 1 : token->content.size());
    if (token != nullptr && !token->lstrip) found.push_back({at, end});
    at = end;
  }
  return found;
}

}  // namespace halflife::data
