// The report of `halflife mixers` about each part.
#include "cli/part_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "support/expect_error.h"

namespace halflife::cli {
namespace {

using Json = nlohmann::ordered_json;
using testing::AllOf;
using testing::HasSubstr;

TEST(PartReport, ListsTheMixersFirst) {
  const Json parts = DescribeParts();
  EXPECT_EQ(parts[0]["kind"], "mixer");
  EXPECT_EQ(parts[0]["usual"], "retention");
  const std::string text = PartsText(parts);
  EXPECT_TRUE(text.starts_with("Mixers:\n  retention (default)  retention as fla ")) << text;
  EXPECT_THAT(text,
              AllOf(HasSubstr("\n  gla "), HasSubstr("swiglu (default), glu, mlp, identity")));
}

// Every part with its defaults fits the model of the costs, and its text fits a terminal.
TEST(PartReport, EveryPartIsDescribed) {
  for (const Json& kind : DescribeParts()) {
    for (const Json& variant : kind["variants"]) {
      const std::string path =
          kind["kind"].get<std::string>() + "." + variant["name"].get<std::string>();
      const Json part = DescribePart(path);
      EXPECT_EQ(part["kind"], kind["kind"]);
      EXPECT_EQ(part["summary"], variant["summary"]);
      EXPECT_EQ(part.contains("state"), kind["kind"] == "mixer") << path;
      std::istringstream text(PartText(part));
      for (std::string line; std::getline(text, line);) EXPECT_LE(line.size(), 100u) << line;
    }
  }
}

TEST(PartReport, CostsAreThoseOfALayer) {
  constexpr int64_t kDim = 1024;
  const Json softmax = DescribePart("softmax");
  EXPECT_EQ(softmax["cost"]["model_dim"], kDim);
  EXPECT_EQ(softmax["cost"]["parameters"], 4 * kDim * kDim);
  EXPECT_EQ(softmax["cost"]["matmul_flops"], 8.0 * kDim * kDim);
  EXPECT_EQ(
      softmax["state"][0].dump(),
      R"({"name":"keys","shape":["tokens",8,128],"dtype":"compute","grows":true,"bytes":4096})");
  EXPECT_THAT(PartText(softmax),
              HasSubstr("keys [tokens, 8, 128], values [tokens, 8, 128]: 8.0 KiB more"));

  // q and k of half the width, v, gate and output; a gate of rank 16 with its bias; the norm of a
  // head.
  const Json gla = DescribePart("gla");
  EXPECT_EQ(gla["cost"]["parameters"], 4 * kDim * kDim + 16 * (kDim + 512) + 512 + 256);
  EXPECT_EQ(gla["state"].size(), 1u);
  EXPECT_EQ(gla["state"][0]["bytes"], 4 * 4 * 128 * 256);
  EXPECT_THAT(PartText(gla), HasSubstr("kv [4, 128, 256]: 512.0 KiB a row of any length, in fp32"));
  EXPECT_EQ(DescribePart("channel_mixer.mlp")["cost"]["parameters"], 8 * kDim * kDim);
}

TEST(PartReport, OptionsAreShownAsRecipesWriteThem) {
  const Json gla = DescribePart("mixer.gla");
  EXPECT_EQ(gla["options"][0].dump(), R"({"name":"num_heads","type":"int","default":4,)"
                                      R"("meaning":"Number of heads, H","choices":[]})");
  const std::string text = PartText(gla);
  EXPECT_THAT(text, HasSubstr("\nnum_heads        int     4        Number of heads, H\n"));
  EXPECT_THAT(text, HasSubstr("number  -inf  "));
  EXPECT_THAT(text, HasSubstr("number  1     "));
  EXPECT_THAT(text, HasSubstr("\n  o_t = q_t S_t / sqrt(K)\n"));
  EXPECT_THAT(text, HasSubstr("none, relu, relu2, relu6, "));
  EXPECT_THAT(text, HasSubstr("--set model.mixer=gla --set model.mixer.gla.OPTION=VALUE\n"));
  EXPECT_THAT(
      PartText(DescribePart("channel_mixer.identity")),
      AllOf(HasSubstr("It has no options.\n"), HasSubstr("--set model.channel_mixer=identity\n")));
}

TEST(PartReport, AnUnknownNameGetsASuggestion) {
  EXPECT_HL_ERROR(DescribePart("glaa"), ExitCode::kUsage, "no part of a model is called 'glaa'",
                  "did you mean 'gla'", "Use one of retention, gla, softmax, ");
  EXPECT_HL_ERROR(DescribePart("mlp"), ExitCode::kUsage,
                  "did you mean 'channel_mixer.mlp' or 'mla'?");
  EXPECT_HL_ERROR(DescribePart("rwkv6"), ExitCode::kUsage,
                  "called 'rwkv6'. halflife does not "
                  "support it. Use the mixer rwkv7");
  EXPECT_HL_ERROR(DescribePart("attention"), ExitCode::kUsage, "model.mixer={ softmax {} }");
}

}  // namespace
}  // namespace halflife::cli
