#include "data/chat_templates.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "data/tokenizer_folder.h"

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

}  // namespace halflife::data
