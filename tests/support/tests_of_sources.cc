#include "support/tests_of_sources.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

namespace halflife::test {
namespace {

[[noreturn]] void Fail(const std::string& message) {
  std::cerr << message << std::endl;
  std::exit(2);
}

std::vector<std::string> Sources(int argc, char** argv) {
  constexpr std::string_view kOption = "--source=";
  std::vector<std::string> sources;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with(kOption)) Fail("unknown argument '" + std::string(argument) + "'");
    sources.push_back(std::string("/").append(argument.substr(kOption.size())));
  }
  return sources;
}

bool IsDefinedIn(const testing::TestInfo& test, const std::vector<std::string>& sources) {
  const std::string file = std::string("/").append(test.file());
  for (const std::string& source : sources)
    if (file.ends_with(source)) return true;
  return false;
}

std::string MakeFilter(const std::vector<std::string>& sources) {
  std::string filter;
  const testing::UnitTest& program = *testing::UnitTest::GetInstance();
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *program.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (IsDefinedIn(test, sources))
        filter.append(suite.name()).append(".").append(test.name()).append(":");
    }
  }
  return filter;
}

}  // namespace

void SelectTestsOfSources(int argc, char** argv) {
  const std::vector<std::string> sources = Sources(argc, argv);
  if (sources.empty() || GTEST_FLAG_GET(filter) != "*") return;
  const std::string filter = MakeFilter(sources);
  if (filter.empty()) Fail("no test of this program is defined in " + sources.front().substr(1));
  GTEST_FLAG_SET(filter, filter);
}

}  // namespace halflife::test
