// Names that other trainers give to what a recipe sets, and names of what halflife does not have.
// An error about an unknown name answers with the field, the option or the nearest thing that
// exists. docs/not_here.md lists what does not exist, row for row.
//
//   if (const ForeignName* foreign = FindForeignName("optimizer", "learning_rate"))
//     HL_FAIL(ExitCode::kUsage, AnswerTo(*foreign, RecipeForm::kFile));  // "Use optimizer { lr ...
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace halflife::train {

struct ForeignName {
  // Lower case, separated by ", ". "optimizer.type" is only `type` within the block `optimizer`.
  const char* names;
  // A field, "optimizer.lr"; an option, "train --run"; or empty: halflife has no such thing.
  const char* place;
  const char* example;  // A value that `place` accepts, in protobuf's text format.
  const char* advice;   // Sentences that follow; may be empty unless `place` is.

  std::vector<std::string> Names() const;
  bool is_missing() const { return *place == '\0'; }
};

// How the reader writes fields: in a recipe file or as `--set NAME=VALUE`.
enum class RecipeForm { kFile, kSet };

std::span<const ForeignName> ForeignNames();

// `block` is the path of the block that holds the name; empty for the recipe itself. Ignores case
// and treats '-' as '_'. Null for a name that the table does not have.
const ForeignName* FindForeignName(const std::string& block, const std::string& name);

// "Use optimizer { lr: 3e-4 }." or "halflife does not support it. Use gla."
std::string AnswerTo(const ForeignName& foreign, RecipeForm form);

// A field as the reader writes it: "optimizer { lr: 3e-4 }" or "--set optimizer.lr=3e-4". A value
// that begins with '{' is a block.
std::string WrittenField(const std::string& path, const std::string& value, RecipeForm form);

}  // namespace halflife::train
