// Reads files of records, one record per line: JSON objects (.jsonl), or tab-separated columns
// whose names are in the first line (.tsv).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "data/prepare/text_chunker.h"

namespace halflife::data {

// The values that a field of a JSON record may have. A column of a .tsv file is always text.
enum class FieldForm : uint8_t {
  kString,
  kScalar,  // also a whole number or a boolean, which is read as its text
  kJson,    // any value, which is read as JSON text
};

struct RecordField {
  std::string name;
  std::string flag;  // the option that chooses the field, for error messages
  FieldForm form = FieldForm::kString;
  bool optional = false;  // a JSON record may lack the field, which is then read as ""
};

struct Record {
  int64_t line = 0;                 // line number in the file, from 1
  std::vector<std::string> values;  // the values of the requested fields
};
using VisitRecord = std::function<void(const Record&)>;

// Visits the records of a chunk of whole lines in order; blank lines are skipped. Throws Error
// kData, with file and line, if a line is not an object, or if a field is missing or has another
// type, or if the record of a kJson field is nested too deeply.
void ForEachJsonRecord(const TextChunk& chunk, const std::vector<RecordField>& fields,
                       const VisitRecord& visit);

class RecordReader {
 public:
  // Reads the first line of each .tsv file. Throws Error kData if it does not contain every field
  // exactly once.
  RecordReader(const std::vector<InputFile>& files, std::vector<RecordField> fields);
  // As ForEachJsonRecord, in the format of the chunk's file, which must be one of `files`. Also
  // throws Error kData for a line with more or fewer columns than the first. Thread-safe.
  void ForEach(const TextChunk& chunk, const VisitRecord& visit) const;

 private:
  // The number of columns of a .tsv file and the columns of the requested fields.
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
