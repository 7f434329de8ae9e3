#include "data/bpe/word_splitter.h"

#include <string>

namespace halflife::data {

WordSplitter::WordSplitter(const std::vector<SplitStep>& steps) {
  for (const SplitStep& step : steps) {
    Step& made = steps_.emplace_back();
    if (!step.pattern.empty()) made.regex = Regex::Compile(step.pattern);
    made.keep_between = step.keep_between;
    made.add_prefix_space = step.add_prefix_space;
  }
}

void WordSplitter::Split(std::string_view text, RegexScratch& scratch,
                         const std::function<void(std::string_view)>& on_word) const {
  Run(0, text, {scratch, on_word});
}

void WordSplitter::Run(size_t index, std::string_view text, const Sink& sink) const {
  if (text.empty()) return;
  if (index == steps_.size()) return sink.on_word(text);
  if (steps_[index].add_prefix_space && text.front() != ' ') {
    std::string with_space = " ";
    with_space += text;
    return Cut(index, with_space, sink);
  }
  Cut(index, text, sink);
}

void WordSplitter::Cut(size_t index, std::string_view text, const Sink& sink) const {
  const Step& step = steps_[index];
  if (!step.regex) return Run(index + 1, text, sink);
  size_t done = 0;
  while (done < text.size()) {
    const std::optional<ByteSpan> match = step.regex->Find(text, done, sink.scratch);
    const size_t begin = match ? match->begin : text.size();
    if (step.keep_between) Run(index + 1, text.substr(done, begin - done), sink);
    if (!match) break;
    Run(index + 1, text.substr(begin, match->end - begin), sink);
    done = match->end;
  }
}

}  // namespace halflife::data
