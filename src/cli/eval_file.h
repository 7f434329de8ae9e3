// The files of `halflife eval --out` and `--csv`. They contain facts that the rows depend on, and
// rows. Each row is written when it is known, so that a later call continues from the files.
// Standard output is written once, at the end.
//
//   constexpr CsvColumn kColumns[] = {{"method", "/method"}, {"loss", "/loss"}};
//   EvalFile file({.json = "lengths.json", .csv = "lengths.csv"}, facts, kColumns);
//   if (!file.Has({{"method", "window"}, {"length", 256}})) file.Add(row);
//   file.Finish();
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <span>
#include <vector>

#include "cli/command_line/options.h"
#include "dist/rank_context.h"
#include "eval/class_scores.h"

namespace halflife::cli {

struct EvalPaths {
  std::filesystem::path json, csv;  // Empty: not written.
};
struct CsvColumn {
  const char* name;
  const char* path;            // JSON path in the row, or in the facts if the row does not have it.
  const char* otherwise = "";  // Value if neither has it.
};

class EvalFile {
 public:
  using Json = nlohmann::ordered_json;

  // Reads the rows of an existing JSON file that is not standard output. Throws Error kUsage if it
  // is not such a file, or has rows of other facts. Writes nothing yet. `columns` are borrowed.
  EvalFile(EvalPaths paths, const Json& facts, std::span<const CsvColumn> columns);
  ~EvalFile();

  const Json& json() const { return *json_; }  // The facts, and "rows".
  // Returns whether a row with these key values exists (method, protocol, length, depth).
  bool Has(const Json& key) const;
  // Returns the row, or null.
  Json RowOf(const Json& key) const;
  // Adds a row to both files. They are always complete and have the same rows.
  void Add(Json row);
  // Writes standard output, and the CSV if no row was added. Call at the end.
  void Finish() const;

 private:
  void WriteJson() const;
  void WriteCsv() const;

  EvalPaths paths_;
  std::unique_ptr<Json> json_;
  std::span<const CsvColumn> columns_;
};

// Returns which of the keys already have rows. The result is the same on all ranks, although only
// rank 0 has the file. Collective.
std::vector<bool> RowsThere(const EvalFile& file, const std::vector<EvalFile::Json>& keys,
                            dist::RankContext& context);

// Finishes the files of a table, draws the curves of `drawn` if the options name a figure, and
// prints the JSON or the text.
void PrintEvaluation(const EvalFile& file, const EvalOptions& options, const EvalFile::Json& drawn,
                     const std::string& text);

// Returns the stream for messages to people: standard output, or standard error if one of the files
// is standard output.
std::ostream& MessageStream(std::initializer_list<std::filesystem::path> files);

// Returns the class scores that `eval` reports for a whole split and for each row of a table by
// length.
nlohmann::ordered_json ClassScoresJson(const eval::ClassScores& scores);

}  // namespace halflife::cli
