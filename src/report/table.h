// A table of texts: as CSV for programs, on a page or in a terminal for people.
#pragma once

#include <string>
#include <vector>

namespace halflife::report {

struct Table {
  std::string title;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  // each as long as the header
  // Paths relative to the page: what the first cell of each row links to. Empty: no links.
  std::vector<std::string> links = {};
};

// RFC 4180 with \n as line end, the header first.
std::string Csv(const Table& table);

// A section of a page. Columns of numbers are aligned to the right, others to the left.
std::string RenderTable(const Table& table);

// Lines for a terminal, the header first, aligned likewise; without the title.
std::string AlignedText(const Table& table);

}  // namespace halflife::report
