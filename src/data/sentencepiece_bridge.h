// The only way to sentencepiece, which lives in a module (libhl_sentencepiece.so) that is loaded on
// first use.
//
// Why: distributions build libsentencepiece.so with a protobuf runtime of its own (3.14) and export
// its symbols. Linked beside libprotobuf 3.21, each library would call into the other's code and
// the program would abort before main. A module loaded with RTLD_DEEPBIND sees its own symbols
// first, and the program never sees them at all.
//
// No exception crosses this border: functions report failure by text ("" where all went well).
//
//   std::string error;
//   std::unique_ptr<SentencePieceModel> model = LoadSentencePieceBridge().load(bytes, error);
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace halflife::data {

// kSpecial: the unknown piece and the control pieces.
enum class PieceKind : uint8_t { kText, kByte, kSpecial, kUnused };

struct SentencePiece {
  PieceKind kind = PieceKind::kText;
  std::string text;  // kText: UTF-8, U+2581 for a space; kByte: that byte; else its name
};

class SentencePieceModel {
 public:
  virtual ~SentencePieceModel() = default;
  virtual int vocab_size() const = 0;
  // -1: none
  virtual int bos_id() const = 0;
  virtual int eos_id() const = 0;
  virtual int pad_id() const = 0;
  virtual int unk_id() const = 0;
  virtual SentencePiece Piece(int id) const = 0;
  // Appends to `ids`; returns the error. Thread-safe.
  virtual std::string Encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
};

struct SentencePieceBridge {
  std::unique_ptr<SentencePieceModel> (*load)(std::string_view model_bytes, std::string& error);
  // `next` returns null after the last sentence; the pointer holds until the next call. Returns the
  // model's bytes.
  std::string (*train)(const std::map<std::string, std::string>& options,
                       const std::function<const std::string*()>& next, std::string& error);
};

constexpr char kSentencePieceModule[] = "libhl_sentencepiece.so";
constexpr char kSentencePieceEntry[] = "HlSentencePieceBridge";  // const SentencePieceBridge*()

// Loads the module once. Error kEnvironment where it is missing.
const SentencePieceBridge& LoadSentencePieceBridge();

}  // namespace halflife::data
