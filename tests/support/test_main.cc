// The main function of the test programs.
//
//   core_tests                                     runs all tests of the area
//   core_tests --source=tests/core/philox_test.cc  runs the tests that this file defines
//
// --source can be repeated.
#include <gtest/gtest.h>

#include "support/tests_of_sources.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  halflife::test::SelectTestsOfSources(argc, argv);
  return RUN_ALL_TESTS();
}
