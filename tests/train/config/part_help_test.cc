// Checks the help texts and default values that are printed for each part of a model.
#include "train/config/model_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/mixer.h"

namespace halflife::train {
namespace {

using testing::Contains;

const VariantHelp& Find(const std::vector<KindHelp>& kinds, const std::string& kind,
                        const std::string& name) {
  const auto& variants = std::ranges::find(kinds, kind, &KindHelp::name)->variants;
  return *std::ranges::find(variants, name, &VariantHelp::name);
}

TEST(PartHelp, EveryVariantSaysWhatItIs) {
  const std::vector<KindHelp> kinds = HelpOfParts();
  EXPECT_GE(kinds.size(), 6u);
  for (const KindHelp& kind : kinds) {
    std::vector<std::string> names;
    for (const VariantHelp& variant : kind.variants) {
      SCOPED_TRACE(kind.name + "." + variant.name);
      names.push_back(variant.name);
      EXPECT_FALSE(variant.summary.empty());
      EXPECT_EQ(variant.equation.empty(), kind.name != model::kMixers.name);
      for (const OptionHelp& option : variant.options) {
        EXPECT_FALSE(option.meaning.empty()) << option.name;
        if (!option.choices.empty()) {
          EXPECT_THAT(option.choices, Contains(std::get<std::string>(option.usual)));
        }
      }
    }
    EXPECT_THAT(names, Contains(kind.usual)) << kind.name;
  }
}

TEST(PartHelp, OptionsHaveTypeDefaultAndMeaning) {
  const std::vector<KindHelp> kinds = HelpOfParts();
  const VariantHelp& gla = Find(kinds, "mixer", "gla");
  EXPECT_THAT(gla.equation, testing::HasSubstr("S_t = "));
  const auto option = [&](const char* name) {
    return *std::ranges::find(gla.options, name, &OptionHelp::name);
  };
  EXPECT_EQ(gla.options.front().name, "num_heads");
  EXPECT_EQ(option("num_heads").type, "int");
  EXPECT_EQ(option("num_heads").usual, model::OptionValue(int64_t{4}));
  EXPECT_EQ(option("num_heads").meaning, "Number of heads, H");
  EXPECT_EQ(option("expand_k").usual, model::OptionValue(0.5));
  EXPECT_EQ(option("use_short_conv").type, "bool");
  EXPECT_EQ(option("clamp_min").usual, model::OptionValue(-HUGE_VAL));
  EXPECT_THAT(option("feature_map").choices, Contains("silu"));
}

// A list is followed by the options of its entries.
TEST(PartHelp, ListsOfParts) {
  const std::vector<KindHelp> kinds = HelpOfParts();
  std::vector<std::string> rows;
  for (const OptionHelp& option : Find(kinds, "mixer", "parallel").options)
    rows.push_back(option.name + " " + option.type + " " + model::Text(option.usual));
  EXPECT_THAT(rows, testing::ElementsAre(
                        "parts list mamba2, softmax", "parts.input_multiplier number 1",
                        "parts.output_multiplier number 1", "parts.mixer mixer retention"));
}

}  // namespace
}  // namespace halflife::train
