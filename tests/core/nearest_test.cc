// The suggestions for misspelled names.
#include "core/nearest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace halflife {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Nearest, CountsEdits) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("train", "train"), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("tran", "train"), 1);
  EXPECT_EQ(EditDistance("trian", "train"), 1) << "a swap of neighbours is one slip";
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  for (const char* a : {"eval", "export", "x"}) {
    for (const char* b : {"eval", "report", ""}) {
      EXPECT_EQ(EditDistance(a, b), EditDistance(b, a)) << a << " " << b;
    }
  }
}

TEST(Nearest, NamesWhatASlipStandsFor) {
  const std::vector<std::string> known = {"train",  "eval",         "export",
                                          "report", "optimizer.lr", "optimizer.eps"};
  EXPECT_THAT(NearestNames("trian", known), ElementsAre("train"));
  EXPECT_THAT(NearestNames("eport", known), ElementsAre("export", "report"));
  EXPECT_THAT(NearestNames("lr", known), ElementsAre("optimizer.lr"));
  EXPECT_THAT(NearestNames("opt", known), ElementsAre("optimizer.eps", "optimizer.lr"));
  EXPECT_THAT(NearestNames("optimiser.lr", known), ElementsAre("optimizer.lr"));
  EXPECT_THAT(NearestNames("banana", known), IsEmpty());
  EXPECT_EQ(DidYouMean("trian", known), "; did you mean 'train'?");
  EXPECT_EQ(DidYouMean("eport", known), "; did you mean 'export' or 'report'?");
  EXPECT_EQ(DidYouMean("banana", known), "");
}

}  // namespace
}  // namespace halflife
