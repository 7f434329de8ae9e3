#include "data/tokenizer_folder.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "data/bpe/special_tokens.h"
#include "data/bpe/tokenizer_json.h"
#include "data/shard_layout.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

constexpr char kKnown[] =
    "`bytes`, a sentencepiece .model file, a byte-level BPE tokenizer.json, the folder of a "
    "dataset "
    "or a run, or a folder with one of kind.txt, tokenizer.json, tokenizer.model and ByT5's "
    "tokenizer_config.json";

constexpr char kClass[] = "tokenizer_class";

bool IsFile(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// Returns the content of a tokenizer_config.json; an empty object if it is missing or damaged.
nlohmann::json ReadConfig(const fs::path& path) {
  if (!IsFile(path)) return nlohmann::json::object();
  auto config = nlohmann::json::parse(ReadJsonText(path), nullptr, /*allow_exceptions=*/false);
  return config.is_object() ? config : nlohmann::json::object();
}

bool IsTrue(const nlohmann::json& object, const char* key, bool otherwise = false) {
  const auto value = object.find(key);
  return value == object.end() || !value->is_boolean() ? otherwise : value->get<bool>();
}

std::string StringAt(const nlohmann::json& object, const char* key) {
  const auto value = object.find(key);
  return value == object.end() || !value->is_string() ? "" : value->get<std::string>();
}

// Opens a sentencepiece model. Errors name its file.
std::unique_ptr<Tokenizer> OpenSentencePiece(const fs::path& path, PrefixSpace prefix_space) {
  try {
    return MakeSentencePieceTokenizer(ReadFile(path, ExitCode::kData), prefix_space);
  } catch (const Error& error) {
    HL_FAIL(error.code(), path.string(), ": ", error.message());
  }
}

// Opens a byte-level BPE tokenizer, with the chat templates in the same folder.
std::unique_ptr<Tokenizer> OpenBpe(const fs::path& path) {
  std::map<std::string, std::string> files = {
      {kTokenizerJsonFile, ReadFile(path, ExitCode::kData)}};
  for (const char* name : kSpecialTokenFiles) {
    const fs::path sibling = path.parent_path() / name;
    if (IsFile(sibling)) files.emplace(name, ReadFile(sibling, ExitCode::kData));
  }
  std::unique_ptr<Tokenizer> tokenizer = MakeBpeTokenizer(std::move(files), path.string());
  tokenizer->set_chat_templates(ReadChatTemplates(path.parent_path()));
  return tokenizer;
}

// Returns true for ByT5, whose ids are those of `bytes`. Its sentinels (extra_ids) come after them
// and represent no text.
bool IsByT5(const fs::path& config) {
  return StringAt(ReadConfig(config), kClass) == "ByT5Tokenizer";
}

nlohmann::json ReadObject(const fs::path& path) {
  auto object = nlohmann::json::parse(ReadJsonText(path), nullptr, /*allow_exceptions=*/false);
  HL_CHECK_AS(ExitCode::kData, object.is_object(), path.string(), " is not a JSON object");
  return object;
}

// Returns true if the template of a tokenizer.json begins each text with the tokenizer's bos.
bool BeginsWithBos(const nlohmann::json& object, const Tokenizer& tokenizer) {
  const auto processor = object.find("post_processor");
  const std::string name = processor == object.end() ? "" : BeginOfTemplate(*processor);
  return !name.empty() && tokenizer.Encode(name, SpecialTokens::kParse) ==
                              std::vector<int32_t>{tokenizer.special_ids().bos};
}

constexpr std::pair<const char*, PrefixSpace> kPrependSchemes[] = {{"always", PrefixSpace::kAlways},
                                                                   {"first", PrefixSpace::kFirst},
                                                                   {"never", PrefixSpace::kNever}};

std::optional<PrefixSpace> SpaceOfScheme(std::string_view name) {
  for (const auto& [scheme, space] : kPrependSchemes) {
    if (name == scheme) return space;
  }
  return std::nullopt;
}

// Returns the rule of the pre-tokenizer Metaspace of a tokenizer.json; kModel without one.
PrefixSpace SpaceOfMetaspace(const nlohmann::json& pre_tokenizer) {
  if (!pre_tokenizer.is_object() || StringAt(pre_tokenizer, "type") != "Metaspace")
    return PrefixSpace::kModel;
  const bool adds = IsTrue(pre_tokenizer, "add_prefix_space", true);  // the older notation
  return SpaceOfScheme(StringAt(pre_tokenizer, kPrependScheme))
      .value_or(adds ? PrefixSpace::kAlways : PrefixSpace::kNever);
}

// Returns the rule by which transformers 5 adds spaces to texts of a folder with a sentencepiece
// model. The classes of Llama have their own rule, whatever tokenizer.json says.
PrefixSpace FindPrefixSpace(const nlohmann::json& config, const nlohmann::json& tokenizer_json) {
  std::string name = StringAt(config, kClass);
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  if (name != "LlamaTokenizer" && name != "CodeLlamaTokenizer") {
    const auto pre_tokenizer = tokenizer_json.find("pre_tokenizer");
    return pre_tokenizer == tokenizer_json.end() ? PrefixSpace::kModel
                                                 : SpaceOfMetaspace(*pre_tokenizer);
  }
  if (!IsTrue(config, "add_prefix_space", true)) return PrefixSpace::kNever;
  return name == "LlamaTokenizer" && IsTrue(config, "legacy") ? PrefixSpace::kAlways
                                                              : PrefixSpace::kFirst;
}

// Rejects tokens that another file adds to those of the model, because they would be lost silently.
void CheckIsNotAdded(const fs::path& from, const nlohmann::json& id, const std::string& token,
                     const Tokenizer& tokenizer) {
  HL_CHECK_AS(ExitCode::kData, !id.is_number() || id < tokenizer.vocab_size(), from.string(),
              " adds a token to those of ", kHfSentencePieceFile,
              " in the same folder, but only that file is read: ", token);
}

void CheckTokenizerJson(const fs::path& path, const nlohmann::json& object,
                        const Tokenizer& tokenizer) {
  const auto added = object.find("added_tokens");
  if (added == object.end() || !added->is_array()) return;
  for (const auto& token : *added) {
    const auto id = token.is_object() ? token.find("id") : token.end();
    if (id != token.end()) CheckIsNotAdded(path, *id, token.dump(), tokenizer);
  }
}

// For tokenizers that have no tokenizer.json.
void CheckAddedTokens(const fs::path& path, const Tokenizer& tokenizer) {
  const nlohmann::json ids = ReadObject(path);
  for (const auto& [token, id] : ids.items()) CheckIsNotAdded(path, id, token, tokenizer);
}

void RefuseOtherKinds(const fs::path& folder) {
  HL_CHECK_AS(ExitCode::kData, !IsFile(folder / "vocab.json"), folder.string(),
              " has vocab.json, but no tokenizer.json. Write one with transformers: "
              "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)");
  HL_CHECK_AS(ExitCode::kData, !IsFile(folder / "vocab.txt"), folder.string(),
              " has a WordPiece vocabulary (vocab.txt), which is not supported. Use ", kKnown);
}

}  // namespace

const char* PrependScheme(PrefixSpace prefix_space) {
  for (const auto& [scheme, space] : kPrependSchemes) {
    if (space == prefix_space) return scheme;
  }
  return nullptr;
}

PrefixSpace SavedPrefixSpace(const fs::path& config) {
  const nlohmann::json object = ReadConfig(config);
  if (!object.contains(kPrependScheme)) return PrefixSpace::kModel;
  const std::optional<PrefixSpace> space = SpaceOfScheme(StringAt(object, kPrependScheme));
  HL_CHECK_AS(ExitCode::kData, space.has_value(), config.string(), ": ", kPrependScheme, " is ",
              object.at(kPrependScheme).dump(), ". Use \"always\", \"first\" or \"never\".");
  return *space;
}

bool AddsBos(const fs::path& config) { return IsTrue(ReadConfig(config), kAddBosToken); }

std::unique_ptr<Tokenizer> FindTokenizer(const fs::path& folder) {
  if (IsFile(folder / kTokenizerKindFile)) return LoadTokenizer(folder);
  const fs::path json_path = folder / kTokenizerJsonFile, model = folder / kHfSentencePieceFile;
  if (IsFile(json_path)) {
    // A sentencepiece tokenizer may also have a tokenizer.json, which needs more than bytes and
    // merges.
    const bool has_model = IsFile(model);
    if (!has_model || IsByteLevelBpe(ReadFile(json_path, ExitCode::kData), json_path.string())) {
      return OpenBpe(json_path);
    }
  }
  if (IsFile(model)) {
    const bool has_json = IsFile(json_path);
    const nlohmann::json config = ReadConfig(folder / kTokenizerConfigFile),
                         object = has_json ? ReadObject(json_path) : nlohmann::json::object();
    std::unique_ptr<Tokenizer> tokenizer =
        OpenSentencePiece(model, FindPrefixSpace(config, object));
    CheckTokenizerJson(json_path, object, *tokenizer);
    tokenizer->set_begins_with_bos(has_json ? BeginsWithBos(object, *tokenizer)
                                            : IsTrue(config, kAddBosToken));
    if (const fs::path added = folder / kAddedTokensFile; IsFile(added))
      CheckAddedTokens(added, *tokenizer);
    tokenizer->set_chat_templates(ReadChatTemplates(folder));
    return tokenizer;
  }
  if (IsByT5(folder / kTokenizerConfigFile)) {
    std::unique_ptr<Tokenizer> tokenizer = MakeByteTokenizer();
    tokenizer->set_chat_templates(ReadChatTemplates(folder));
    return tokenizer;
  }
  RefuseOtherKinds(folder);
  return nullptr;
}

std::unique_ptr<Tokenizer> OpenTokenizer(const std::string& name) {
  if (name == kBytesKind) return MakeByteTokenizer();
  const fs::path path = name;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    std::unique_ptr<Tokenizer> tokenizer = FindTokenizer(path);
    const fs::path below = path / kTokenizerFolder;
    if (tokenizer == nullptr && IsFile(below / kTokenizerKindFile)) return LoadTokenizer(below);
    HL_CHECK_AS(ExitCode::kData, tokenizer != nullptr, "the folder ", name,
                " has no tokenizer. Use ", kKnown);
    return tokenizer;
  }
  HL_CHECK_AS(ExitCode::kData, IsFile(path), "--tokenizer ", name,
              " is neither `bytes` nor an existing file or folder. Use ", kKnown);
  if (path.extension() == ".json") return OpenBpe(path);
  return OpenSentencePiece(path, PrefixSpace::kModel);
}

}  // namespace halflife::data
