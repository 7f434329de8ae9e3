#include "cli/inspect/artifact.h"

#include <nlohmann/json.hpp>

#include "core/error.h"

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
  std::error_code ignored;
  HL_CHECK_AS(ExitCode::kUsage, fs::exists(path, ignored), path.string(),
              " does not exist. Use the path of one of these:", Forms());
  for (const Artifact& artifact : kArtifacts)
    if (artifact.recognises(path)) return artifact;
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

}  // namespace halflife::cli::inspect
