#include "data/sentencepiece_tokenizer.h"

#include <dlfcn.h>

#include <algorithm>

#include "core/error.h"
#include "core/hash.h"
#include "data/bpe/special_tokens.h"
#include "data/sentencepiece_bridge.h"
#include "data/tokenizer.h"
#include "data/tokenizer_folder.h"
#include "data/utf8.h"

namespace halflife::data {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581: sentencepiece's visible space

std::string WithSpaces(std::string_view piece) {
  std::string text;
  for (size_t mark; (mark = piece.find(kSpaceMark)) != std::string_view::npos;) {
    text += piece.substr(0, mark);
    text += ' ';
    piece.remove_prefix(mark + kSpaceMark.size());
  }
  return text += piece;
}

// Sets normalizer_spec.add_dummy_prefix of a serialised model. Bytes that are appended to a message
// of protobuf are merged into it.
std::string WithDummyPrefix(std::string model_bytes, bool adds) {
  constexpr char kNormalizerSpec = 3 << 3 | 2, kAddDummyPrefix = 3 << 3;  // fields 3 and 3
  for (const char byte : {kNormalizerSpec, '\2', kAddDummyPrefix, adds ? '\1' : '\0'})
    model_bytes += byte;
  return model_bytes;
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string bytes, PrefixSpace prefix_space)
      : bytes_(std::move(bytes)), prefix_space_(prefix_space) {
    if (prefix_space != PrefixSpace::kModel) {
      without_space_ = Load(WithDummyPrefix(bytes_, false));
      // The other rules do not fit a model that removes spaces at the beginning of a text.
      std::vector<int32_t> word, after_space;
      AppendPieces(*without_space_, "a", word);
      AppendPieces(*without_space_, " a", after_space);
      if (word == after_space) {
        prefix_space_ = PrefixSpace::kModel;
        without_space_.reset();
      }
    }
    model_ = Load(prefix_space_ == PrefixSpace::kModel ? bytes_ : WithDummyPrefix(bytes_, true));
    // Encode never produces a control piece, so eos in the ids always means the end of a document.
    HL_CHECK_AS(
        ExitCode::kData, model_->eos_id() >= 0,
        "the sentencepiece model has no </s> control piece, which ends each document. Train one "
        "with --eos_id=1, or use --train-tokenizer.");
    std::vector<AddedToken> names;
    for (int id = 0; id < model_->vocab_size(); ++id) {
      const SentencePiece piece = model_->Piece(id);
      if (piece.kind == PieceKind::kSpecial && !piece.text.empty())
        names.push_back({.content = piece.text, .id = id, .special = true});
      text_.push_back(piece.kind == PieceKind::kText   ? WithSpaces(piece.text)
                      : piece.kind == PieceKind::kByte ? piece.text
                                                       : std::string());
    }
    names_ = AddedTokenMatcher(names);
    const std::vector<int32_t> probe = Encode("a");
    adds_prefix_ = !probe.empty() && text_[static_cast<size_t>(probe.front())].starts_with(' ');
  }

  const std::string& kind() const override { return kind_; }
  int vocab_size() const override { return static_cast<int>(text_.size()); }
  SpecialIds special_ids() const override {
    return {.bos = model_->bos_id(),
            .eos = model_->eos_id(),
            .pad = model_->pad_id(),
            .unk = model_->unk_id()};
  }
  bool keeps_invalid_bytes() const override { return false; }

  // As in the tokenizers library, the text between two special tokens is encoded separately.
  void EncodeAppend(std::string_view text, SpecialTokens special,
                    std::vector<int32_t>& ids) const override {
    Append(text, special, /*at_start=*/true, ids);
  }
  void ContinueAppend(std::string_view text, SpecialTokens special,
                      std::vector<int32_t>& ids) const override {
    Append(text, special, /*at_start=*/false, ids);
  }
  PrefixSpace prefix_space() const override { return prefix_space_; }

  std::vector<NameRange> SpecialNames(std::string_view text) const override {
    return names_.FindAll(text);
  }

  void CountSpecialNames(std::string_view text, NameCounts& counts) const override {
    names_.Split(
        text, [](std::string_view) {}, [&](int32_t id) { ++counts[model_->Piece(id).text]; });
  }

  bool AppendBytes(int32_t id, bool at_start, std::string& bytes) const override {
    HL_CHECK(id >= 0 && id < vocab_size(), "token id ", id, " of a vocabulary of ", vocab_size());
    const std::string_view text = text_[static_cast<size_t>(id)];
    bytes += at_start && adds_prefix_ && text.starts_with(' ') ? text.substr(1) : text;
    return !text.empty();
  }

 protected:
  std::map<std::string, std::string> FilesOfKind() const override {
    std::map<std::string, std::string> files = {{kSentencePieceFile, bytes_}};
    if (prefix_space_ != PrefixSpace::kModel) {
      files[kTokenizerConfigFile] =
          Concat("{\"", kPrependScheme, "\": \"", PrependScheme(prefix_space_), "\"}\n");
    }
    return files;
  }

 private:
  // `bytes`: bytes_, or a variant of them.
  std::unique_ptr<SentencePieceModel> Load(const std::string& bytes) const {
    std::string error;
    auto model = LoadSentencePieceBridge().load(bytes, error);
    HL_CHECK_AS(ExitCode::kData, error.empty() && model->vocab_size() > 0,
                "not a sentencepiece model (", bytes_.size(),
                " bytes); sentencepiece reports: ", error.empty() ? "it has no pieces" : error,
                ". Use a .model file, --tokenizer bytes, or --train-tokenizer.");
    return model;
  }

  void Append(std::string_view text, SpecialTokens special, bool at_start,
              std::vector<int32_t>& ids) const {
    if (special == SpecialTokens::kPlain) return AppendPart(text, at_start, ids);
    names_.Split(
        text,
        [&](std::string_view part) {
          AppendPart(part, at_start && part.data() == text.data(), ids);
        },
        [&](int32_t id) { ids.push_back(id); });
  }

  const SentencePieceModel& ModelFor(std::string_view part, bool at_start) const {
    if (prefix_space_ == PrefixSpace::kModel) return *model_;
    const bool has_space = part.starts_with(' ') || part.starts_with(kSpaceMark);
    const bool adds =
        prefix_space_ == PrefixSpace::kAlways || (prefix_space_ == PrefixSpace::kFirst && at_start);
    return adds && !has_space ? *model_ : *without_space_;
  }

  void AppendPart(std::string_view text, bool at_start, std::vector<int32_t>& ids) const {
    AppendPieces(ModelFor(text, at_start), text, ids);
  }

  static void AppendPieces(const SentencePieceModel& model, std::string_view text,
                           std::vector<int32_t>& ids) {
    const std::string error = model.Encode(text, ids);
    HL_CHECK_AS(ExitCode::kData, error.empty(), "sentencepiece cannot encode a text of ",
                text.size(), " bytes: ", error);
  }

  const std::string kind_ = kSentencePieceKind;
  const std::string bytes_;
  PrefixSpace prefix_space_;
  std::unique_ptr<SentencePieceModel> model_;           // puts a space in front, unless kModel
  std::unique_ptr<SentencePieceModel> without_space_;   // only with other rules than kModel
  AddedTokenMatcher names_{std::vector<AddedToken>()};  // special tokens by name
  std::vector<std::string> text_;                       // by id; empty for special and unused ids
  bool adds_prefix_ = false;                            // texts get a space in front
};

}  // namespace

std::unique_ptr<Tokenizer> MakeSentencePieceTokenizer(std::string model_bytes,
                                                      PrefixSpace prefix_space) {
  return std::make_unique<SentencePieceTokenizer>(std::move(model_bytes), prefix_space);
}

const SentencePieceBridge& LoadSentencePieceBridge() {
#ifdef __SANITIZE_ADDRESS__
  HL_FAIL(ExitCode::kEnvironment,
          "a build with AddressSanitizer cannot load sentencepiece (its dlopen refuses "
          "RTLD_DEEPBIND); use a build without it, or --tokenizer bytes");
#else
  // The module is never closed, because sentencepiece keeps registries that must outlive every
  // model. A second dlopen returns the same module.
  void* module = ::dlopen(kSentencePieceModule, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  HL_CHECK_AS(ExitCode::kEnvironment, module != nullptr,
              "cannot load the sentencepiece module: ", ::dlerror(),
              ". Install the package libsentencepiece0, and keep ", kSentencePieceModule,
              " where it was built or installed (PREFIX/lib/halflife).");
  using Entry = const SentencePieceBridge* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(module, kSentencePieceEntry));
  HL_CHECK_AS(ExitCode::kEnvironment, entry != nullptr, kSentencePieceModule, " has no ",
              kSentencePieceEntry, "; it belongs to another build of halflife. Build it again.");
  return *entry();
#endif
}

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
              error.ends_with('.') ? "" : ".", " Use another --vocab, or provide more text.");
  return model;
}

}  // namespace halflife::data
