#include "report/table.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "core/concat.h"
#include "report/html.h"

namespace halflife::report {
namespace {

std::string Field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}
std::string Line(const std::vector<std::string>& fields) { return Join(fields, ",", Field) + "\n"; }

// True for a number as ShortNumber formats it ("1.5", "16.8k") or for the mark of a missing value.
bool IsNumber(const std::string& text) {
  if (text.empty() || text == "–") return true;
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, value);
  const bool has_unit =
      end - parsed == 1 && std::string_view("kMBT").find(*parsed) != std::string_view::npos;
  return error == std::errc() && (parsed == end || has_unit);
}

// Returns for each column whether all its cells are numbers, in which case it is aligned to the
// right.
std::vector<bool> NumberColumns(const Table& table) {
  std::vector<bool> numbers(table.header.size(), !table.rows.empty());
  for (const auto& row : table.rows)
    for (size_t i = 0; i < row.size(); ++i) numbers[i] = numbers[i] && IsNumber(row[i]);
  return numbers;
}

// `link` is the target of the first cell. Empty: no link.
std::string Row(const std::vector<std::string>& fields, const std::vector<bool>& numbers,
                const char* tag, const std::string& link) {
  std::string row = "<tr>";
  for (size_t i = 0; i < fields.size(); ++i) {
    std::string cell = Escape(fields[i]);
    if (i == 0 && !link.empty()) cell = Concat("<a href=\"", UrlOfPath(link), "\">", cell, "</a>");
    row += Concat("<", tag, numbers[i] ? ">" : " class=\"words\">", cell, "</", tag, ">");
  }
  return row + "</tr>";
}

// Returns the number of UTF-8 characters.
size_t Width(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

std::string Csv(const Table& table) {
  std::string text = Line(table.header);
  for (const auto& row : table.rows) text += Line(row);
  return text;
}

std::string RenderTable(const Table& table) {
  const std::vector<bool> numbers = NumberColumns(table);
  std::string out =
      Concat("<section><h2>", Escape(table.title), "</h2><div class=\"scroll\"><table><thead>",
             Row(table.header, numbers, "th", ""), "</thead><tbody>");
  for (size_t i = 0; i < table.rows.size(); ++i)
    out += Row(table.rows[i], numbers, "td", table.links.empty() ? "" : table.links[i]);
  return out + "</tbody></table></div></section>";
}

std::string AlignedText(const Table& table) {
  const std::vector<bool> numbers = NumberColumns(table);
  std::vector<std::vector<std::string>> lines = {table.header};
  lines.insert(lines.end(), table.rows.begin(), table.rows.end());
  std::vector<size_t> widths(table.header.size());
  for (const auto& line : lines)
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], Width(line[i]));
  std::string text;
  for (const auto& line : lines) {
    std::string row;
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string space(widths[i] - Width(line[i]), ' ');
      row += Concat(i == 0 ? "" : "  ", numbers[i] ? space + line[i] : line[i] + space);
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  return text;
}

}  // namespace halflife::report
