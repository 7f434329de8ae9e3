// Recipes as text: merges protobuf text into a message, applies `--set path=value`, and reports
// errors that show the correct form. Works on any message: a recipe or a sweep.
#pragma once

#include <string>
#include <vector>

namespace google::protobuf {
class Message;
}

namespace halflife::train {

// Merges a text into `message`. The text takes precedence, field by field:
// - A field with one value replaces the value that was there.
// - A block is merged with the block that was there.
// - The choice of a part, such as `mixer`, replaces another variant with all its options. The same
//   variant is merged: options that the text does not name stay.
// - A list replaces the whole list that was there; `hybrid: []` empties it.
// Throws Error kUsage with `name`, line, column and the correct form. `message` is then unchanged.
void MergeRecipe(const std::string& text, const std::string& name,
                 google::protobuf::Message& message);

// Applies an assignment of one of these forms:
// - "optimizer.lr=3e-4" sets a field.
// - "model.mixer=gla" chooses a variant with its defaults.
// - "model.mixer.gla.num_heads=4" sets an option of the chosen variant.
// - A value that begins with a bracket is in text format and replaces the whole list or block:
//   "model.hybrid=[]", "model.mixer={ gla { num_heads: 4 } }".
// Throws Error kUsage, with the correct form, if the path or the value does not exist.
void ApplyOverride(const std::string& assignment, google::protobuf::Message& message);

}  // namespace halflife::train
