// `halflife mixers` as a user calls it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/program_test.h"

namespace halflife::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

RunResult Mixers(const std::vector<std::string>& arguments) {
  return RunCommand(Append({kProgram, "mixers"}, arguments));
}

TEST(Mixers, ListsAndDescribes) {
  const RunResult all = ExpectExit(Mixers({}), 0);
  EXPECT_THAT(all.out, AllOf(HasSubstr("gla "), HasSubstr("Other parts of a model:")));
  const RunResult one = ExpectExit(Mixers({"retention"}), 0);
  EXPECT_THAT(one.out, AllOf(HasSubstr("S_t = "), HasSubstr("rope_theta")));
}

TEST(Mixers, PrintsJson) {
  const RunResult one = ExpectExit(Mixers({"--json", "channel_mixer.glu"}), 0);
  const auto json = nlohmann::json::parse(one.out);
  EXPECT_EQ(json["kind"], "channel_mixer");
  EXPECT_EQ(json["options"][3]["name"], "bias");
  EXPECT_EQ(nlohmann::json::parse(Mixers({"--json"}).out)[0]["kind"], "mixer");
}

TEST(Mixers, AnUnknownNameIsAUsageError) {
  const RunResult result = ExpectExit(Mixers({"retnetion"}), 2);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("did you mean 'retention'?"));
}

}  // namespace
}  // namespace halflife::test
