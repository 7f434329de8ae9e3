// train --trace writes every rank's phases, collectives, reads and saves to a file that trace
// viewers open.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "support/program_test.h"

namespace halflife::test {
namespace {

using testing::HasSubstr;

// Per rank: how often a name occurs as a slice or as the begin of an overlapping one.
using Counts = std::map<std::string, int>;

std::map<int, Counts> Read(const std::filesystem::path& path) {
  std::map<int, Counts> counts;
  std::map<int, std::map<std::string, int>> open;
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file);
  for (const auto& event : json.at("traceEvents")) {
    const std::string phase = event.at("ph"), name = event.at("name");
    const int rank = event.at("pid");
    if (phase == "X" || phase == "b") ++counts[rank][name];
    if (phase == "X") {
      EXPECT_GE(event.at("dur"), 0) << event;
    }
    if (phase == "b") ++open[rank][event.at("id2").dump()];
    if (phase == "e") --open[rank][event.at("id2").dump()];
  }
  for (const auto& [rank, ids] : open)
    for (const auto& [id, count] : ids) EXPECT_EQ(count, 0) << rank << " " << id;
  return counts;
}

TEST(TraceE2e, HoldsWhatEveryRankDid) {
  const RunFixture fixture;
  const auto path = fixture.path("trace.json");
  ExpectExit(fixture.Run({.run = "run",
                          .ranks = 2,
                          .set = {"train.steps=8", "ckpt.every=2", "parallel.sp=2",
                                  "parallel.zero_stage=1", "train.micro_batch=4"},
                          .flags = {"--trace", path, "--trace-steps", "6"}}),
             0, {"ui.perfetto.dev"});
  const std::map<int, Counts> ranks = Read(path);
  ASSERT_EQ(ranks.size(), 2u);
  for (const auto& [rank, counts] : ranks) {
    const auto of = [&](const std::string& name) {
      const auto found = counts.find(name);
      return found == counts.end() ? 0 : found->second;
    };
    EXPECT_EQ(of("step 1"), 1) << rank;
    EXPECT_EQ(of("step 6"), 1) << rank;
    EXPECT_EQ(of("step 7"), 0) << rank;
    EXPECT_EQ(of("forward"), 12) << rank;  // Two micro-batches per step.
    EXPECT_EQ(of("backward"), 12) << rank;
    EXPECT_EQ(of("update"), 6) << rank;
    EXPECT_GE(of("read"), 12) << rank;
    EXPECT_EQ(of("save of step 2"), 1) << rank;
    EXPECT_GE(of("reduce_scatter grad_bucket 0"), 6) << rank;
    int exchanges = 0;
    for (const auto& [name, count] : counts)
      exchanges += name.starts_with("all_gather ") ? count : 0;
    EXPECT_GT(exchanges, 12) << rank;
  }
}

TEST(TraceE2e, WhatStandsThereStaysAndStandardOutputHasOneDocument) {
  const RunFixture fixture;
  const auto path = fixture.path("trace.json");
  const auto run = [&](const std::filesystem::path& file) {
    return fixture.Run(
        {.run = "run", .set = {"train.steps=2"}, .flags = {"--trace", file, "--trace-steps", "2"}});
  };
  ExpectExit(run(path), 0);
  const auto bytes = std::filesystem::file_size(path);
  ExpectExit(run(path), 0);  // Nothing to do.
  EXPECT_EQ(std::filesystem::file_size(path), bytes);
  std::filesystem::remove_all(fixture.path("run"));
  const RunResult piped = ExpectExit(run("-"), 0);
  EXPECT_TRUE(nlohmann::json::accept(piped.out)) << piped.out.substr(0, 200);
}

// The training result matters more than the trace.
TEST(TraceE2e, ATraceThatCannotBeWrittenEndsNoRun) {
  const RunFixture fixture;
  ExpectExit(fixture.Run({.run = "run",
                          .set = {"train.steps=3"},
                          .flags = {"--trace", "/dev/full", "--trace-steps", "2"}}),
             0, {"no trace: cannot write /dev/full"});
  EXPECT_TRUE(std::filesystem::exists(fixture.path("run") / "DONE"));
}

TEST(TraceE2e, AnUnwritableFileIsReportedBeforeTheFirstStep) {
  const RunFixture fixture;
  ExpectExit(fixture.Run({.run = "run", .flags = {"--trace", fixture.path("none") / "trace.json"}}),
             4, {"none/trace.json"});
  EXPECT_FALSE(std::filesystem::exists(fixture.path("run")));
}

}  // namespace
}  // namespace halflife::test
