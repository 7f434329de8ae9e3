// If ranks share rows, every mesh trains the same recipe equally, and continues from any other
// mesh's checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/concat.h"
#include "support/program_test.h"

namespace halflife::test {
namespace {

using testing::HasSubstr;

struct Mesh {
  int ranks, sp, zero_stage;
  std::string name() const { return Concat("dp", ranks / sp, "_sp", sp, "_zero", zero_stage); }
};
const Mesh kMeshes[] = {{1, 1, 0}, {2, 1, 1}, {2, 2, 0}, {4, 2, 1},
                        {4, 4, 2}, {4, 1, 2}, {4, 2, 3}};

class MeshRuns : public ProgramTest {
 protected:
  static std::vector<std::string> SettingsOf(const Mesh& mesh) {
    // A state, a window's past and a convolution's tail cross the boundary between slices, which
    // have 64 tokens, or 32 on four ranks.
    return {"data.seq_len=128",
            "train.micro_batch=1",
            "train.log_samples=true",
            "ckpt.background=false",  // A run that is killed after step 12 has saved step 10.
            Concat("parallel.sp=", mesh.sp),
            Concat("parallel.zero_stage=", mesh.zero_stage),
            "model.hybrid=[{ layers: 1 mixer { softmax { num_heads: 2 window: 50 } } }]"};
  }
  static RunResult Train(const std::string& run, const Mesh& mesh,
                         const std::map<std::string, std::string>& env = {},
                         const std::vector<std::string>& more = {}) {
    return fixture->Run(
        {.run = run, .ranks = mesh.ranks, .set = Append(SettingsOf(mesh), more), .env = env});
  }
  // The ranks are threads of one process. They start sooner than processes and give the same bits
  // (RanksAsThreadsGiveTheBitsOfProcesses).
  static RunResult TrainAsThreads(const std::string& run, const Mesh& mesh,
                                  const std::vector<std::string>& more = {}) {
    return fixture->Run({.run = run,
                         .set = Append(SettingsOf(mesh), more),
                         .flags = {"--local-ranks", std::to_string(mesh.ranks)}});
  }
  // Returns the losses of the last attempt by step.
  static std::map<int, double> Losses(const std::string& run) {
    std::map<int, double> losses;
    for (const auto& line : fixture->Metrics(run, "loss")) losses[line["step"]] = line["loss"];
    return losses;
  }
  static std::map<int, std::string> Samples(const std::string& run) {
    std::map<int, std::string> samples;
    std::ifstream file(fixture->path(run) / "samples.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      samples[json["step"]] = json["samples"].dump();
    }
    return samples;
  }
};

// Sums in another order differ by about 2^-24 in the first step. Training amplifies this.
TEST_F(MeshRuns, AnyMeshTrainsTheSame) {
  for (const Mesh& mesh : kMeshes) {
    ExpectExit(Train(mesh.name(), mesh), 0);
    const auto want = Losses(kMeshes[0].name()), got = Losses(mesh.name());
    ASSERT_EQ(got.size(), 20u);
    EXPECT_NEAR(got.at(1) / want.at(1), 1, 1e-6) << mesh.name();
    EXPECT_NEAR(got.at(20), want.at(20), 1e-3) << mesh.name();
    EXPECT_EQ(Samples(mesh.name()), Samples(kMeshes[0].name())) << mesh.name();
    const auto validation = fixture->Metrics(mesh.name(), "val_loss"),
               whole = fixture->Metrics(kMeshes[0].name(), "val_loss");
    ASSERT_EQ(validation.size(), whole.size());
    EXPECT_NEAR(validation[0]["val_loss"].get<double>() / whole[0]["val_loss"].get<double>(), 1,
                1e-6)
        << mesh.name();
    EXPECT_EQ(validation[0]["val_tokens"], whole[0]["val_tokens"]) << mesh.name();
  }
}

TEST_F(MeshRuns, ASharedRunTwiceIsBitwiseEqual) {
  for (const std::string run : {"once", "again"}) ExpectExit(Train(run, {4, 2, 1}), 0);
  ExpectEqualBits("once", "again");
}

// Rows in four slices. A process with several slices runs as many ranks as threads, and each
// micro-batch is summed over ranks before the next. The results then do not depend on the
// distribution.
TEST_F(MeshRuns, EqualSlicesGiveEqualBitsOnAnyMesh) {
  const std::string one = "sliced_" + kMeshes[0].name();
  for (const Mesh& mesh : kMeshes) {
    const std::string run = "sliced_" + mesh.name();
    ExpectExit(Train(run, mesh, {}, {"parallel.slices=4"}), 0);
    ExpectEqualBits(one, run);
    EXPECT_EQ(Losses(run), Losses(one)) << run;
    EXPECT_EQ(Samples(run), Samples(one)) << run;
  }
  ExpectExit(Train("sliced_otherwise", kMeshes[0], {}, {"parallel.slices=2"}), 0);
  EXPECT_NE(Losses("sliced_otherwise"), Losses(one)) << "the slices make the bits";
}

TEST_F(MeshRuns, EqualSlicesResumeOnAnyMeshWithEqualBits) {
  const std::vector<std::string> sliced = {"parallel.slices=4"};
  ExpectExit(Train("sliced", kMeshes[0], {}, sliced), 0);
  for (size_t i = 0; i < std::size(kMeshes); ++i) {
    const Mesh &from = kMeshes[i], &to = kMeshes[(i + 1) % std::size(kMeshes)];
    const std::string run = Concat("sliced_", from.name(), "_to_", to.name());
    // When step 13 begins. Hits are counted over all ranks of the process.
    const int ranks_here = 4 / from.sp;
    const std::string kill = Concat("train.step:kill:", 12 * ranks_here + 1, ":0");
    ExpectExit(Train(run, from, {{"HL_FAULT", kill}}, sliced), 137);
    EXPECT_TRUE(std::filesystem::exists(fixture->path(run) / "ckpt/step_000000000010")) << run;
    ExpectExit(TrainAsThreads(run, to, sliced), 0);
    ExpectEqualBits("sliced", run);
  }
}

TEST_F(MeshRuns, AnyMeshGoesOnFromAnyOther) {
  ExpectExit(Train("undisturbed", kMeshes[0]), 0);
  const auto want = Losses("undisturbed");
  const auto samples = Samples("undisturbed");
  const Mesh meshes[] = {{1, 1, 0}, {2, 2, 0}, {4, 2, 1}, {4, 1, 2}};
  for (const Mesh& from : meshes) {
    const std::string stopped = "stopped_" + from.name();
    ExpectExit(Train(stopped, from, {{"HL_FAULT", "train.step:kill:13:0"}}), 137);
    for (const Mesh& to : meshes) {
      const std::string run = Concat(from.name(), "_to_", to.name());
      std::filesystem::copy(Path(stopped), Path(run), std::filesystem::copy_options::recursive);
      std::filesystem::remove(fixture->path(run) / "samples.jsonl");
      ExpectExit(TrainAsThreads(run, to), 0);
      const auto got = Losses(run);
      EXPECT_NEAR(got.at(11) / want.at(11), 1, 1e-5) << run;
      EXPECT_EQ(Samples(run).at(11), samples.at(11)) << run;
    }
  }
}

TEST_F(MeshRuns, RanksAsThreadsGiveTheBitsOfProcesses) {
  const Mesh mesh = {4, 2, 1};
  ExpectExit(Train("processes", mesh), 0);
  ExpectExit(
      fixture->Run({.run = "threads", .set = SettingsOf(mesh), .flags = {"--local-ranks", "4"}}),
      0);
  ExpectEqualBits("processes", "threads");
  EXPECT_EQ(Samples("threads"), Samples("processes"));
  ExpectExit(
      fixture->Run(
          {.run = "both", .ranks = 2, .set = SettingsOf(mesh), .flags = {"--local-ranks", "2"}}),
      0);
  ExpectEqualBits("processes", "both");
}

TEST_F(MeshRuns, RanksAsThreadsFailOnce) {
  ExpectExit(fixture->Run({.run = "failed",
                           .flags = {"--local-ranks", "4"},
                           .env = {{"HL_FAULT", "train.step:throw:3"}}}),
             70);
  // A rank that stops outside of a collective. No rank waits for it to end.
  ExpectExit(fixture->Run({.run = "stalled",
                           .set = {"comm.timeout_s=2"},
                           .flags = {"--local-ranks", "4"},
                           .env = {{"HL_FAULT", "train.step:stall:6"}}}),
             71, {"timeout"});
  for (const char* rank : {"0", "1"}) {
    const RunResult of_two =
        ExpectExit(fixture->Run({.run = Concat("failed_", rank),
                                 .ranks = 2,
                                 .flags = {"--local-ranks", "2"},
                                 .env = {{"HL_FAULT", Concat("train.step:throw:3:", rank)}}}),
                   70);
    EXPECT_THAT(of_two.err, HasSubstr("train.step")) << rank << of_two.err;
  }
}

// The state of one row and one head is a small tensor, and is exchanged like any other.
TEST_F(MeshRuns, OneRowOfOneHeadIsShared) {
  for (const char* exchange : {"gather", "ring", "scan"}) {
    ExpectExit(fixture->Run({.run = Concat("one_head_", exchange),
                             .set = {"model.mixer=based", "model.mixer.based.num_heads=1",
                                     "model.mixer.based.feature_dim=2", "train.micro_batch=1",
                                     "parallel.sp=2", Concat("parallel.exchange=", exchange),
                                     "train.steps=2"},
                             .flags = {"--local-ranks", "2"}}),
               0);
  }
}

TEST_F(MeshRuns, AMixerThatCannotBeCutIsRefusedByName) {
  ExpectExit(
      fixture->Run({.run = "whole", .ranks = 2, .set = {"model.mixer=hyena", "parallel.sp=2"}}), 2,
      {"the mixer of layer 0, hyena,"});
}

}  // namespace
}  // namespace halflife::test
