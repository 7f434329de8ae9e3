// How `halflife eval` combines its list options.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/command_line/program.h"

namespace halflife::cli {
namespace {

using testing::ElementsAre;

EvalOptions Parsed(std::vector<std::string> words) {
  words.insert(words.begin(), {"halflife", "eval", "--model", "m", "--data", "d"});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  Request request;
  EXPECT_FALSE(ParseCommandLine(static_cast<int>(argv.size()), argv.data(), request));
  return std::get<EvalOptions>(request);
}

TEST(EvalLists, APlaceOfATableIsTakenOnce) {
  const EvalOptions options =
      Parsed({"--lengths", "512,256,512", "--method", "window,as_trained", "--method",
              "window,blocks", "--protocol", "segments,sliding:8,segments"});
  EXPECT_THAT(options.lengths, ElementsAre(512, 256));
  EXPECT_THAT(options.methods, ElementsAre("window", "as_trained", "blocks"));
  EXPECT_THAT(options.protocols, ElementsAre("segments", "sliding:8"));
  EXPECT_THAT(Parsed({"--lengths", "64", "--retrieval", "mqar", "--depths", "1,0,0.5,0.0"}).depths,
              ElementsAre(1, 0, 0.5));
}

}  // namespace
}  // namespace halflife::cli
