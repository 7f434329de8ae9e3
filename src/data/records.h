// Files of records, one a line: JSON objects (.jsonl), or columns between tabs below a line of
// their names (.tsv).
//
//   const RecordReader reader(files, {{"text", "--field"}, {"label", "--label-field", true}});
//   reader.ForEach(chunk, [&](const Record& record) { Use(record.values[0], record.values[1]); });
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "data/text_chunker.h"

namespace halflife::data {

struct RecordField {
  std::string name;
  std::string flag;           // that chooses another, for errors
  bool takes_scalar = false;  // a JSON number or boolean is its text
};

struct Record {
  int64_t line = 0;                 // of the file, from 1
  std::vector<std::string> values;  // of the fields that were asked for
};
using VisitRecord = std::function<void(const Record&)>;

// Visits the records of a chunk of whole lines in order; blank lines are none. Error kData with
// file and line: not an object, a field that is missing or of another type.
void ForEachJsonRecord(const TextChunk& chunk, const std::vector<RecordField>& fields,
                       const VisitRecord& visit);

class RecordReader {
 public:
  // Reads the first line of each .tsv file. Error kData where it does not name every field once.
  RecordReader(const std::vector<InputFile>& files, std::vector<RecordField> fields);
  // As ForEachJsonRecord, in the format of the chunk's file, which is one of `files`. Error kData
  // for a line with more or fewer columns than the first. Thread-safe.
  void ForEach(const TextChunk& chunk, const VisitRecord& visit) const;

 private:
  // Of a .tsv file: how many columns it has, and which of them are the fields.
  struct Columns {
    size_t count = 0;
    std::vector<size_t> of_fields;
  };
  Columns ReadColumns(const InputFile& file) const;
  void ForEachLine(const TextChunk& chunk, const VisitRecord& visit) const;

  std::vector<RecordField> fields_;
  std::map<std::filesystem::path, Columns> columns_;
};

}  // namespace halflife::data
