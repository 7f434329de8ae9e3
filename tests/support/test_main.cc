// The main function of the test programs.
//
//   core_tests                                     runs all tests of the area
//   core_tests --source=tests/core/philox_test.cc  runs the tests that this file defines
//
// --source can be repeated.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

#include "support/tests_of_sources.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  halflife::test::SelectTestsOfSources(argc, argv);
  const int failed = RUN_ALL_TESTS();
  std::fflush(nullptr);
  // Without the destructors of static objects: LibTorch's take 0.2 s to unregister its operators.
  ::_exit(failed);
}
