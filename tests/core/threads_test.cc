// StartThread runs its function, and reports an environment error if no thread can be started.
#include "core/threads.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/address_limit.h"

namespace halflife {
namespace {

TEST(StartThread, RunsWhatItIsGiven) {
  bool ran = false;
  StartThread([&] { ran = true; }).join();
  EXPECT_TRUE(ran);
}

TEST(StartThread, SaysWhatASystemWithoutThreadsLacks) {
  // The first thread may get the stack of a thread that has ended.
  const auto start_some = [] {
    for (int i = 0; i < 16; ++i) StartThread([] { pause(); }).detach();
  };
  EXPECT_EXIT(test::ExitUnderAddressLimit(0, start_some),
              testing::ExitedWithCode(static_cast<int>(ExitCode::kEnvironment)),
              "cannot start a thread: Resource temporarily unavailable.*ulimit -v");
}

}  // namespace
}  // namespace halflife
