#include "core/threads.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "core/error.h"
#include "support/address_limit.h"

namespace halflife {
namespace {

TEST(StartThread, RunsWhatItIsGiven) {
  bool ran = false;
  StartThread([&] { ran = true; }).join();
  EXPECT_TRUE(ran);
}

void StartWithoutMemory() {
  test::LimitAddresses(0);
  try {
    // The first may have the stack of a thread that has ended.
    for (int i = 0; i < 16; ++i) StartThread([] { pause(); }).detach();
  } catch (const Error& error) {
    std::fputs(error.message().c_str(), stderr);
    std::_Exit(static_cast<int>(error.code()));
  }
  std::_Exit(0);
}

TEST(StartThread, SaysWhatASystemWithoutThreadsLacks) {
  EXPECT_EXIT(StartWithoutMemory(),
              testing::ExitedWithCode(static_cast<int>(ExitCode::kEnvironment)),
              "cannot start a thread: Resource temporarily unavailable.*ulimit -v");
}

}  // namespace
}  // namespace halflife
