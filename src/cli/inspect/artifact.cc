#include "cli/inspect/artifact.h"

#include <fcntl.h>

#include <nlohmann/json.hpp>

#include "cli/ckpt_report.h"
#include "core/error.h"
#include "core/files.h"
#include "core/human.h"

namespace halflife::cli::inspect {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr Artifact kArtifacts[] = {
#define HL_ARTIFACT(kind, form, Name, text) {kind, form, &Is##Name, &Describe##Name, text},
#include "cli/inspect/artifacts.inc"
#undef HL_ARTIFACT
};

// Returns the path without a trailing slash.
fs::path Normal(const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  return normal.has_filename() || !normal.has_relative_path() ? normal : normal.parent_path();
}

// Returns one line per kind.
std::string Forms() {
  std::string forms;
  for (const Artifact& artifact : kArtifacts)
    forms += Concat("\n  ", artifact.kind, std::string(15 - std::string(artifact.kind).size(), ' '),
                    artifact.form);
  return forms;
}

}  // namespace

std::span<const Artifact> Artifacts() { return kArtifacts; }

const Artifact& Recognise(const fs::path& path) {
  std::error_code unknown;
  HL_CHECK_AS(ExitCode::kUsage, fs::exists(path, unknown) || unknown, path.string(),
              " does not exist. Use the path of one of these:", Forms());
  for (const Artifact& artifact : kArtifacts)
    if (artifact.recognises(path)) return artifact;
  // A folder of another user looks as if it were empty.
  if (fs::is_directory(path, unknown) || unknown) {
    OpenFile(path, O_RDONLY | O_DIRECTORY, ExitCode::kData);
    HL_CHECK_AS(ExitCode::kData, fs::exists(path / ".", unknown), path.string(), ": ",
                unknown.message(), ". Check its permissions.");
  }
  HL_FAIL(ExitCode::kUsage, path.string(), " is not of a known kind. Use one of these:", Forms());
}

Json Describe(const fs::path& path) {
  const fs::path normal = Normal(path);
  const Artifact& artifact = Recognise(normal);
  Json json = {{"kind", artifact.kind}, {"path", path.string()}};
  json.update(artifact.describe(normal));
  return json;
}

std::string Text(const fs::path& path) {
  const fs::path normal = Normal(path);
  const Artifact& artifact = Recognise(normal);
  if (artifact.text != nullptr) return artifact.text(normal);
  return Render(Describe(path));
}

namespace {

std::string ScalarText(const std::string& key, const Json& value) {
  if (value.is_string()) return Printable(value.get<std::string>());
  if (value.is_null()) return "-";
  const bool is_bytes = key == "bytes" || key.ends_with("_bytes");
  if (is_bytes && value.is_number_unsigned()) return HumanBytes(value.get<uint64_t>());
  // Lists, such as shapes, are printed as JSON, too.
  return Printable(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

bool IsTable(const Json& value) {
  if (!value.is_array() || value.empty()) return false;
  for (const Json& row : value) {
    if (!row.is_object()) return false;
  }
  return true;
}

std::string RenderTable(const Json& list, const std::string& indent) {
  std::vector<std::vector<std::string>> rows(1);
  for (const auto& [key, value] : list[0].items()) rows[0].push_back(indent + key);
  for (const Json& object : list) {
    rows.emplace_back();
    for (const auto& [key, value] : object.items()) {
      rows.back().push_back((rows.back().empty() ? indent : "") + ScalarText(key, value));
    }
  }
  for (size_t i = 1; i < rows[0].size(); ++i) rows[0][i] = rows[0][i].substr(indent.size());
  return Table(rows);
}

std::string RenderObject(const Json& object, size_t depth) {
  const std::string indent(2 * depth, ' ');
  std::string text;
  for (const auto& [key, value] : object.items()) {
    const std::string label = indent + Printable(key) + ":";
    if (value.is_object() && !value.empty()) {
      text += label + "\n" + RenderObject(value, depth + 1);
    } else if (IsTable(value)) {
      text += label + "\n" + RenderTable(value, indent + "  ");
    } else {
      text += label + " " + ScalarText(key, value) + "\n";
    }
  }
  return text;
}

}  // namespace

std::string Printable(const std::string& text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string printable;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      printable += c;
    } else {
      printable += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return printable;
}

std::string Render(const Json& object) {
  std::string headline = object["kind"].get<std::string>();
  const Json& step =
      object.contains("checkpoint") ? object["checkpoint"]["step"] : object.value("step", Json());
  if (step.is_number()) headline += Concat(", step ", step.dump());
  return headline + "\n" + RenderObject(object, 1);
}

}  // namespace halflife::cli::inspect
