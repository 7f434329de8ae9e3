// Bad input to the binary gives one clear message and the right exit code. Nothing is lost or half
// written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <algorithm>
#include <fstream>

#include "support/program_test.h"

namespace halflife::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class BadInput : public ProgramTest {
 protected:
  static std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(fixture->path(name)) << text;
    return fixture->path(name);
  }
};

TEST_F(BadInput, CommandLine) {
  ExpectExit(Halflife({"fly"}), 2, {"fly"});
  ExpectExit(Halflife({"train"}), 2, {"--config"});
  ExpectExit(Halflife({"train", "--config", "/no/such.textproto"}), 2, {"/no/such.textproto"});
  ExpectExit(fixture->Run({.run = "r", .flags = {"--resume", "latest"}}), 2, {"latest", "auto"});
  ExpectExit(fixture->Run({.run = "r", .flags = {"--skip-data", "3"}}), 2,
             {"--skip-data 3: only a run that resumes from a named step can leave out data"});
}

TEST_F(BadInput, NamesOfOtherTrainers) {
  const std::string foreign = Write("foreign.textproto", "gradient_accumulation_steps: 4\n");
  ExpectExit(Halflife({"recipe", "--config", foreign}), 2,
             {"foreign.textproto:1:1: ", "Use train { global_batch: 8 }. halflife derives"});
  ExpectExit(Halflife({"recipe", "--set", "peft.rank=8"}), 2,
             {"--set peft.rank: ", "halflife does not support it. Use lora { rank: 8 }"});
}

TEST_F(BadInput, ImpossibleSizesAllAtOnce) {
  ExpectExit(
      fixture->Run({.run = "sizes",
                    .set = {"model.model_dim=-4", "train.global_batch=7", "optimizer.lr=-1"}}),
      2, {"model_dim", "train.global_batch: 7", "optimizer.lr: -1"});
  EXPECT_FALSE(std::filesystem::exists(fixture->path("sizes")));
}

TEST_F(BadInput, SizesThatNoMachineHolds) {
  ExpectExit(fixture->Run({.run = "huge", .set = {"model.vocab_size=2000000000"}}), 2,
             {"this run does not fit", "Use a model of at most"});
  ExpectExit(
      fixture->Run({.run = "huge",
                    .set = {"model.mixer=gla", "model.mixer.gla.conv_size=4611686018427387904"}}),
      2, {"conv_size", "at most"});
  ExpectExit(fixture->Run({.run = "huge", .set = {"train.global_batch=9223372036854775804"}}), 2,
             {"train.global_batch", "at most"});
  EXPECT_FALSE(std::filesystem::exists(fixture->path("huge")));
}

TEST_F(BadInput, AllowChangeOfNoField) {
  ExpectExit(fixture->Run({.run = "allow", .set = {"train.steps=1"}}), 0);
  ExpectExit(
      fixture->Run(
          {.run = "allow", .set = {"train.steps=1"}, .flags = {"--allow-change", "optimiser.lr"}}),
      2, {"'optimiser.lr' is no field", "did you mean 'optimizer.lr'?"});
  const RunResult free = fixture->Run(
      {.run = "allow", .set = {"train.steps=1"}, .flags = {"--allow-change", "train.threads"}});
  ExpectExit(free, 0, {"train.threads: this field may differ without it"});
}

TEST_F(BadInput, ADatasetIsNoRun) {
  const auto files = [] {
    return std::distance(std::filesystem::directory_iterator(fixture->path("data")), {});
  };
  const auto before = files();
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, std::vector<std::string>{"--local-ranks", "2"}})
    ExpectExit(fixture->Run({.run = "data", .flags = flags}), 2,
               {"holds a dataset", "Choose another folder with --run."});
  EXPECT_EQ(files(), before);
}

TEST_F(BadInput, ThreadsAboveTheCoresAreAWarning) {
  const RunResult result = fixture->Run({.run = "threads",
                                         .set = {"train.steps=1", "train.threads=64"},
                                         .flags = {"--local-ranks", "2"}});
  ExpectExit(result, 0, {"128 threads in total: more threads than cores"});
  EXPECT_EQ(result.err.find("more threads", result.err.find("more threads") + 1), std::string::npos)
      << result.err;
}

TEST_F(BadInput, APlanNeedsNoDataset) {
  const RunResult plan = ExpectExit(
      fixture->Run({.run = "plan", .set = {"data.path=/no/such"}, .flags = {"--dry-run"}}), 0);
  EXPECT_THAT(plan.out,
              HasSubstr("no dataset /no/such: a vocabulary of 32000 is assumed "
                        "(--set data.path=DATASET for a dataset's, --set model.vocab_size=N"));
  EXPECT_THAT(plan.out, HasSubstr("parameters at an assumed vocabulary of 32000"));
  const RunResult known = fixture->Run({.run = "plan", .flags = {"--dry-run"}});
  EXPECT_THAT(known.out, HasSubstr("epochs"));
  const RunResult huge =
      ExpectExit(fixture->Run({.run = "plan",
                               .set = {"model.model_dim=65536", "model.mixer.gla.num_heads=128"},
                               .flags = {"--dry-run"}}),
                 0);
  EXPECT_THAT(huge.out, HasSubstr("does not fit"));
}

TEST_F(BadInput, DatasetMissingTruncatedOrDamaged) {
  ExpectExit(fixture->Run({.run = "d", .set = {"data.path=/no/data"}}), 3, {"/no/data"});
  for (const bool truncate : {true, false}) {
    SCOPED_TRACE(truncate);
    const auto copy = fixture->path(truncate ? "truncated" : "flipped");
    std::filesystem::copy(Path("data"), copy, std::filesystem::copy_options::recursive);
    const auto shard = copy / "train-00000.h5";
    ASSERT_TRUE(std::filesystem::exists(shard));
    if (truncate) {
      std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 100);
    } else {
      std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
      const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(shard) / 2);
      file.seekg(middle);
      const char byte = static_cast<char>(file.get() ^ 4);
      file.seekp(middle);
      file.put(byte);
    }
    ExpectExit(fixture->Run({.run = "d", .set = {"data.path=" + copy.string(), "train.steps=40"}}),
               3, {"train-00000.h5"});
  }
}

TEST_F(BadInput, RunFolderInUse) {
  ExpectExit(fixture->Run({.run = "busy", .set = {"train.steps=3"}}), 0);
  const std::string lock = fixture->path("busy") / "run.lock";
  const auto train = fixture->Command({.run = "busy", .set = {"train.steps=3"}});
  ExpectExit(RunCommand(Append({"flock", "-n", lock}, train)), 4, {"in use"});
}

TEST_F(BadInput, CheckpointOfAnotherArchitecture) {
  ExpectExit(fixture->Run({.run = "arch", .set = {"train.steps=3"}}), 0);
  ExpectExit(fixture->Run({.run = "arch", .set = {"train.steps=3", "model.model_dim=64"}}), 2,
             {"model_dim", "32", "64"});
  ExpectExit(
      fixture->Run({.run = "arch", .set = {"train.steps=3", "optimizer.lr=1", "data.seq_len=32"}}),
      2, {"optimizer.lr", "data.seq_len"});
}

// Vocabularies of the same size with different pieces.
TEST_F(BadInput, TextOfAnotherTokenizer) {
  for (const std::string name : {"one", "two"}) {
    const std::string text = Write(name + ".txt", MakeText(60000, name == "one" ? 11 : 12));
    ExpectExit(Halflife({"prepare", "--input", text, "--train-tokenizer", "--vocab", "320", "--out",
                         Path(name)}),
               0);
  }
  ExpectExit(fixture->Run({.run = "pieces", .set = {"train.steps=1", "data.path=" + Path("one")}}),
             0);
  const std::string run = fixture->path("pieces");
  ExpectExit(Halflife({"eval", "--model", run, "--data", Path("one")}), 0);
  const std::string two = fixture->path("two");
  ExpectExit(Halflife({"eval", "--model", run, "--data", two}), 2,
             {"token", "but '", "run's own tokenizer"});

  // Imported weights include their tokenizer.
  const std::string folder = fixture->path("pieces-hf");
  ExpectExit(Halflife({"export", "--run", run, "--out", folder}), 0);
  ExpectExit(Halflife({"import", "--from", folder, "--out", Path("imported")}), 0);
  const std::filesystem::path run_of_folder = fixture->path("imported");
  ExpectExit(Halflife({"train", "--config", run_of_folder / "config.textproto", "--set",
                       "data.path=" + two, "--run", run_of_folder}),
             2, {"token", "but '", "run's own tokenizer"});
  ExpectExit(fixture->Run({.run = "warm",
                           .set = {"train.steps=1", "data.path=" + two},
                           .flags = {"--init-from", folder}}),
             0, {"was trained with another tokenizer: token"});
}

TEST_F(BadInput, TextThatATokenizerOfCharactersCannotRead) {
  const std::string text = Write("plain.txt", MakeText(60000, 13));
  const std::string pieces = fixture->path("plain");
  ExpectExit(Halflife({"prepare", "--input", text, "--train-tokenizer", "--vocab", "320", "--out",
                       pieces}),
             0);
  ExpectExit(fixture->Run({.run = "plain-run", .set = {"train.steps=1", "data.path=" + pieces}}),
             0);
  const std::string run = Path("plain-run"), bad = Write("latin1.txt", "caf\xe9 noir"),
                    out = fixture->path("scores.jsonl");
  ExpectExit(Halflife({"score", "--model", run, "--text", bad, "--out", out}), 3,
             {"latin1.txt is not UTF-8 from byte 3 on"});
  EXPECT_FALSE(std::filesystem::exists(out));
  // 320 pieces, but the model has 259 bytes.
  ExpectExit(fixture->Run({.run = "bytes-run", .set = {"train.steps=1"}}), 0);
  const std::string bytes = fixture->path("bytes-run");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"generate", "--prompt", "a"},
        {"score", "--text", text, "--out", out}})
    ExpectExit(Halflife(Append(command, {"--model", bytes, "--tokenizer", pieces + "/tokenizer"})),
               2, {"the tokenizer has 320 tokens", "a vocabulary of 259"});
}

TEST_F(BadInput, RanksThatDisagreeAboutTheConfig) {
  const std::string script =
      Write("disagree.sh", "#!/bin/bash\nexec \"$@\" --set train.seed=$OMPI_COMM_WORLD_RANK\n");
  const auto train = fixture->Command({.run = "disagree"});
  ExpectExit(RunRanks(2, Append({"bash", script}, train)), 2, {"disagree about the config"});
}

TEST_F(BadInput, FullDisk) {
  const auto small = fixture->path("small");
  std::filesystem::create_directories(small);
  // Space for one step of 471 KiB and the flight record of 132 KiB, but not for a second step.
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=800k") != 0) {
    GTEST_SKIP() << "mounting a tmpfs is not permitted here";
  }
  const RunResult result = fixture->Run({.run = "small/run", .set = {"train.steps=40"}});
  ExpectExit(result, 74, {"space"});
  const RunResult ls = Halflife({"ckpt", "verify", small / "run"});
  ::umount2(small.c_str(), MNT_DETACH);
  EXPECT_EQ(ls.exit_code, 0) << ls.out << ls.err;  // The older step is complete.
}

TEST_F(BadInput, ReadOnlyRunFolder) {
  const auto mount_point = fixture->path("readonly");
  std::filesystem::create_directories(mount_point);
  if (::mount("tmpfs", mount_point.c_str(), "tmpfs", MS_RDONLY, "size=64k") != 0) {
    GTEST_SKIP() << "mounting a tmpfs is not permitted here";
  }
  const RunResult result = fixture->Run({.run = "readonly/run"});
  ::umount2(mount_point.c_str(), MNT_DETACH);
  ExpectExit(result, 4, {"readonly/run", "Read-only"});
}

TEST_F(BadInput, DivergenceStopsWithItsOwnCode) {
  const RunResult result = fixture->Run({.run = "diverges",
                                         .set = {"optimizer.lr=1e30", "optimizer.clip_norm=0",
                                                 "schedule.warmup_steps=0", "ckpt.every=0"}});
  ExpectExit(result, 73,
             {"not finite", "optimizer.lr", "clip the gradient (optimizer.clip_norm is 0,"});
  EXPECT_THAT(result.err, Not(HasSubstr("smaller optimizer.clip_norm")))
      << "clipping is off: " << result.err;
  const auto lines = fixture->Metrics("diverges", "skipped");
  const auto skipped = std::find_if(lines.begin(), lines.end(),
                                    [](const auto& line) { return line["skipped"] == true; });
  ASSERT_NE(skipped, lines.end());
  EXPECT_TRUE((*skipped)["grad_norm"].is_null()) << *skipped;
}

}  // namespace
}  // namespace halflife::test
