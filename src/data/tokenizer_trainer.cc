#include "data/tokenizer_trainer.h"

#include <algorithm>

#include "core/error.h"
#include "core/hash.h"
#include "data/sentencepiece_bridge.h"
#include "data/utf8.h"

namespace halflife::data {
namespace {

constexpr size_t kMaxLineBytes = 4096;

void AppendLine(std::string_view line, std::vector<HashedLine>& lines) {
  while (!line.empty()) {
    std::string_view part = line.substr(0, kMaxLineBytes);
    part.remove_suffix(IncompleteUtf8Tail(part));
    if (part.empty()) return;
    lines.push_back({HashBytes(part).lo, std::string(part)});
    line.remove_prefix(part.size());
  }
}

}  // namespace

void AppendHashedLines(std::string_view document, std::vector<HashedLine>& lines) {
  while (!document.empty()) {
    const size_t end = std::min(document.find_first_of("\n\r\t"), document.size());
    AppendLine(document.substr(0, end), lines);
    document.remove_prefix(std::min(end + 1, document.size()));
  }
}

void LineSample::Add(std::vector<HashedLine> lines) {
  for (HashedLine& line : lines) {
    bytes_ += static_cast<int64_t>(line.text.size());
    lines_.push(std::move(line));
    // If the lines below the top already fill the budget, the top can never be part of the sample
    // again.
    while (bytes_ - static_cast<int64_t>(lines_.top().text.size()) >= budget_bytes_) {
      bytes_ -= static_cast<int64_t>(lines_.top().text.size());
      lines_.pop();
    }
  }
}

std::vector<std::string> LineSample::Sorted() && {
  std::vector<std::string> lines;
  for (; !lines_.empty(); lines_.pop()) lines.push_back(lines_.top().text);
  std::reverse(lines.begin(), lines.end());
  return lines;
}

std::string TrainSentencePiece(const std::vector<std::string>& lines, int vocab_size) {
  const std::map<std::string, std::string> options = {
      {"model_type", "unigram"},
      {"vocab_size", std::to_string(vocab_size)},
      {"byte_fallback", "true"},
      {"pad_id", "0"},
      {"eos_id", "1"},
      {"unk_id", "2"},
      {"bos_id", "-1"},
      // Decoding must restore the text exactly: no Unicode folding, and no spaces added or dropped.
      {"normalization_rule_name", "identity"},
      {"add_dummy_prefix", "false"},
      {"remove_extra_whitespaces", "false"},
      {"allow_whitespace_only_pieces", "true"},
      // The piece for a space. In text with few spaces it would otherwise be missing, and spaces
      // would be encoded as bytes.
      {"required_chars", "\xE2\x96\x81"},
      // Expectation maximisation adds one partial sum per thread. A fixed number of threads gives
      // the same model on every machine.
      {"num_threads", "4"},
      {"minloglevel", "2"},
  };
  size_t at = 0;
  const auto next = [&]() { return at < lines.size() ? &lines[at++] : nullptr; };
  std::string error;
  std::string model = LoadSentencePieceBridge().train(options, next, error);
  HL_CHECK_AS(ExitCode::kData, error.empty(), "cannot train a sentencepiece model of ", vocab_size,
              " pieces on ", lines.size(), " lines; sentencepiece reports: ", error,
              ". Use another --vocab, or provide more text.");
  return model;
}

}  // namespace halflife::data
