// Restricts a test program, which has the tests of many files, to the tests of some of them.
#pragma once

namespace halflife::test {

// Reads the arguments --source=PATH, PATH being relative to the repository's root, and sets
// GoogleTest's filter to the tests that these files define. A filter that the user set stays. Call it
// between InitGoogleTest and RUN_ALL_TESTS. Exits with 2 if the program has no test of these files or
// an argument is unknown.
void SelectTestsOfSources(int argc, char** argv);

}  // namespace halflife::test
