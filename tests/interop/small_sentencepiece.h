// A small sentencepiece model as a message that a test can change, and a macro that skips a test in
// builds that cannot load sentencepiece.
#pragma once

#include <gtest/gtest.h>
#include <halflife/sentencepiece_model.pb.h>

#include <string>

#ifdef __SANITIZE_ADDRESS__
#define SKIP_WITHOUT_SENTENCEPIECE() \
  GTEST_SKIP() << "AddressSanitizer refuses the dlopen that sentencepiece needs"
#else
#define SKIP_WITHOUT_SENTENCEPIECE() static_cast<void>(0)
#endif

namespace halflife::interop::test {

// <unk> 0, <s> 1, </s> 2, the 256 byte pieces, then a, b, c, ab, bc, abc and the space mark, with
// scores -0, -1, ... Identity normalisation, no dummy prefix.
inline proto::sentencepiece::ModelProto SmallSentencePiece(bool bpe) {
  proto::sentencepiece::ModelProto model;
  const auto add = [&](const std::string& text, int type, float score) {
    auto* piece = model.add_pieces();
    piece->set_piece(text);
    piece->set_type(type);
    piece->set_score(score);
  };
  add("<unk>", 2, 0);
  add("<s>", 3, 0);
  add("</s>", 3, 0);
  for (int byte = 0; byte < 256; ++byte) {
    static constexpr char kHex[] = "0123456789ABCDEF";
    add({'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'}, 6, 0);
  }
  float score = 0;
  for (const char* text : {"a", "b", "c", "ab", "bc", "abc", "\xE2\x96\x81"}) add(text, 1, score--);
  model.mutable_trainer_spec()->set_model_type(bpe ? 2 : 1);
  model.mutable_trainer_spec()->set_byte_fallback(true);
  model.mutable_normalizer_spec()->set_add_dummy_prefix(false);
  model.mutable_normalizer_spec()->set_remove_extra_whitespaces(false);
  return model;
}

}  // namespace halflife::interop::test
