#include "data/records.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/json_text.h"
#include "data/input_files.h"

namespace halflife::data {
namespace {

std::string PlaceOf(const InputFile& file, int64_t line) {
  return Concat(file.path.string(), ":", line, ": ");
}

// Calls visit(line number, line without its end) for each line that is not blank.
template <typename Visit>
void ForEachFullLine(const TextChunk& chunk, const Visit& visit) {
  int64_t number = chunk.first_line;
  for (std::string_view rest = chunk.text; !rest.empty(); ++number) {
    const size_t newline = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, newline);
    rest.remove_prefix(std::min(newline + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(kBlanks) != std::string_view::npos) visit(number, line);
  }
}

std::string ValueOf(const nlohmann::json& record, const RecordField& field,
                    const std::string& place) {
  const auto found = record.find(field.name);
  if (found == record.end()) {
    if (field.optional) return "";
    std::string names;
    for (const auto& [name, value] : record.items()) names += (names.empty() ? "" : ", ") + name;
    HL_FAIL(ExitCode::kData, place, "the record has no field '", field.name,
            "'; it has: ", names.empty() ? "none" : names, "; choose one with ", field.flag,
            record.contains("messages") ? ", or read conversations with --labels messages" : "");
  }
  if (field.form == FieldForm::kJson) return found->dump();
  if (found->is_string()) return found->get<std::string>();
  const bool takes_scalar = field.form == FieldForm::kScalar;
  HL_CHECK_AS(ExitCode::kData, takes_scalar && (found->is_number_integer() || found->is_boolean()),
              place, "the field '", field.name, "' is a JSON ", found->type_name(),
              ", not a string", takes_scalar ? ", whole number or boolean" : "",
              "; choose another with ", field.flag);
  return found->dump();
}

std::vector<std::string_view> SplitColumns(std::string_view line) {
  std::vector<std::string_view> columns;
  for (size_t tab = 0; tab != std::string_view::npos;) {
    tab = line.find('\t');
    columns.push_back(line.substr(0, tab));
    if (tab != std::string_view::npos) line.remove_prefix(tab + 1);
  }
  return columns;
}

// Returns the first line, or the whole content of a file without a newline.
std::string FirstLine(const InputFile& file) {
  const std::unique_ptr<ByteStream> stream = OpenByteStream(file);
  std::string text;
  char buffer[4096];
  for (size_t newline = std::string_view::npos; newline == std::string_view::npos;) {
    const std::string_view piece(buffer, stream->Read(buffer, sizeof buffer));
    if (piece.empty()) break;
    newline = piece.find('\n');
    text += piece.substr(0, newline);
  }
  if (text.ends_with('\r')) text.pop_back();
  return text.starts_with(kByteOrderMark) ? text.substr(kByteOrderMark.size()) : text;
}

}  // namespace

void ForEachJsonRecord(const TextChunk& chunk, const std::vector<RecordField>& fields,
                       const VisitRecord& visit) {
  // The values of other fields are not printed, which recurses once per nested bracket.
  const bool prints = std::ranges::count(fields, FieldForm::kJson, &RecordField::form) > 0;
  ForEachFullLine(chunk, [&](int64_t number, std::string_view line) {
    const std::string place = PlaceOf(*chunk.file, number);
    const int nesting = prints ? JsonNesting(line) : 0;
    HL_CHECK_AS(ExitCode::kData, nesting <= kMaxJsonNesting, place, "the record is nested ",
                nesting, " deep, more than the limit of ", kMaxJsonNesting,
                " levels. Remove the deep values from the record.");
    nlohmann::json json;
    try {
      json = nlohmann::json::parse(line);
    } catch (const nlohmann::json::exception& error) {
      std::string words = error.what();
      // The parser counts lines within the record, which is a single line of the file.
      constexpr std::string_view kLineOfRecord = "at line 1, ";
      if (const size_t at = words.find(kLineOfRecord); at != std::string::npos)
        words.replace(at, kLineOfRecord.size(), "at ");
      HL_FAIL(ExitCode::kData, place, "not a JSON record: ", words);
    }
    HL_CHECK_AS(ExitCode::kData, json.is_object(), place, "a JSON ", json.type_name(),
                " where a record {\"", fields.front().name, "\": \"...\"} should be");
    Record record = {.line = number, .values = {}};
    for (const RecordField& field : fields) record.values.push_back(ValueOf(json, field, place));
    visit(record);
  });
}

RecordReader::RecordReader(const std::vector<InputFile>& files, std::vector<RecordField> fields)
    : fields_(std::move(fields)) {
  for (const InputFile& file : files)
    if (file.format == TextFormat::kTsv) columns_[file.path] = ReadColumns(file);
}

RecordReader::Columns RecordReader::ReadColumns(const InputFile& file) const {
  const std::string line = FirstLine(file);
  const std::vector<std::string_view> names = SplitColumns(line);
  Columns columns = {.count = names.size(), .of_fields = {}};
  for (const RecordField& field : fields_) {
    const auto times = std::ranges::count(names, field.name);
    HL_CHECK_AS(ExitCode::kData, times == 1, PlaceOf(file, 1),
                times == 0 ? "no column is called '" : "several columns are called '", field.name,
                "'; the first line names them: ", Join(names, ", "), "; choose one with ",
                field.flag);
    columns.of_fields.push_back(
        static_cast<size_t>(std::ranges::find(names, field.name) - names.begin()));
  }
  return columns;
}

void RecordReader::ForEach(const TextChunk& chunk, const VisitRecord& visit) const {
  if (chunk.file->format == TextFormat::kTsv) return ForEachLine(chunk, visit);
  ForEachJsonRecord(chunk, fields_, visit);
}

void RecordReader::ForEachLine(const TextChunk& chunk, const VisitRecord& visit) const {
  const Columns& columns = columns_.at(chunk.file->path);
  ForEachFullLine(chunk, [&](int64_t number, std::string_view line) {
    if (number == 1) return;  // the column names
    const std::vector<std::string_view> values = SplitColumns(line);
    HL_CHECK_AS(ExitCode::kData, values.size() == columns.count, PlaceOf(*chunk.file, number),
                values.size(), " columns, but the first line names ", columns.count,
                ". Replace tabs within a text by another character.");
    Record record = {.line = number, .values = {}};
    for (const size_t column : columns.of_fields) record.values.emplace_back(values[column]);
    visit(record);
  });
}

}  // namespace halflife::data
