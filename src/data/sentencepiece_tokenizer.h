// Trains a sentencepiece model on a bounded sample of the text. The .cc file also has the tokenizer
// (data/tokenizer.h) that uses such a model.
//
// The sample consists of the lines with the smallest content hashes, up to a budget of bytes. It
// does not depend on the order of files or the number of threads, needs only one pass, and its
// memory does not grow with the input.
#pragma once

#include <cstdint>
#include <queue>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace halflife::data {

constexpr int64_t kTrainerSampleBytes = 32 << 20;

struct HashedLine {
  uint64_t priority = 0;  // a hash of the text
  std::string text;
  // clang-tidy 14 mistakes the generated comparison for a null pointer.
  auto operator<=>(const HashedLine&) const = default;  // NOLINT(modernize-use-nullptr)
};

// Appends the lines of a document in the form in which a trainer can use them. They are split at
// line ends and tabs (which sentencepiece reserves) and after 4 KiB, the longest sentence that it
// accepts by default.
void AppendHashedLines(std::string_view document, std::vector<HashedLine>& lines);

class LineSample {
 public:
  explicit LineSample(int64_t budget_bytes) : budget_bytes_(budget_bytes) {}
  void Add(std::vector<HashedLine> lines);
  std::vector<std::string> Sorted() &&;  // by priority, smallest first

 private:
  int64_t budget_bytes_;
  int64_t bytes_ = 0;
  std::priority_queue<HashedLine> lines_;  // the largest priority is at the top
};

// Trains a unigram model with byte fallback: pad 0, eos 1, unk 2, no bos. Decoding restores the
// text exactly, except U+2581, which is sentencepiece's own character for a space. The same lines
// and size give a bit-identical model. Throws Error kData with sentencepiece's message if the
// vocabulary size does not fit the text.
std::string TrainSentencePiece(const std::vector<std::string>& lines, int vocab_size);

}  // namespace halflife::data
