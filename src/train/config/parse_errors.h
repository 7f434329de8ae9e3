// Explains what is wrong with a recipe's text, including unknown names. protobuf's text parser
// reports what it expected. The explanation is what the author should write instead.
#pragma once

#include <string>
#include <vector>

#include "train/config/foreign_names.h"

namespace google::protobuf {
class Descriptor;
class Message;
class OneofDescriptor;
}  // namespace google::protobuf

namespace halflife::train {

// The answer to an unknown name in a recipe or a sweep: the field that its author most likely
// means.
struct UnknownName {
  const google::protobuf::Message& root;      // The recipe or sweep, as far as it is known.
  const google::protobuf::Descriptor& block;  // The message that does not have the name.
  std::string path;  // The path of `block`, for example "model.mixer". Empty: `root`.
  std::string name;
  // The last name of `--set trainer.max_steps` if `trainer` is the unknown name. Else empty.
  std::string last;
  RecipeForm form;
};

// Returns for example "'stepps' is not a field of train. It has steps, seed; did you mean
// 'steps'?". The list of fields is replaced by one of these, if it exists: (1) the new form of a
// former recipe name, (2) halflife's name for another trainer's name, (3) the block that has a
// field of this name.
std::string DescribeUnknownName(const UnknownName& unknown);

// Returns for example "model.mixer", or `name` for an empty path.
std::string PathBelow(const std::string& path, const std::string& name);

std::vector<std::string> FieldNames(const google::protobuf::Descriptor& message);

// Returns the variants of a message that chooses a part, or null for other messages.
const google::protobuf::OneofDescriptor* VariantsOf(const google::protobuf::Descriptor& message);

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
