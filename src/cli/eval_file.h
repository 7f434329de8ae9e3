// The files of `halflife eval --out` and `--csv`: facts that the rows belong to, and rows, each in
// the files as soon as it is known, so that a later call goes on from them. What goes to standard
// output is written once, at the end.
//
//   constexpr CsvColumn kColumns[] = {{"method", "/method"}, {"loss", "/loss"}};
//   EvalFile file({.json = "lengths.json", .csv = "lengths.csv"}, facts, kColumns);
//   if (!file.Has({{"method", "window"}, {"length", 256}})) file.Add(row);
//   file.Finish();
#pragma once

#include <filesystem>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "dist/rank_context.h"

namespace halflife::cli {

struct EvalPaths {
  std::filesystem::path json, csv;  // empty: not written
};
struct CsvColumn {
  const char* name;
  const char* path;            // of JSON, in the row or, where that has none, in the facts
  const char* otherwise = "";  // of rows where neither has it
};

class EvalFile {
 public:
  using Json = nlohmann::ordered_json;

  // Takes the rows of a JSON file that is there, and is not standard output. Error kUsage where it
  // is none of these, or holds rows of other facts; nothing is written yet. `columns` are borrowed.
  EvalFile(EvalPaths paths, const Json& facts, std::span<const CsvColumn> columns);
  ~EvalFile();

  const Json& json() const { return *json_; }  // the facts, and "rows"
  // Whether a row is there with these values of what tells rows apart (method, protocol, length,
  // depth).
  bool Has(const Json& key) const;
  // The row, or null.
  Json RowOf(const Json& key) const;
  // Both files are whole at any time, and hold the same rows.
  void Add(Json row);
  // At the end: what goes to standard output, and the CSV where no row was added.
  void Finish() const;

 private:
  void WriteJson() const;
  void WriteCsv() const;

  EvalPaths paths_;
  std::unique_ptr<Json> json_;
  std::span<const CsvColumn> columns_;
};

// Which of the keys have rows already, the same on all ranks: rank 0 has the file. Collective.
std::vector<bool> RowsThere(const EvalFile& file, const std::vector<EvalFile::Json>& keys,
                            dist::RankContext& context);

// Where words for people go beside these files: standard output, or standard error where one of
// them is standard output.
std::ostream& WordsBeside(std::initializer_list<std::filesystem::path> files);

}  // namespace halflife::cli
