// The kinds of files and folders that `halflife inspect` recognises, as a table. docs/inspect.md
// lists the keys of every kind.
//
// A new kind is a file of this folder and a line in artifacts.inc.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <span>
#include <string>

namespace halflife::cli::inspect {

struct Artifact {
  const char* kind;  // "kind" in the JSON.
  const char* form;  // The form of a path of this kind, for people.
  bool (*recognises)(const std::filesystem::path&);
  // Returns the JSON without "kind" and "path". Errors have the exit code of the damaged artifact:
  // kData, kUsage or kNoUsableCheckpoint.
  nlohmann::ordered_json (*describe)(const std::filesystem::path&);
  // Null: the JSON itself, indented, with lists as tables.
  std::string (*text)(const std::filesystem::path&);
};

// Returns the rows in the order in which they are tried.
std::span<const Artifact> Artifacts();
// Throws Error kUsage, with all forms, for a path that does not exist or that no row recognises.
const Artifact& Recognise(const std::filesystem::path& path);

nlohmann::ordered_json Describe(const std::filesystem::path& path);
std::string Text(const std::filesystem::path& path);

// samples.cc
// Returns the first `count` training rows of a dataset, a recipe or a run, in the order of
// training, decoded and with their labels: {"samples": [...]}. Throws Error kUsage for other paths.
nlohmann::ordered_json DescribeSamples(const std::filesystem::path& path, int64_t count);
std::string SamplesText(const std::filesystem::path& path, int64_t count);

// run.cc
bool IsCheckpoint(const std::filesystem::path& path);
nlohmann::ordered_json DescribeCheckpoint(const std::filesystem::path& path);
bool IsRun(const std::filesystem::path& path);
nlohmann::ordered_json DescribeRun(const std::filesystem::path& path);
bool IsMetrics(const std::filesystem::path& path);
nlohmann::ordered_json DescribeMetrics(const std::filesystem::path& path);
// dataset.cc
bool IsDataset(const std::filesystem::path& path);
nlohmann::ordered_json DescribeDataset(const std::filesystem::path& path);
bool IsShard(const std::filesystem::path& path);
nlohmann::ordered_json DescribeShard(const std::filesystem::path& path);
// tokenizer.cc
bool IsTokenizer(const std::filesystem::path& path);
nlohmann::ordered_json DescribeTokenizer(const std::filesystem::path& path);
// recipe.cc
bool IsRecipe(const std::filesystem::path& path);
nlohmann::ordered_json DescribeRecipe(const std::filesystem::path& path);
std::string RecipeText(const std::filesystem::path& path);
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

// Replaces control characters, with which a hostile file could control a terminal, by \xNN.
std::string Printable(const std::string& text);
// Formats JSON for people: "key: value" lines, indented objects, lists of objects as tables, bytes
// with units.
std::string Render(const nlohmann::ordered_json& object);

}  // namespace halflife::cli::inspect
