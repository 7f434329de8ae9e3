// Checks the table of other trainers' option names: every row gives an answer, and the answer
// exists in halflife.
#include "train/config/foreign_names.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "core/concat.h"
#include "core/files.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "train/config/run_config.h"

namespace halflife::train {
namespace {

bool IsOption(const ForeignName& foreign) {
  return std::string(foreign.place).find(" --") != std::string::npos;
}

TEST(ForeignNames, FieldsExistAndTakeTheirExample) {
  size_t num_fields = 0;
  for (const ForeignName& foreign : ForeignNames()) {
    if (foreign.is_missing() || IsOption(foreign)) continue;
    SCOPED_TRACE(foreign.names);
    ++num_fields;
    EXPECT_NO_THROW(ParseRunConfig(WrittenField(foreign.place, foreign.example, RecipeForm::kFile),
                                   "recipe", {}));
    EXPECT_NO_THROW(ParseRunConfig("", "recipe", {Concat(foreign.place, "=", foreign.example)}));
  }
  EXPECT_GE(num_fields, 40u);
}

TEST(ForeignNames, EveryNameIsAnsweredInAFileAndInSet) {
  size_t num_names = 0;
  for (const ForeignName& foreign : ForeignNames()) {
    for (const std::string& name : foreign.Names()) {
      SCOPED_TRACE(name);
      ++num_names;
      EXPECT_HL_ERROR(
          ParseRunConfig(WrittenField(name, "1", RecipeForm::kFile), "my.textproto", {}),
          ExitCode::kUsage, "my.textproto:1:", AnswerTo(foreign, RecipeForm::kFile));
      EXPECT_HL_ERROR(ParseRunConfig("", "recipe", {name + "=1"}), ExitCode::kUsage,
                      "--set " + name, AnswerTo(foreign, RecipeForm::kSet));
    }
  }
  EXPECT_GE(num_names, 200u);
}

TEST(ForeignNames, ANameHasOneRowAndIsLowerCase) {
  std::set<std::string> seen;
  for (const ForeignName& foreign : ForeignNames()) {
    EXPECT_TRUE(!foreign.is_missing() || *foreign.advice != '\0') << foreign.names;
    for (const std::string& name : foreign.Names()) {
      EXPECT_TRUE(seen.insert(name).second) << name << " has two rows";
      EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_."), std::string::npos)
          << name;
    }
  }
}

TEST(ForeignNames, SomeAnswers) {
  const auto answer = [](const std::string& block, const std::string& name, RecipeForm form) {
    const ForeignName* foreign = FindForeignName(block, name);
    return foreign == nullptr ? "none" : AnswerTo(*foreign, form);
  };
  constexpr RecipeForm kFile = RecipeForm::kFile, kSet = RecipeForm::kSet;
  EXPECT_EQ(answer("optimizer", "learning_rate", kFile), "Use optimizer { lr: 3e-4 }.");
  EXPECT_EQ(answer("", "Learning-Rate", kSet), "Use --set optimizer.lr=3e-4.");
  EXPECT_EQ(
      answer("train", "mixed_precision", kSet),
      "Use --set train.precision=bf16. It is fp32, bf16 or fp8. The main weights are always fp32.");
  EXPECT_EQ(answer("", "attention", kSet),
            "Use --set 'model.mixer={ gla {} }'. `halflife mixers` lists the mixers.");
  EXPECT_EQ(answer("model.mixer", "attention", kFile), "Use model { mixer { softmax {} } }.");
  EXPECT_EQ(answer("", "output_dir", kFile),
            "Use `halflife train --run runs/first`. A recipe does not name the folder of its run.");
  EXPECT_EQ(answer("", "lora_r", kSet), "Use --set lora.rank=8.");
  EXPECT_EQ(answer("lora", "dropout", kFile).substr(0, 67),
            "halflife does not support it. Use fewer steps or a lower lora.rank:");
  EXPECT_EQ(answer("model", "dropout", kFile), "none");
  EXPECT_EQ(answer("model.mixer", "deltanet", kFile), "Use model { mixer { delta_net {} } }.");
  EXPECT_EQ(answer("model.mixer", "hgrn", kFile),
            "halflife does not support it. Use the mixer hgrn2.");
  EXPECT_EQ(answer("model.mixer.mamba2", "ssm_state_size", kSet),
            "Use --set model.mixer.mamba2.state_size=128.");
  EXPECT_EQ(answer("", "name", kFile), "none") << "only of an optimizer or a schedule";
  EXPECT_EQ(answer("", "stepps", kFile), "none");
}

// The documentation page has one line for each row without an equivalent, and no other lines.
TEST(ForeignNames, ThePageListsWhatIsNotHere) {
  const std::string page =
      ReadFile(std::filesystem::path(test::kSourceDir) / "docs/not_here.md", ExitCode::kInternal);
  std::multiset<std::string> lines, wanted;
  std::istringstream in(page);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("| `")) lines.insert(line);
  for (const ForeignName& foreign : ForeignNames())
    if (foreign.is_missing())
      wanted.insert(Concat("| `", Join(foreign.Names(), "`, `"), "` | ", foreign.advice, " |"));
  EXPECT_GE(wanted.size(), 20u);
  EXPECT_EQ(lines, wanted);
}

}  // namespace
}  // namespace halflife::train
