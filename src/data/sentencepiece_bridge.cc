// The implementation of the module. This is the only file that includes sentencepiece's headers.
#include "data/sentencepiece_bridge.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <exception>
#include <unordered_map>

namespace halflife::data {
namespace {

std::string ErrorText(const sentencepiece::util::Status& status) {
  return status.ok() ? std::string() : status.ToString();
}

class Model : public SentencePieceModel {
 public:
  std::string Load(std::string_view bytes) {
    return ErrorText(processor_.LoadFromSerializedProto(bytes));
  }

  int vocab_size() const override { return processor_.GetPieceSize(); }
  int bos_id() const override { return processor_.bos_id(); }
  int eos_id() const override { return processor_.eos_id(); }
  int pad_id() const override { return processor_.pad_id(); }
  int unk_id() const override { return processor_.unk_id(); }

  SentencePiece Piece(int id) const override {
    const std::string& text = processor_.IdToPiece(id);
    if (processor_.IsByte(id)) {  // the text is of the form "<0x41>"
      return {PieceKind::kByte,
              std::string(1, static_cast<char>(std::stoi(text.substr(1), nullptr, 16)))};
    }
    if (processor_.IsUnused(id)) return {PieceKind::kUnused, text};
    const bool special = processor_.IsControl(id) || processor_.IsUnknown(id);
    return {special ? PieceKind::kSpecial : PieceKind::kText, text};
  }

  std::string Encode(std::string_view text, std::vector<int32_t>& ids) const override {
    std::vector<int> pieces;
    const auto status = processor_.Encode(text, &pieces);
    ids.insert(ids.end(), pieces.begin(), pieces.end());
    return ErrorText(status);
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

class Sentences : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::function<const std::string*()>& next)
      : next_(next), current_(next_()) {}
  bool done() const override { return current_ == nullptr; }
  void Next() override { current_ = next_(); }
  const std::string& value() const override { return *current_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::function<const std::string*()>& next_;
  const std::string* current_;
};

std::unique_ptr<SentencePieceModel> Load(std::string_view model_bytes, std::string& error) {
  auto model = std::make_unique<Model>();
  try {
    error = model->Load(model_bytes);
  } catch (const std::exception& exception) {
    error = exception.what();
  }
  return model;
}

std::string Train(const std::map<std::string, std::string>& options,
                  const std::function<const std::string*()>& next, std::string& error) {
  std::string bytes;
  try {
    Sentences sentences(next);
    const std::unordered_map<std::string, std::string> flags(options.begin(), options.end());
    error = ErrorText(sentencepiece::SentencePieceTrainer::Train(flags, &sentences, &bytes));
  } catch (const std::exception& exception) {
    error = exception.what();
  }
  return bytes;
}

constexpr SentencePieceBridge kBridge = {&Load, &Train};

}  // namespace
}  // namespace halflife::data

extern "C" const halflife::data::SentencePieceBridge* HlSentencePieceBridge() {
  return &halflife::data::kBridge;
}
