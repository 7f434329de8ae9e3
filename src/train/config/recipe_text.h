// Recipes as text: protobuf's text format merged into a message, `--set path=value` on top of it,
// and errors that show what to write instead. Works on any message: a recipe or a sweep.
#pragma once

#include <string>
#include <vector>

namespace google::protobuf {
class Message;
}

namespace halflife::train {

// Merges a text into `message`; the text wins field by field:
// - A field with one value replaces the value that was there.
// - A block is merged with the block that was there.
// - The choice of a part, such as `mixer`, replaces another variant with all its options. The same
//   variant is merged: options that the text does not name stay.
// - A list replaces the whole list that was there; `hybrid: []` empties it.
// Error kUsage with `name`, line and column and what to write instead; `message` is then unchanged.
void MergeRecipe(const std::string& text, const std::string& name,
                 google::protobuf::Message& message);

// "optimizer.lr=3e-4" sets a field; "model.mixer=gla" chooses a variant with its defaults;
// "model.mixer.gla.num_heads=4" sets an option of the variant that is chosen. A value that begins
// with a bracket is text format and replaces the whole list or block: "model.hybrid=[]",
// "model.mixer={ gla { num_heads: 4 } }". Error kUsage for a path or value that does not exist,
// with what to write instead.
void ApplyOverride(const std::string& assignment, google::protobuf::Message& message);

}  // namespace halflife::train
