// The messages for exceptions of other libraries.
#include "cli/world.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <new>

#include "core/error.h"

namespace halflife::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Failure Of(const std::function<void()>& action) {
  try {
    action();
  } catch (...) {
    return DescribeFailure(std::current_exception());
  }
  return {.code = ExitCode::kFinished};
}

TEST(Failure, AnErrorKeepsItsCodeAndWords) {
  const Failure failure = Of([] { HL_FAIL(ExitCode::kData, "words"); });
  EXPECT_EQ(failure.code, ExitCode::kData);
  EXPECT_EQ(failure.text, "words");
  EXPECT_FALSE(failure.is_consequence);
}

TEST(Failure, AFileSystemThatRefusesIsTheEnvironment) {
  const Failure failure =
      Of([] { std::filesystem::directory_iterator("/proc/self/status/not-a-folder"); });
  EXPECT_EQ(failure.code, ExitCode::kEnvironment);
  EXPECT_THAT(failure.text, AllOf(HasSubstr("not-a-folder"), HasSubstr("Not a directory")));
}

TEST(Failure, MemoryThatIsNotThereIsTheEnvironment) {
  const Failure ours = Of([] { throw std::bad_alloc(); });
  EXPECT_EQ(ours.code, ExitCode::kEnvironment);
  EXPECT_THAT(ours.text, HasSubstr("--dry-run"));
  const Failure torch = Of([] { at::empty({int64_t{1} << 50}); });
  EXPECT_EQ(torch.code, ExitCode::kEnvironment);
  EXPECT_THAT(torch.text, AllOf(HasSubstr("out of memory"), HasSubstr("can't allocate memory"),
                                Not(HasSubstr("frame #")), Not(HasSubstr("Exception raised"))));
}

TEST(Failure, AFaultOfOursCarriesNoStackTrace) {
  const Failure failure = Of([] { at::empty({-1}); });
  EXPECT_EQ(failure.code, ExitCode::kInternal);
  EXPECT_THAT(failure.text, AllOf(HasSubstr("internal fault"), Not(HasSubstr("frame #"))));
}

}  // namespace
}  // namespace halflife::cli
