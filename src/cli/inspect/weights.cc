// Files of weights, possibly from others. Only headers are read, and nothing in them is trusted.
#include <fcntl.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "ckpt/safetensors.h"
#include "cli/inspect/artifact.h"
#include "core/error.h"
#include "core/json_text.h"

namespace halflife::cli::inspect {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Sums over tensors.
struct Totals {
  int64_t parameters = 0;
  uint64_t bytes = 0;
  std::map<std::string, int64_t> by_dtype;  // Number of elements.

  void Add(const ckpt::safetensors::Entry& entry) {
    const int64_t count = ckpt::CountElements(entry.shape);
    parameters += count;
    bytes += entry.end - entry.begin;
    by_dtype[ckpt::Name(entry.dtype)] += count;
  }
};

Json TensorRow(const ckpt::safetensors::Entry& entry) {
  return {{"name", entry.name},
          {"dtype", ckpt::Name(entry.dtype)},
          {"shape", entry.shape},
          {"bytes", entry.end - entry.begin}};
}

std::vector<fs::path> WeightFiles(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (IsSafetensors(entry.path())) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Json ReadJson(const fs::path& path) {
  Json json = Json::parse(ReadJsonText(path), nullptr, /*allow_exceptions=*/false);
  HL_CHECK_AS(ExitCode::kData, json.is_object(), path.string(),
              " is not a JSON object. Download it again.");
  return json;
}

// Lists the tensors that are in the index but in no file, and those that are in a file but not in
// the index.
void CompareWithIndex(const fs::path& folder, const std::set<std::string>& names, Json* out) {
  const fs::path path = folder / "model.safetensors.index.json";
  Json missing = Json::array(), unlisted = Json::array();
  if (fs::exists(path)) {
    const Json index = ReadJson(path);
    HL_CHECK_AS(ExitCode::kData, index.contains("weight_map") && index["weight_map"].is_object(),
                path.string(), " has no weight_map. Download it again.");
    const Json& map = index["weight_map"];
    for (const auto& [name, file] : map.items()) {
      if (!names.contains(name)) missing.push_back(name);
    }
    for (const std::string& name : names) {
      if (!map.contains(name)) unlisted.push_back(name);
    }
  }
  (*out)["missing_tensors"] = std::move(missing);
  (*out)["unlisted_tensors"] = std::move(unlisted);
}

}  // namespace

bool IsSafetensors(const fs::path& path) {
  std::error_code ignored;
  return path.extension() == ".safetensors" && fs::is_regular_file(path, ignored);
}

Json DescribeSafetensors(const fs::path& path) {
  const auto header = ckpt::safetensors::ReadHeader(path, ExitCode::kData);
  Totals totals;
  Json tensors = Json::array();
  for (const auto& entry : header.entries) {
    totals.Add(entry);
    tensors.push_back(TensorRow(entry));
  }
  return {{"bytes", static_cast<uint64_t>(fs::file_size(path))},
          {"parameters", totals.parameters},
          {"dtypes", totals.by_dtype},
          {"metadata", header.metadata},
          {"tensors", std::move(tensors)}};
}

bool IsHuggingFace(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path / "config.json", ignored) && !WeightFiles(path).empty();
}

Json DescribeHuggingFace(const fs::path& path) {
  const Json config = ReadJson(path / "config.json");
  Totals totals;
  Json files = Json::array(), tensors = Json::array();
  std::set<std::string> names;
  for (const fs::path& file : WeightFiles(path)) {
    const auto header = ckpt::safetensors::ReadHeader(file, ExitCode::kData);
    files.push_back({{"file", file.filename().string()},
                     {"bytes", static_cast<uint64_t>(fs::file_size(file))},
                     {"tensors", header.entries.size()}});
    for (const auto& entry : header.entries) {
      HL_CHECK_AS(ExitCode::kData, names.insert(entry.name).second, "tensor '", entry.name,
                  "' is in two files of ", path.string(),
                  ". Remove the file that does not belong to it.");
      totals.Add(entry);
      tensors.push_back(TensorRow(entry));
      tensors.back()["file"] = file.filename().string();
    }
  }
  Json json = {{"model_type", config.value("model_type", Json())},
               {"architectures", config.value("architectures", Json())},
               {"parameters", totals.parameters},
               {"bytes", totals.bytes},
               {"dtypes", totals.by_dtype}};
  CompareWithIndex(path, names, &json);
  json["config"] = config;
  json["files"] = std::move(files);
  json["tensors"] = std::move(tensors);
  return json;
}

}  // namespace halflife::cli::inspect
