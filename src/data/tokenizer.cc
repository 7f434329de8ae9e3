#include "data/tokenizer.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "data/tokenizer_folder.h"
#include "data/utf8.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

constexpr char kDefault[] = "default";
constexpr char kDefaultFile[] = "chat_template.jinja";
constexpr char kOthersFolder[] = "additional_chat_templates";
constexpr char kExtension[] = ".jinja";
constexpr uint64_t kMaxTemplateBytes = 16 << 20;
constexpr size_t kMaxNameBytes = 100;

bool IsThere(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

ChatTemplates ReadFiles(const fs::path& folder) {
  ChatTemplates templates;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder / kOthersFolder, ignored)) {
    if (entry.path().extension() == kExtension && IsThere(entry.path()))
      templates[entry.path().stem()] = ReadFile(entry.path(), ExitCode::kData, kMaxTemplateBytes);
  }
  if (const fs::path file = folder / kDefaultFile; IsThere(file))
    templates[kDefault] = ReadFile(file, ExitCode::kData, kMaxTemplateBytes);
  return templates;
}

bool IsFileName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' &&
         std::ranges::all_of(name, [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
         });
}

ChatTemplates FromConfig(const fs::path& path) {
  const auto config = nlohmann::json::parse(ReadJsonText(path), nullptr, false);
  if (!config.is_object() || !config.contains("chat_template")) return {};
  const nlohmann::json& value = config["chat_template"];
  if (value.is_null()) return {};
  if (value.is_string()) return {{kDefault, value.get<std::string>()}};
  ChatTemplates templates;
  const auto is_named = [](const nlohmann::json& entry) {
    return entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
           entry.contains("template") && entry["template"].is_string();
  };
  HL_CHECK_AS(ExitCode::kData, value.is_array() && std::ranges::all_of(value, is_named),
              path.string(),
              ": chat_template is neither a string nor a list of {\"name\": ..., "
              "\"template\": ...}. Correct it, or remove it.");
  for (const nlohmann::json& entry : value) {
    const std::string name = entry["name"].get<std::string>();
    HL_CHECK_AS(ExitCode::kData, IsFileName(name), path.string(), ": the chat template '",
                name.substr(0, kMaxNameBytes), "' cannot be a file. Use a name of at most ",
                kMaxNameBytes, " letters, digits, '_', '-' and '.'.");
    templates[name] = entry["template"].get<std::string>();
  }
  return templates;
}

}  // namespace

ChatTemplates ReadChatTemplates(const fs::path& folder) {
  ChatTemplates templates = ReadFiles(folder);
  const fs::path config = folder / kTokenizerConfigFile;
  if (templates.empty() && IsThere(config)) return FromConfig(config);
  return templates;
}

void WriteChatTemplates(const ChatTemplates& templates, const fs::path& folder) {
  for (const auto& [name, source] : templates) {
    fs::path path = folder / kDefaultFile;
    if (name != kDefault) {
      fs::create_directories(folder / kOthersFolder);
      path = folder / kOthersFolder / Concat(name, kExtension);
    }
    AtomicWriteFile(path, source, ExitCode::kData);
  }
}

namespace {

namespace fs = std::filesystem;

class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int kNumSpecial = 3;  // pad, eos, unk

  const std::string& kind() const override { return kind_; }
  int vocab_size() const override { return kNumSpecial + 256; }
  SpecialIds special_ids() const override { return {.bos = -1, .eos = 1, .pad = 0, .unk = 2}; }
  bool keeps_invalid_bytes() const override { return true; }

  void EncodeAppend(std::string_view text, SpecialTokens,
                    std::vector<int32_t>& ids) const override {
    const size_t old_size = ids.size();
    ids.resize(old_size + text.size());
    for (size_t i = 0; i < text.size(); ++i) {
      ids[old_size + i] = static_cast<uint8_t>(text[i]) + kNumSpecial;
    }
  }

  bool AppendBytes(int32_t id, bool, std::string& bytes) const override {
    HL_CHECK(id >= 0 && id < vocab_size(), "token id ", id, " of a vocabulary of ", vocab_size());
    if (id < kNumSpecial) return false;
    bytes += static_cast<char>(id - kNumSpecial);
    return true;
  }

 protected:
  std::map<std::string, std::string> FilesOfKind() const override { return {}; }

 private:
  const std::string kind_ = kBytesKind;
};

}  // namespace

std::vector<NameRange> Tokenizer::SpecialNames(std::string_view) const { return {}; }

void Tokenizer::CountSpecialNames(std::string_view, NameCounts&) const {}

std::map<std::string, std::string> Tokenizer::Files() const {
  std::map<std::string, std::string> files = FilesOfKind();
  if (!begins_with_bos_) return files;
  std::string& config = files[kTokenizerConfigFile];
  auto json =
      config.empty() ? nlohmann::ordered_json::object() : nlohmann::ordered_json::parse(config);
  json[kAddBosToken] = true;
  config = json.dump(2) + "\n";
  return files;
}

void Tokenizer::Save(const fs::path& folder) const {
  for (const auto& [name, bytes] : Files()) {
    AtomicWriteFile(folder / name, bytes, ExitCode::kData);
  }
  WriteChatTemplates(chat_templates_, folder);
  AtomicWriteFile(folder / kTokenizerKindFile, kind() + "\n", ExitCode::kData);
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, SpecialTokens special) const {
  std::vector<int32_t> ids;
  EncodeAppend(text, special, ids);
  return ids;
}

void Tokenizer::set_begins_with_bos(bool begins) {
  const SpecialIds ids = special_ids();
  begins_with_bos_ = begins && ids.bos >= 0 && ids.bos != ids.eos;
}

void Tokenizer::AppendText(std::string_view text, SpecialTokens special,
                           std::vector<int32_t>& ids) const {
  if (!begins_with_bos_) return EncodeAppend(text, special, ids);
  const size_t begin = ids.size();
  ids.push_back(special_ids().bos);
  EncodeAppend(text, special, ids);
  if (ids.size() > begin + 1 && ids[begin + 1] == ids[begin])
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(begin));
}

std::vector<int32_t> Tokenizer::EncodeText(std::string_view text, SpecialTokens special) const {
  std::vector<int32_t> ids;
  AppendText(text, special, ids);
  return ids;
}

std::string Tokenizer::Decode(const std::vector<int32_t>& ids) const {
  std::string bytes;
  bool at_start = true;
  for (const int32_t id : ids) {
    if (AppendBytes(id, at_start, bytes)) at_start = false;
  }
  return keeps_invalid_bytes() ? bytes : ReplaceInvalidUtf8(bytes);
}

std::string StreamDecoder::Push(int32_t id) {
  if (tokenizer_.AppendBytes(id, at_start_, pending_)) at_start_ = false;
  std::string text = std::move(pending_);
  const size_t tail = IncompleteUtf8Tail(text);
  pending_ = text.substr(text.size() - tail);
  text.resize(text.size() - tail);
  return tokenizer_.keeps_invalid_bytes() ? text : ReplaceInvalidUtf8(text);
}

std::string StreamDecoder::Finish() {
  const std::string text = std::move(pending_);
  pending_.clear();
  at_start_ = true;
  return tokenizer_.keeps_invalid_bytes() ? text : ReplaceInvalidUtf8(text);
}

std::vector<std::string> UnknownCharacters(const Tokenizer& tokenizer, std::string_view text,
                                           SpecialTokens special) {
  const int unk = tokenizer.special_ids().unk;
  const auto becomes_unk = [&](std::string_view piece) {
    const std::vector<int32_t> ids = tokenizer.Encode(piece, special);
    return std::find(ids.begin(), ids.end(), unk) != ids.end();
  };
  std::vector<std::string> unknown;
  if (unk < 0 || !becomes_unk(text)) return unknown;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin + 1;
    while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
    const std::string_view character = text.substr(begin, end - begin);
    begin = end;
    if (std::find(unknown.begin(), unknown.end(), character) != unknown.end()) continue;
    if (becomes_unk(character)) unknown.emplace_back(character);
  }
  return unknown;
}

std::unique_ptr<Tokenizer> MakeByteTokenizer() { return std::make_unique<ByteTokenizer>(); }

namespace {

std::unique_ptr<Tokenizer> LoadKind(const fs::path& folder) {
  const fs::path path = folder / kTokenizerKindFile;
  std::error_code ignored;
  HL_CHECK_AS(ExitCode::kData, fs::exists(path, ignored), "there is no tokenizer in ",
              folder.string(), ": ", path.string(),
              " is missing. Name a folder that `halflife "
              "prepare` or a run has written.");
  std::string kind = ReadFile(path, ExitCode::kData);
  while (!kind.empty() && kind.back() == '\n') kind.pop_back();
  const auto read = [&](const char* name) { return ReadFile(folder / name, ExitCode::kData); };
  if (kind == kBytesKind) return MakeByteTokenizer();
  if (kind == kSentencePieceKind) {
    return MakeSentencePieceTokenizer(read(kSentencePieceFile),
                                      SavedPrefixSpace(folder / kTokenizerConfigFile));
  }
  if (kind == kBpeKind) {
    return MakeBpeTokenizer({{kTokenizerJsonFile, read(kTokenizerJsonFile)},
                             {kTokenizerConfigFile, read(kTokenizerConfigFile)}},
                            (folder / kTokenizerJsonFile).string());
  }
  HL_FAIL(ExitCode::kData, path.string(), " names the kind '", kind, "'; this program supports ",
          kBytesKind, ", ", kSentencePieceKind, " and ", kBpeKind);
}

}  // namespace

std::unique_ptr<Tokenizer> LoadTokenizer(const fs::path& folder) {
  std::unique_ptr<Tokenizer> tokenizer = LoadKind(folder);
  tokenizer->set_chat_templates(ReadChatTemplates(folder));
  tokenizer->set_begins_with_bos(AddsBos(folder / kTokenizerConfigFile));
  return tokenizer;
}

}  // namespace halflife::data
