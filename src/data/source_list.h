// Counts the sources of a split while its tokens are written file by file. Each source is then a
// contiguous range of the split's tokens.
//
//   SourceList sources;
//   sources.Begin("web.txt");
//   sources.Count(/*num_tokens=*/512, /*num_documents=*/1);
//   split.info.sources = sources.Take();
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace halflife::data {

class SourceList {
 public:
  // Later calls of Count refer to the file with this name. In the name, a byte that is not UTF-8
  // becomes U+FFFD. A name that is already used gets a number: "web.txt (2)".
  void Begin(std::string_view name);
  // Has no effect before the first Begin.
  void Count(int64_t num_tokens, int64_t num_documents);
  // Returns the sources that have tokens, in order. Returns an empty list if there are fewer than
  // two or more than 100: a single source is the whole split, and a longer list is not useful in a
  // report.
  std::vector<Source> Take();

 private:
  std::vector<Source> sources_;
};

}  // namespace halflife::data
