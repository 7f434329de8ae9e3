// Restricts a test program to the tests of some of its source files.
#pragma once

namespace halflife::test {

// Reads the arguments --source=PATH, with paths relative to the root of the repository, and sets
// GoogleTest's filter to the tests that these files define. A filter that the user set has
// precedence. Call this between InitGoogleTest and RUN_ALL_TESTS. Exits with 2 if an argument is
// unknown or the program has no test of these files.
void SelectTestsOfSources(int argc, char** argv);

}  // namespace halflife::test
