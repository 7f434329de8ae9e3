// The only interface to sentencepiece, which is in a separate module (libhl_sentencepiece.so) that
// is loaded on first use.
//
// Reason: distributions build libsentencepiece.so with its own protobuf runtime (3.14) and export
// its symbols. If it were linked together with libprotobuf 3.21, each library would call into the
// other's code, and the program would abort before main. A module loaded with RTLD_DEEPBIND
// resolves its own symbols first, and its symbols are not visible to the program.
//
// No exception crosses this interface. Functions report a failure as text; an empty text means
// success.
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
  // kText: UTF-8 with U+2581 for a space; kByte: that byte; otherwise the piece's name.
  std::string text;
};

class SentencePieceModel {
 public:
  virtual ~SentencePieceModel() = default;
  virtual int vocab_size() const = 0;
  // These ids are -1 if the model has no such piece.
  virtual int bos_id() const = 0;
  virtual int eos_id() const = 0;
  virtual int pad_id() const = 0;
  virtual int unk_id() const = 0;
  virtual SentencePiece Piece(int id) const = 0;
  // Appends to `ids` and returns the error, or "". Thread-safe.
  virtual std::string Encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
};

struct SentencePieceBridge {
  std::unique_ptr<SentencePieceModel> (*load)(std::string_view model_bytes, std::string& error);
  // `next` returns null after the last sentence. Its pointer is valid until the next call. Returns
  // the bytes of the model.
  std::string (*train)(const std::map<std::string, std::string>& options,
                       const std::function<const std::string*()>& next, std::string& error);
};

constexpr char kSentencePieceModule[] = "libhl_sentencepiece.so";
constexpr char kSentencePieceEntry[] = "HlSentencePieceBridge";  // const SentencePieceBridge*()

// Loads the module once. Throws Error kEnvironment if it is missing.
const SentencePieceBridge& LoadSentencePieceBridge();

}  // namespace halflife::data
