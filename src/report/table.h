// A table of strings: as CSV for programs, or on a page or in a terminal for people.
#pragma once

#include <string>
#include <vector>

namespace halflife::report {

struct Table {
  std::string title;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  // Each row has as many cells as the header.
  // Link targets of the first cell of each row, as paths relative to the page. Empty: no links.
  std::vector<std::string> links = {};
};

// Formats the table, starting with the header, as in RFC 4180, but with \n as line end.
std::string Csv(const Table& table);

// Returns a section of a page. Columns of numbers are aligned to the right, others to the left.
std::string RenderTable(const Table& table);

// Returns lines for a terminal, starting with the header, aligned in the same way; without the
// title.
std::string AlignedText(const Table& table);

}  // namespace halflife::report
