// Trains a sentencepiece model on a bounded sample of the text.
//
// The sample is the lines with the smallest content hashes, up to a budget of bytes: the same lines
// whatever the order of files and the number of threads, from one pass, in memory that does not
// grow with the input.
//
//   std::vector<HashedLine> lines;
//   AppendHashedLines(document, lines);
//   LineSample sample(kTrainerSampleBytes);
//   sample.Add(std::move(lines));  // those of all documents, in any order
//   const std::string model_bytes = TrainSentencePiece(std::move(sample).Sorted(), vocab_size);
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
  // clang-tidy 14 takes the generated comparison for a null pointer
  auto operator<=>(const HashedLine&) const = default;  // NOLINT(modernize-use-nullptr)
};

// The lines of a document that a trainer can use: cut at line ends and tabs (which sentencepiece
// keeps for itself) and after 4 KiB, the longest sentence it accepts by default.
void AppendHashedLines(std::string_view document, std::vector<HashedLine>& lines);

class LineSample {
 public:
  explicit LineSample(int64_t budget_bytes) : budget_bytes_(budget_bytes) {}
  void Add(std::vector<HashedLine> lines);
  std::vector<std::string> Sorted() &&;  // by priority

 private:
  int64_t budget_bytes_;
  int64_t bytes_ = 0;
  std::priority_queue<HashedLine> lines_;  // the largest priority on top
};

// A unigram model with byte fallback: pad 0, eos 1, unk 2, no bos; text comes back exactly as it
// was, but for U+2581, which is sentencepiece's own sign for a space. Same lines and size, same
// model, in bits. Error kData with sentencepiece's words where the vocabulary does not suit the
// text.
std::string TrainSentencePiece(const std::vector<std::string>& lines, int vocab_size);

}  // namespace halflife::data
