// Names of other trainers for fields of a recipe, and names of features that halflife does not
// have. The error for an unknown name suggests the field, the option or the nearest feature that
// exists. docs/not_here.md lists the missing features, row for row.
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
  // A field ("optimizer.lr") or an option ("train --run"). Empty: halflife does not have it.
  const char* place;
  const char* example;  // A value that `place` accepts, in protobuf's text format.
  const char* advice;   // Sentences that follow. Must not be empty if `place` is empty.

  std::vector<std::string> Names() const;
  bool is_missing() const { return *place == '\0'; }
};

// How the reader writes fields: in a recipe file or as `--set NAME=VALUE`.
enum class RecipeForm { kFile, kSet };

std::span<const ForeignName> ForeignNames();

// Finds a name. `block` is the path of the block that contains it, empty for the recipe itself.
// Ignores case and treats '-' as '_'. Returns null if the table does not have the name.
const ForeignName* FindForeignName(const std::string& block, const std::string& name);

// Returns for example "Use optimizer { lr: 3e-4 }." or "halflife does not support it. Use gla."
std::string AnswerTo(const ForeignName& foreign, RecipeForm form);

// Formats a field in the form that the reader uses: "optimizer { lr: 3e-4 }" or "--set
// optimizer.lr=3e-4". A value that begins with '{' is a block.
std::string WrittenField(const std::string& path, const std::string& value, RecipeForm form);

}  // namespace halflife::train
