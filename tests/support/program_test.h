// The base of end-to-end tests, whose suites share one RunFixture, and checks of a program's
// result.
//
//   class Outputs : public ProgramTest {};
//   TEST_F(Outputs, AreNamed) {
//     ExpectExit(fixture->Run({.run = "first"}), 0);
//     ExpectExit(Halflife({"inspect", Path("none")}), 2, {"none", "does not exist"});
//   }
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "support/paths.h"
#include "support/run_fixture.h"

namespace halflife::test {

// Expects this exit code, and each of the texts in standard error. Returns the result.
inline RunResult ExpectExit(RunResult result, int code, const std::vector<std::string>& texts = {},
                            std::source_location from = std::source_location::current()) {
  std::string problem;
  if (result.exit_code != code) problem = "exit code " + std::to_string(result.exit_code);
  for (const std::string& text : texts)
    if (result.err.find(text) == std::string::npos) problem += "\nno '" + text + "'";
  if (!problem.empty()) {
    ADD_FAILURE_AT(from.file_name(), static_cast<int>(from.line()))
        << problem << "\nstderr: " << result.err << "\nstdout: " << result.out;
  }
  return result;
}

// Returns the words followed by more words.
inline std::vector<std::string> Append(std::vector<std::string> words,
                                       const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class ProgramTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { fixture = std::make_unique<RunFixture>(); }
  static void TearDownTestSuite() { fixture.reset(); }

  static std::string Path(const std::string& name) { return fixture->path(name).string(); }
  static RunResult Halflife(const std::vector<std::string>& arguments) {
    return fixture->Halflife(arguments);
  }
  static nlohmann::json HalflifeJson(const std::vector<std::string>& arguments) {
    return nlohmann::json::parse(ExpectExit(Halflife(arguments), 0).out);
  }
  // Returns the content of a file of the fixture's folder. Empty: there is none.
  static std::string Read(const std::string& name) {
    std::ifstream file(fixture->path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Expects that the newest steps of two runs are equal in bits.
  static void ExpectEqualBits(const std::string& run, const std::string& other,
                              std::source_location from = std::source_location::current()) {
    ExpectExit(Halflife({"ckpt", "diff", Path(run), Path(other), "--bitwise"}), 0, {}, from);
  }

  static inline std::unique_ptr<RunFixture> fixture;
};

}  // namespace halflife::test
