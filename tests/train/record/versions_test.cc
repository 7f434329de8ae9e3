// A checkpoint records the versions of the libraries that its run has loaded.
#include "train/record/run_folder.h"

#include <gmock/gmock.h>

#include "core/versions.h"

namespace halflife::train {
namespace {

using testing::MatchesRegex;
using testing::StartsWith;

TEST(Versions, EveryLibraryOfTheBuildIsNamed) {
  const ckpt::Versions versions = VersionsHere();
  EXPECT_EQ(versions.halflife, GetBuildInfo().version);
  EXPECT_EQ(versions.git_hash, GetBuildInfo().git_hash);
  constexpr char kNumbers[] = "[0-9]+(\\.[0-9]+)+";
  EXPECT_THAT(versions.torch, StartsWith("2."));
  EXPECT_THAT(versions.hdf5, MatchesRegex(kNumbers));
  EXPECT_THAT(versions.mpi, MatchesRegex(".*[0-9]+(\\.[0-9]+)+.*"));
#ifdef HALFLIFE_WITH_CUDA
  EXPECT_THAT(versions.cuda, MatchesRegex(kNumbers));
  EXPECT_THAT(versions.nccl, MatchesRegex(kNumbers));
#else
  EXPECT_EQ(versions.cuda, "");
  EXPECT_EQ(versions.nccl, "");
#endif
}

}  // namespace
}  // namespace halflife::train
