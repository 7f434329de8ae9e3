// Explains what is wrong with a recipe's text. protobuf's text parser reports what it expected. The
// explanation is what the author should write instead.
#pragma once

#include <string>
#include <vector>

#include "train/config/foreign_names.h"

namespace google::protobuf {
class Descriptor;
class Message;
}  // namespace google::protobuf

namespace halflife::train {

struct ParsedText {
  const std::string& text;
  const google::protobuf::Descriptor& message;  // The type that the text describes.
  const google::protobuf::Message& root;        // The recipe or sweep that contains `message`.
  std::string path;                             // The path of `message` within `root`.
  RecipeForm form;
};

// An error as protobuf reports it. Line and column count from 0. A tab ends at a multiple of 8
// columns.
struct ParserError {
  int line, column;
  std::string words;
};

// Returns for example "2:3: 'learning_rate' is not a field of optimizer. Use optimizer { lr: 3e-4
// }." Line and column count from 1, as in editors. Unknown errors keep the words of protobuf.
std::string ExplainParserError(const ParsedText& parsed, const ParserError& error);

}  // namespace halflife::train
