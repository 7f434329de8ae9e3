// What `halflife inspect` knows: a table of recognisers. docs/inspect.md lists every kind's keys.
//
// A new kind is a file of this folder and a line in artifacts.inc.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

namespace halflife::cli::inspect {

struct Artifact {
  const char* kind;  // the JSON's "kind"
  const char* form;  // what a path of this kind looks like, for people
  bool (*recognises)(const std::filesystem::path&);
  // The JSON without "kind" and "path". Errors carry the exit code of what is damaged: kData,
  // kUsage, kNoUsableCheckpoint.
  nlohmann::ordered_json (*describe)(const std::filesystem::path&);
  // Null: the JSON itself, indented, lists as tables.
  std::string (*text)(const std::filesystem::path&);
};

// The rows, in the order in which they are tried.
std::span<const Artifact> Artifacts();
// Error kUsage for a path that does not exist, and for one that no row recognises, with all forms.
const Artifact& Recognise(const std::filesystem::path& path);

nlohmann::ordered_json Describe(const std::filesystem::path& path);
std::string Text(const std::filesystem::path& path);

// checkpoint.cc
bool IsCheckpoint(const std::filesystem::path& path);
nlohmann::ordered_json DescribeCheckpoint(const std::filesystem::path& path);
// run.cc
bool IsRun(const std::filesystem::path& path);
nlohmann::ordered_json DescribeRun(const std::filesystem::path& path);
// dataset.cc
bool IsDataset(const std::filesystem::path& path);
nlohmann::ordered_json DescribeDataset(const std::filesystem::path& path);
std::string DatasetText(const std::filesystem::path& path);
bool IsShard(const std::filesystem::path& path);
nlohmann::ordered_json DescribeShard(const std::filesystem::path& path);
// tokenizer.cc
bool IsTokenizer(const std::filesystem::path& path);
nlohmann::ordered_json DescribeTokenizer(const std::filesystem::path& path);
// recipe.cc
bool IsRecipe(const std::filesystem::path& path);
nlohmann::ordered_json DescribeRecipe(const std::filesystem::path& path);
std::string RecipeText(const std::filesystem::path& path);
// metrics.cc
bool IsMetrics(const std::filesystem::path& path);
nlohmann::ordered_json DescribeMetrics(const std::filesystem::path& path);
// events.cc
bool IsEvents(const std::filesystem::path& path);
nlohmann::ordered_json DescribeEvents(const std::filesystem::path& path);
// flight.cc
bool IsFlight(const std::filesystem::path& path);
nlohmann::ordered_json DescribeFlight(const std::filesystem::path& path);
std::string FlightText(const std::filesystem::path& path);
// weights.cc
bool IsSafetensors(const std::filesystem::path& path);
nlohmann::ordered_json DescribeSafetensors(const std::filesystem::path& path);
bool IsHuggingFace(const std::filesystem::path& path);
nlohmann::ordered_json DescribeHuggingFace(const std::filesystem::path& path);

}  // namespace halflife::cli::inspect
