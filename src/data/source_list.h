// The sources of a split, counted while its tokens are written file by file: each source is then a
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
  // Later calls of Count are for the file of this name. In it, a byte that is not UTF-8 becomes
  // U+FFFD, and a name that is already taken gets a number: "web.txt (2)".
  void Begin(std::string_view name);
  // Does nothing before the first Begin.
  void Count(int64_t num_tokens, int64_t num_documents);
  // Returns the sources that have tokens, in their order. Returns none if there are fewer than two
  // or more than 100 of these: one source is the whole split, and a long list is no report.
  std::vector<Source> Take();

 private:
  std::vector<Source> sources_;
};

}  // namespace halflife::data
