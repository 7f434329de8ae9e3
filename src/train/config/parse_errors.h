// What is wrong with a recipe's text, in plain words: protobuf's text parser reports what it
// expected, and this reports what the author should write instead.
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
  const google::protobuf::Descriptor& message;  // That the text describes.
  const google::protobuf::Message& root;        // That holds it: the recipe or sweep.
  std::string path;                             // Of `message` within `root`.
  RecipeForm form;
};

// As protobuf reports it: line and column count from 0, and a tab ends at a multiple of 8 columns.
struct ParserError {
  int line, column;
  std::string words;
};

// "2:3: 'learning_rate' is not a field of optimizer. Use optimizer { lr: 3e-4 }.", with the line
// and column that editors count from 1. Errors that are not known keep protobuf's words.
std::string ExplainParserError(const ParsedText& parsed, const ParserError& error);

}  // namespace halflife::train
