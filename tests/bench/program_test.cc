// How a benchmark ends: exit codes and messages.
#include "support/program.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "core/error.h"

namespace halflife::bench {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct End {
  int code = 0;
  std::string words;
};
End Of(const std::function<void()>& run) {
  testing::internal::CaptureStderr();
  const int code = ExitCodeOf(run);
  return {code, testing::internal::GetCapturedStderr()};
}

TEST(ExitCodeOf, IsTheErrorsOwn) {
  const End end = Of([] { HL_FAIL(ExitCode::kEnvironment, "no GPU"); });
  EXPECT_EQ(end.code, 4);
  EXPECT_EQ(end.words, "no GPU\n");
  EXPECT_EQ(Of([] {}).code, 0);
}

// Tools show only the last lines of a benchmark's output, and stack frames would replace the
// message.
TEST(ExitCodeOf, LibTorchsErrorsComeWithoutTheirStack) {
  const End end = Of([] { at::empty({-1}); });
  EXPECT_EQ(end.code, 70);
  EXPECT_THAT(end.words, AllOf(HasSubstr("negative dimension"), Not(HasSubstr("frame #"))));
}

TEST(ExitCodeOf, AnyOtherExceptionIsInternal) {
  const End end = Of([] { throw std::out_of_range("far"); });
  EXPECT_EQ(end.code, 70);
  EXPECT_EQ(end.words, "far\n");
}

TEST(Problems, AFailedPartDoesNotStopOthers) {
  Problems problems;
  EXPECT_EQ(problems.Of([] {}), "");
  problems.ThrowIfAny();
  EXPECT_EQ(problems.Of([] { HL_FAIL(ExitCode::kUsage, "off by 3"); }), "off by 3");
  EXPECT_THAT(problems.Of([] { at::empty({-1}); }), Not(HasSubstr("frame #")));
  const End end = Of([&] { problems.ThrowIfAny(); });
  EXPECT_EQ(end.code, 1);
  EXPECT_EQ(end.words, "2 of 3 parts have a problem, the first: off by 3\n");
}

}  // namespace
}  // namespace halflife::bench
