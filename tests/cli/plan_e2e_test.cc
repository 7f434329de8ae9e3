// `train --dry-run --plan` predicts the bytes of each group's collectives that the steps of a run
// on these ranks record.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/concat.h"
#include "support/program_test.h"

namespace halflife::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class PlanRuns : public ProgramTest {
 protected:
  static RunResult Plan(const std::string& plan, const std::vector<std::string>& set = {},
                        const std::vector<std::string>& flags = {}) {
    return fixture->Run(
        {.run = "none", .set = set, .flags = Append({"--dry-run", "--plan", plan}, flags)});
  }
};

TEST_F(PlanRuns, BytesOfEveryGroupAreThoseOfARun) {
  struct Mesh {
    int ranks, sp, zero;
  };
  const Mesh kMeshes[] = {{1, 1, 0}, {2, 1, 0}, {2, 1, 1}, {2, 2, 0},
                          {4, 2, 1}, {4, 1, 2}, {4, 2, 3}};
  for (const Mesh& mesh : kMeshes) {
    const std::string run = Concat("run_", mesh.ranks, "_", mesh.sp, "_", mesh.zero);
    // A state, a window's past and a convolution's tail cross the boundary between slices. Nothing
    // is saved or validated between the steps.
    const std::vector<std::string> set = {
        "data.seq_len=128",
        "train.micro_batch=1",
        "train.steps=5",
        "ckpt.every=0",
        "parallel.exchange=gather",
        "parallel.first_bucket_bytes=16384",
        "parallel.bucket_bytes=32768",
        Concat("parallel.sp=", mesh.sp),
        Concat("parallel.zero_stage=", mesh.zero),
        "model.hybrid=[{ layers: 1 mixer { softmax { num_heads: 2 window: 50 } } }]"};
    const RunResult planned = ExpectExit(
        Plan(Concat("gpus=", mesh.ranks, ",device=cpu,peak_tflops=0.1"), set, {"--json"}), 0);
    std::map<std::string, int64_t> want;
    const json plan = json::parse(planned.out);
    for (const json& row : plan.at("collectives"))
      want["comm_bytes/" + row["group"].get<std::string>()] += row["bytes"].get<int64_t>();

    ExpectExit(
        fixture->Run({.run = run, .set = set, .flags = {"--local-ranks", Concat(mesh.ranks)}}), 0);
    if (mesh.ranks == 4 && mesh.sp == 1) {
      const RunResult compared =
          ExpectExit(Plan(Concat("gpus=", mesh.ranks, ",device=cpu,peak_tflops=0.1"), set,
                          {"--json", "--against", Path(run)}),
                     0);
      const json against = json::parse(compared.out).at("against");
      EXPECT_EQ(against["warning"], "");
      EXPECT_GT(against["values"]["step"]["measured"], 0);
    }
    int num_steps = 0;
    for (const json& line : fixture->Metrics(run, "step_ms")) {
      if (line["step"] == 1) continue;  // The first step also counts the start's messages.
      std::map<std::string, int64_t> got;
      for (const auto& [key, value] : line.items())
        if (key.starts_with("comm_bytes/")) got[key] = value;
      EXPECT_EQ(got, want) << run << ", step " << line["step"];
      ++num_steps;
    }
    EXPECT_EQ(num_steps, 4);
    EXPECT_EQ(want.empty(), mesh.ranks == 1);
  }
}

TEST_F(PlanRuns, PrintsAPlanForMachinesThatAreNotHere) {
  const RunResult result = ExpectExit(Plan("nodes=2,gpus=4,zero=1", {"train.micro_batch=1"}), 0);
  for (const char* piece : {"2 nodes x 4 h100: 8 data-parallel x 1 sequence-parallel, ZeRO stage 1",
                            "memory on each rank", "collectives of a step, of one rank",
                            "MFU, full", "largest losses of a step"})
    EXPECT_THAT(result.out, HasSubstr(piece));
  const RunResult found = ExpectExit(Plan("auto,nodes=1,gpus=4"), 0);
  EXPECT_THAT(found.out, HasSubstr("the fastest of "));
  const json searched =
      json::parse(Plan("auto,gpus=2", {"data.path=", "model.vocab_size=0"}, {"--json"}).out);
  EXPECT_EQ(searched.at("vocab_assumed"), true);
  EXPECT_EQ(searched.at("vocab_size"), 32000);
  EXPECT_GT(searched.at("plans_fitting"), 0);
  // Only plans that `train` accepts: with several ranks, graphs need two micro-batches per step.
  const RunResult graphs = ExpectExit(Plan("auto,nodes=1,gpus=2", {"train.cuda_graphs=true"}), 0);
  EXPECT_THAT(graphs.out, AllOf(HasSubstr("ZeRO stage"), Not(HasSubstr("ZeRO stage 2"))));
}

// With LoRA, only A and B have states and gradients, and only they are in a checkpoint.
TEST_F(PlanRuns, PlansLora) {
  const std::vector<std::string> set = {"train.micro_batch=1", "lora.rank=2"};
  const RunResult text = ExpectExit(Plan("nodes=2,gpus=4,zero=1", set), 0);
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("parameters trained by LoRA"), HasSubstr("frozen weights")));
  const json lora = json::parse(Plan("nodes=2,gpus=4,zero=1", set, {"--json"}).out),
             whole = json::parse(Plan("nodes=2,gpus=4,zero=1", {set[0]}, {"--json"}).out);
  EXPECT_EQ(lora["parameters"], whole["parameters"]);
  EXPECT_EQ(whole["trained_parameters"], whole["parameters"]);
  const int64_t trained = lora["trained_parameters"];
  EXPECT_LT(trained, lora["parameters"].get<int64_t>() / 2);
  EXPECT_EQ(lora["checkpoint_bytes"], 12 * trained);
  const auto bytes = [](const json& plan, const char* part) {
    return plan["memory_of_one_rank"][part].get<int64_t>();
  };
  EXPECT_GE(bytes(lora, "frozen_bytes"), 4 * lora["parameters"].get<int64_t>());
  EXPECT_LT(bytes(lora, "main_and_optimizer_bytes"), bytes(whole, "main_and_optimizer_bytes") / 2);
  EXPECT_LT(bytes(lora, "gradients_bytes"), bytes(whole, "gradients_bytes") / 2);
  EXPECT_THAT(ExpectExit(Plan("auto,nodes=1,gpus=2", set), 0).out, Not(HasSubstr("ZeRO stage 3")));
}

TEST_F(PlanRuns, RefusesWhatCannotBeWithExitTwo) {
  struct Case {
    const char* plan;
    std::vector<std::string> set;
    std::vector<const char*> words;
  };
  const Case kCases[] = {
      {"nodes=0", {}, {"--plan nodes=0", "from 1 to"}},
      {"noodes=1", {}, {"no 'noodes'", "did you mean 'nodes'"}},
      {"gpus=4,micro_batch=3", {}, {"train.global_batch: 8", "a multiple of"}},
      {"gpus=2,sp=2", {"model.mixer=hyena"}, {"layer 0, hyena,", "parallel.sp 1, or a mixer"}},
      {"auto,gpus=2,sp=2", {"model.mixer=hyena"}, {"layer 0, hyena,"}},
      {"auto,gpus=2,zero=2",
       {"train.cuda_graphs=true"},
       {"would refuse all plans", "zero_stage 2"}}};
  for (const Case& c : kCases) {
    const RunResult result = ExpectExit(Plan(c.plan, c.set), 2);
    for (const char* words : c.words) EXPECT_THAT(result.err, HasSubstr(words)) << c.plan;
  }
  ExpectExit(fixture->Run({.run = "none", .flags = {"--plan", "gpus=4"}}), 2, {"--dry-run"});
}

}  // namespace
}  // namespace halflife::test
