#include "data/source_list.h"

#include <map>
#include <utility>

#include "core/concat.h"
#include "data/utf8.h"

namespace halflife::data {

void SourceList::Begin(std::string_view name) {
  sources_.push_back({.name = ReplaceInvalidUtf8(name)});
}

void SourceList::Count(int64_t num_tokens, int64_t num_documents) {
  if (sources_.empty()) return;
  sources_.back().num_tokens += num_tokens;
  sources_.back().num_documents += num_documents;
}

std::vector<Source> SourceList::Take() {
  constexpr size_t kMostSources = 100;
  std::vector<Source> sources = std::exchange(sources_, {});
  std::erase_if(sources, [](const Source& source) { return source.num_tokens == 0; });
  if (sources.size() < 2 || sources.size() > kMostSources) return {};
  std::map<std::string, int> count;
  for (Source& source : sources)
    if (const int number = ++count[source.name]; number > 1)
      source.name = Concat(source.name, " (", number, ")");
  return sources;
}

}  // namespace halflife::data
