#include "report/table.h"

#include <charconv>

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

bool IsNumber(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && parsed == end;
}

std::string Row(const std::vector<std::string>& fields, const char* tag) {
  std::string row = "<tr>";
  for (const std::string& field : fields)
    row += Concat("<", tag, IsNumber(field) ? ">" : " class=\"words\">", Escape(field), "</", tag,
                  ">");
  return row + "</tr>";
}

}  // namespace

std::string Csv(const Table& table) {
  std::string text = Line(table.header);
  for (const auto& row : table.rows) text += Line(row);
  return text;
}

std::string RenderTable(const Table& table) {
  std::string out =
      Concat("<section><h2>", Escape(table.title), "</h2><div class=\"scroll\"><table><thead>",
             Row(table.header, "th"), "</thead><tbody>");
  for (const auto& row : table.rows) out += Row(row, "td");
  return out + "</tbody></table></div></section>";
}

}  // namespace halflife::report
