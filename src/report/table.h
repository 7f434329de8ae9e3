// A table of texts: as CSV for programs, and on a page for people.
#pragma once

#include <string>
#include <vector>

namespace halflife::report {

struct Table {
  std::string title;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  // each as long as the header
};

// RFC 4180 with \n as line end, the header first.
std::string Csv(const Table& table);

// A section of a page. Numbers stand to the right, other texts to the left.
std::string RenderTable(const Table& table);

}  // namespace halflife::report
