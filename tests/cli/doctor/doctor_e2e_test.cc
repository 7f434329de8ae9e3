// `halflife doctor` on this machine, with one rank and with two.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/paths.h"
#include "support/subprocess.h"
#include "support/temp_dir.h"

namespace halflife::test {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

const json* Find(const json& report, const std::string& name) {
  for (const json& finding : report["findings"]) {
    if (finding["name"] == name) return &finding;
  }
  return nullptr;
}

void ExpectConsistent(const RunResult& result, const json& report) {
  EXPECT_EQ(result.exit_code, report["num_fail"] == 0 ? 0 : 4) << result.out << result.err;
  for (const json& finding : report["findings"]) {
    EXPECT_TRUE(finding["verdict"] == "OK" || !finding["remedy"].get<std::string>().empty())
        << finding.dump() << ": says no remedy";
    EXPECT_FALSE(finding["text"].get<std::string>().empty()) << finding.dump();
  }
}

TEST(Doctor, OneRankReportsEverything) {
  const TempDir dir;
  const RunResult result = RunCommand({kProgram, "doctor", "--json", "--run", dir / "runs"});
  const json report = json::parse(result.out);
  ExpectConsistent(result, report);
  for (const char* name : {"this build", "sentencepiece", "mpirun", "kernels", "cores", "threads",
                           "nofile", "memlock", "stack", "core", "/dev/shm", "dead jobs",
                           "hostname", "Slurm", "run folder", "disk test", "ranks", "all-reduce"}) {
    EXPECT_NE(Find(report, name), nullptr) << name;
  }
  // The version and path of every linked library.
  for (const char* name : {"LibTorch", "MPI library", "HDF5", "PCRE2", "utf8proc", "zstd", "zlib",
                           "protobuf", "spdlog", "fmt", "xxHash", "nlohmann-json", "CLI11"}) {
    ASSERT_NE(Find(report, name), nullptr) << name;
    EXPECT_THAT((*Find(report, name))["text"].get<std::string>(),
                MatchesRegex("(Open MPI )?[0-9]+\\.[0-9.]+.*, (/.*\\.so.*|compiled in)"))
        << name;
  }
  EXPECT_THAT((*Find(report, "LibTorch"))["text"].get<std::string>(), HasSubstr("libtorch_cpu.so"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << "the disk test left something";
}

TEST(Doctor, TextEndsInTheCounts) {
  const RunResult result = RunCommand({kProgram, "doctor", "--quick"});
  EXPECT_THAT(result.out, HasSubstr("\nlibraries\n"));
  EXPECT_THAT(result.out, HasSubstr(" FAIL\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("disk test")));
}

TEST(Doctor, TheInstructionSetIsTheOneAskedFor) {
  const auto run = [](const std::string& word) {
    return RunCommand({kProgram, "doctor", "--quick"}, {.env = {{"HALFLIFE_CPU_ISA", word}}});
  };
  EXPECT_THAT(run("baseline").out, ContainsRegex("kernels +baseline on "));
  const RunResult unknown = run("sse9");
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err,
              HasSubstr("HALFLIFE_CPU_ISA=sse9 names no instruction set. Use avx512, avx2"));
}

TEST(Doctor, AFolderThatCannotBeWrittenFails) {
  const RunResult result = RunCommand({kProgram, "doctor", "--run", "/proc/self"});
  EXPECT_EQ(result.exit_code, 4) << result.out;
  EXPECT_THAT(result.out, HasSubstr("\nFAIL  disk test "));
}

TEST(Doctor, TwoRanksSumThroughTheRealCommunicator) {
  const TempDir dir;
  const RunResult result = RunRanks(2, {kProgram, "doctor", "--json", "--run", dir / "runs"});
  const json report = json::parse(result.out);  // One report for all ranks.
  ExpectConsistent(result, report);
  EXPECT_EQ(report["world_size"], 2);
  int sizes = 0;
  for (const json& finding : report["findings"]) {
    if (!finding["name"].get<std::string>().starts_with("all-reduce ")) continue;
    ++sizes;
    EXPECT_EQ(finding["verdict"], "OK") << finding.dump();
    EXPECT_GT(finding["values"]["gb_per_s"], 0) << finding.dump();
  }
  EXPECT_EQ(sizes, 5);
  ASSERT_NE(Find(report, "ranks"), nullptr);
  EXPECT_EQ((*Find(report, "ranks"))["values"]["ranks"], 2);
}

}  // namespace
}  // namespace halflife::test
