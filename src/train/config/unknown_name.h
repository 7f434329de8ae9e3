// The answer to a name that a recipe or a sweep does not have: the field that its author most
// likely means.
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

struct UnknownName {
  const google::protobuf::Message& root;      // The recipe or sweep, as far as it is known.
  const google::protobuf::Descriptor& block;  // The message that does not have the name.
  std::string path;                           // Of that block, "model.mixer"; empty: `root`.
  std::string name;
  std::string last;  // Of `--set trainer.max_steps`, where `trainer` is the name; else empty.
  RecipeForm form;
};

// "'stepps' is not a field of train. It has steps, seed; did you mean 'steps'?" In place of the
// list, in this order: the new form of a name that earlier recipes had, the name that halflife has
// for another trainer's, the block that has a field of this name.
std::string DescribeUnknownName(const UnknownName& unknown);

// "model.mixer"; `name` for an empty path.
std::string PathBelow(const std::string& path, const std::string& name);

std::vector<std::string> FieldNames(const google::protobuf::Descriptor& message);

// The variants of a message that chooses a part. Null for other messages.
const google::protobuf::OneofDescriptor* VariantsOf(const google::protobuf::Descriptor& message);

}  // namespace halflife::train
