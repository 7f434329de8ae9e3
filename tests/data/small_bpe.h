// A small byte-level BPE tokenizer as JSON that a test can change.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "data/tokenizer.h"

namespace halflife::data::test {

// The pattern of cl100k and Llama 3.
extern const char kWordPattern[];

// Ids 0 to 255 are the bytes, followed by he, ll, hell, hello, Ġhello, Ġ1, ab, abc, bc, and the
// added tokens <|end|>, <|pad|> (special) and <tool> (not special), in this order.
nlohmann::ordered_json SmallBpeJson();
constexpr int kHello = 259, kSpaceHello = 260, kEnd = 265, kPad = 266, kTool = 267;

// The same with another special token, <|begin|>, with which its template begins each text.
nlohmann::ordered_json SmallBpeWithBosJson();
constexpr int kBegin = 268;

// Returns tokenizer.json and a tokenizer_config.json with eos <|end|>, pad <|pad|> and, if there is
// one, bos <|begin|>.
std::map<std::string, std::string> BpeFiles(const nlohmann::ordered_json& json);
std::unique_ptr<Tokenizer> MakeBpe(const nlohmann::ordered_json& json);

}  // namespace halflife::data::test
