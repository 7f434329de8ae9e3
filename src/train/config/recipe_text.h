// Recipes as text: protobuf's text format into a message, `--set path=value` on top of it, and
// errors that say what would work. Knows messages alone, no field of them by name but those that
// earlier recipes had.
#pragma once

#include <string>
#include <vector>

namespace google::protobuf {
class Message;
}

namespace halflife::train {

// Replaces `message` by what the text says. Error kUsage with `name`, line and column, and for a
// name that is none the nearest ones, or what took its place.
void ParseRecipe(const std::string& text, const std::string& name,
                 google::protobuf::Message& message);

// "optimizer.lr=3e-4" sets a field; "model.mixer=gla" chooses a variant with its defaults;
// "model.mixer.gla.num_heads=4" sets an option of the variant that is chosen; what begins with a
// bracket is text format and takes the place of all that stood there: "model.hybrid=[]" for lists,
// "model.mixer={ gla { num_heads: 4 } }" for groups. Error kUsage for a path that leads nowhere,
// with the names that do.
void ApplyOverride(const std::string& assignment, google::protobuf::Message& message);

}  // namespace halflife::train
