// Bad input to the binary gives one clear message and the right exit code. Nothing is lost or half
// written.
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <algorithm>
#include <fstream>

#include "support/paths.h"
#include "support/run_fixture.h"

namespace halflife::test {
namespace {

class BadInput : public testing::Test {
 protected:
  static void SetUpTestSuite() { fixture = new RunFixture(kProgram); }
  static void TearDownTestSuite() { delete fixture; }

  static void Expect(const RunResult& result, int code, const std::vector<std::string>& pieces) {
    EXPECT_EQ(result.exit_code, code) << result.err;
    for (const std::string& piece : pieces) {
      EXPECT_NE(result.err.find(piece), std::string::npos) << piece << " is not in:\n"
                                                           << result.err;
    }
  }
  static std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(fixture->path(name)) << text;
    return fixture->path(name);
  }
  static RunFixture* fixture;
};
RunFixture* BadInput::fixture = nullptr;

TEST_F(BadInput, CommandLine) {
  Expect(fixture->Halflife({"fly"}), 2, {"fly"});
  Expect(fixture->Halflife({"train"}), 2, {"--config"});
  Expect(fixture->Halflife({"train", "--config", "/no/such.textproto"}), 2, {"/no/such.textproto"});
  Expect(fixture->Run({.run = "r", .flags = {"--resume", "latest"}}), 2, {"latest", "auto"});
}

TEST_F(BadInput, ConfigKeyAndType) {
  const std::string unknown = Write("unknown.textproto", "train {\n  stepps: 3\n}\n");
  Expect(fixture->Halflife({"train", "--config", unknown}), 2, {"unknown.textproto:2:", "stepps"});
  const std::string type = Write("type.textproto", "train { steps: \"x\" }\n");
  Expect(fixture->Halflife({"train", "--config", type}), 2, {"type.textproto:1:"});
}

TEST_F(BadInput, RecipesInOtherFormatsAndWithOtherNames) {
  const auto recipe = [](const std::string& name) {
    return fixture->Halflife({"recipe", "--config", name});
  };
  const std::string json = Write("json.textproto", "{\n  \"train\": {\"steps\": 100}\n}\n");
  Expect(recipe(json), 2, {"json.textproto:1:1: this is JSON", "train { steps: 1000 }"});
  const std::string yaml = Write("yaml.textproto", "train:\n  steps: 100\n");
  Expect(recipe(yaml), 2, {"yaml.textproto:2:3: this is YAML", "train { steps: 1000 }"});
  const std::string twice = Write("twice.textproto", "train { steps: 1 }\ntrain { seed: 1 }\n");
  Expect(recipe(twice), 2,
         {"twice.textproto:2:1: the block train is given twice, on lines 1 and 2"});
  const std::string foreign = Write("foreign.textproto", "gradient_accumulation_steps: 4\n");
  Expect(recipe(foreign), 2,
         {"foreign.textproto:1:1: ", "Use train { global_batch: 8 }. halflife derives"});
  Expect(fixture->Halflife({"recipe", "--set", "lora.rank=8"}), 2,
         {"--set lora.rank: ", "halflife does not support it. Train all weights"});
}

TEST_F(BadInput, ImpossibleSizesAllAtOnce) {
  Expect(fixture->Run({.run = "sizes",
                       .set = {"model.model_dim=-4", "train.global_batch=7", "optimizer.lr=-1"}}),
         2, {"model_dim", "train.global_batch: 7", "optimizer.lr: -1"});
  EXPECT_FALSE(std::filesystem::exists(fixture->path("sizes")));
}

TEST_F(BadInput, UnknownMixerAndOption) {
  Expect(fixture->Run({.run = "m", .set = {"model.mixer=attention"}}), 2,
         {"'attention' is not a variant of model.mixer. Use --set 'model.mixer={ softmax {} }'."});
  Expect(fixture->Run({.run = "m", .set = {"model.mixer.gla.heads=2"}}), 2, {"heads", "num_heads"});
}

// Options of the recall mixers, and rows that these mixers do not support.
TEST_F(BadInput, WhatAMixerDoesNotTake) {
  const auto refused = [](const std::vector<std::string>& set,
                          const std::vector<std::string>& pieces) {
    Expect(fixture->Run({.run = "refused", .set = set}), 2, pieces);
    EXPECT_FALSE(std::filesystem::exists(fixture->path("refused")));
  };
  refused({"model.mixer=d2d", "model.mixer.d2d.head_dim=16"}, {"head_dim", "num_heads"});
  refused({"model.mixer=d2d", "model.mixer.d2d.num_heads=5"}, {"num_heads 5 must divide"});
  refused({"model.mixer=leap", "model.mixer.leap.num_heads=5"},
          {"num_heads 5 must divide model_dim 32"});
  refused({"model.mixer=based", "model.mixer.based.num_heads=33"},
          {"num_heads 33 above model_dim 32", "Use at most 32"});
  refused({"model.mixer=base_conv", "model.mixer.base_conv.kernel_size=0"},
          {"kernel_size is 0", "usually 3"});
  refused({"model.mixer=mamba", "model.mixer.mamba.d_conv=1"}, {"d_conv", "at least 2"});
  // Rows of text contain several documents.
  refused({"model.mixer=hyena"}, {"layer 0, hyena,", "several documents"});
  refused({"model.mixer=base_conv", "model.mixer.base_conv.kernel_size=-1"},
          {"layer 0, base_conv,", "several documents"});
  refused({"model.positions.learned.max_positions=32"}, {"data.seq_len is 64", "at most 32"});
}

TEST_F(BadInput, SizesThatNoMachineHolds) {
  Expect(fixture->Run({.run = "huge", .set = {"model.vocab_size=2000000000"}}), 2,
         {"this run does not fit", "Use a model of at most"});
  Expect(
      fixture->Run({.run = "huge",
                    .set = {"model.mixer=gla", "model.mixer.gla.conv_size=4611686018427387904"}}),
      2, {"conv_size", "at most"});
  Expect(fixture->Run({.run = "huge", .set = {"train.global_batch=9223372036854775804"}}), 2,
         {"train.global_batch", "at most"});
  EXPECT_FALSE(std::filesystem::exists(fixture->path("huge")));
}

TEST_F(BadInput, AllowChangeOfNoField) {
  ASSERT_EQ(fixture->Run({.run = "allow", .set = {"train.steps=1"}}).exit_code, 0);
  Expect(
      fixture->Run(
          {.run = "allow", .set = {"train.steps=1"}, .flags = {"--allow-change", "optimiser.lr"}}),
      2, {"'optimiser.lr' is no field", "did you mean 'optimizer.lr'?"});
  const RunResult free = fixture->Run(
      {.run = "allow", .set = {"train.steps=1"}, .flags = {"--allow-change", "train.threads"}});
  Expect(free, 0, {"train.threads: this field may differ without it"});
}

TEST_F(BadInput, ADatasetIsNoRun) {
  const auto files = [] {
    return std::distance(std::filesystem::directory_iterator(fixture->path("data")), {});
  };
  const auto before = files();
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, std::vector<std::string>{"--local-ranks", "2"}})
    Expect(fixture->Run({.run = "data", .flags = flags}), 2,
           {"holds a dataset", "Choose another folder with --run."});
  EXPECT_EQ(files(), before);
}

TEST_F(BadInput, ThreadsAboveTheCoresAreAWarning) {
  const RunResult result = fixture->Run({.run = "threads",
                                         .set = {"train.steps=1", "train.threads=64"},
                                         .flags = {"--local-ranks", "2"}});
  Expect(result, 0, {"128 threads in total: more threads than cores"});
  EXPECT_EQ(result.err.find("more threads", result.err.find("more threads") + 1), std::string::npos)
      << result.err;
}

TEST_F(BadInput, APlanNeedsNoDataset) {
  const RunResult plan =
      fixture->Run({.run = "plan", .set = {"data.path=/no/such"}, .flags = {"--dry-run"}});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_NE(plan.out.find("no dataset /no/such: a vocabulary of 32000 is assumed "
                          "(--set data.path=DATASET for a dataset's, --set model.vocab_size=N"),
            std::string::npos)
      << plan.out;
  EXPECT_NE(plan.out.find("parameters at an assumed vocabulary of 32000"), std::string::npos)
      << plan.out;
  const RunResult known = fixture->Run({.run = "plan", .flags = {"--dry-run"}});
  EXPECT_NE(known.out.find("epochs"), std::string::npos) << known.out;
  const RunResult huge =
      fixture->Run({.run = "plan",
                    .set = {"model.model_dim=65536", "model.mixer.gla.num_heads=128"},
                    .flags = {"--dry-run"}});
  EXPECT_EQ(huge.exit_code, 0) << huge.err;
  EXPECT_NE(huge.out.find("does not fit"), std::string::npos) << huge.out;
}

TEST_F(BadInput, DatasetMissingTruncatedOrDamaged) {
  Expect(fixture->Run({.run = "d", .set = {"data.path=/no/data"}}), 3, {"/no/data"});
  for (const bool truncate : {true, false}) {
    SCOPED_TRACE(truncate);
    const auto copy = fixture->path(truncate ? "truncated" : "flipped");
    std::filesystem::copy(fixture->path("data"), copy, std::filesystem::copy_options::recursive);
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
    Expect(fixture->Run({.run = "d", .set = {"data.path=" + copy.string(), "train.steps=40"}}), 3,
           {"train-00000.h5"});
  }
}

TEST_F(BadInput, RunFolderInUse) {
  const RunResult result = fixture->Run({.run = "busy", .set = {"train.steps=3"}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string lock = fixture->path("busy") / "run.lock";
  std::vector<std::string> command = {"flock", "-n", lock};
  const auto train = fixture->Command({.run = "busy", .set = {"train.steps=3"}});
  command.insert(command.end(), train.begin(), train.end());
  Expect(RunCommand(command), 4, {"in use"});
}

TEST_F(BadInput, CheckpointOfAnotherArchitecture) {
  ASSERT_EQ(fixture->Run({.run = "arch", .set = {"train.steps=3"}}).exit_code, 0);
  Expect(fixture->Run({.run = "arch", .set = {"train.steps=3", "model.model_dim=64"}}), 2,
         {"model_dim", "32", "64"});
  Expect(
      fixture->Run({.run = "arch", .set = {"train.steps=3", "optimizer.lr=1", "data.seq_len=32"}}),
      2, {"optimizer.lr", "data.seq_len"});
}

// Vocabularies of the same size with different pieces.
TEST_F(BadInput, TextOfAnotherTokenizer) {
  for (const std::string name : {"one", "two"}) {
    const std::string text = Write(name + ".txt", MakeText(60000, name == "one" ? 11 : 12));
    const RunResult prepared = fixture->Halflife({"prepare", "--input", text, "--train-tokenizer",
                                                  "--vocab", "320", "--out", fixture->path(name)});
    ASSERT_EQ(prepared.exit_code, 0) << prepared.err;
  }
  const RunResult trained = fixture->Run(
      {.run = "pieces", .set = {"train.steps=1", "data.path=" + fixture->path("one").string()}});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const std::string run = fixture->path("pieces");
  EXPECT_EQ(fixture->Halflife({"eval", "--model", run, "--data", fixture->path("one")}).exit_code,
            0);
  const std::string two = fixture->path("two");
  Expect(fixture->Halflife({"eval", "--model", run, "--data", two}), 2,
         {"token", "but '", "run's own tokenizer"});

  // Imported weights include their tokenizer.
  const std::string folder = fixture->path("pieces-hf");
  ASSERT_EQ(fixture->Halflife({"export", "--run", run, "--out", folder}).exit_code, 0);
  const RunResult imported =
      fixture->Halflife({"import", "--from", folder, "--out", fixture->path("imported")});
  ASSERT_EQ(imported.exit_code, 0) << imported.err;
  const std::filesystem::path run_of_folder = fixture->path("imported");
  Expect(fixture->Halflife({"train", "--config", run_of_folder / "config.textproto", "--set",
                            "data.path=" + two, "--run", run_of_folder}),
         2, {"token", "but '", "run's own tokenizer"});
  const RunResult warm = fixture->Run({.run = "warm",
                                       .set = {"train.steps=1", "data.path=" + two},
                                       .flags = {"--init-from", folder}});
  EXPECT_EQ(warm.exit_code, 0) << warm.err;
  EXPECT_NE(warm.err.find("was trained with another tokenizer: token"), std::string::npos)
      << warm.err;
}

TEST_F(BadInput, TextThatATokenizerOfCharactersCannotRead) {
  const std::string text = Write("plain.txt", MakeText(60000, 13));
  const std::string pieces = fixture->path("plain");
  ASSERT_EQ(fixture
                ->Halflife({"prepare", "--input", text, "--train-tokenizer", "--vocab", "320",
                            "--out", pieces})
                .exit_code,
            0);
  ASSERT_EQ(
      fixture->Run({.run = "plain-run", .set = {"train.steps=1", "data.path=" + pieces}}).exit_code,
      0);
  const std::string run = fixture->path("plain-run"), bad = Write("latin1.txt", "caf\xe9 noir"),
                    out = fixture->path("scores.jsonl");
  Expect(fixture->Halflife({"score", "--model", run, "--text", bad, "--out", out}), 3,
         {"latin1.txt is not UTF-8 from byte 3 on"});
  EXPECT_FALSE(std::filesystem::exists(out));
  // 320 pieces, but the model has 259 bytes.
  ASSERT_EQ(fixture->Run({.run = "bytes-run", .set = {"train.steps=1"}}).exit_code, 0);
  const std::string bytes = fixture->path("bytes-run");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"generate", "--prompt", "a"},
        std::vector<std::string>{"score", "--text", text, "--out", out}}) {
    std::vector<std::string> all = {command[0], "--model", bytes, "--tokenizer",
                                    pieces + "/tokenizer"};
    all.insert(all.end(), command.begin() + 1, command.end());
    Expect(fixture->Halflife(all), 2, {"the tokenizer has 320 tokens", "a vocabulary of 259"});
  }
}

TEST_F(BadInput, RanksThatDisagreeAboutTheConfig) {
  const std::string script =
      Write("disagree.sh", "#!/bin/bash\nexec \"$@\" --set train.seed=$OMPI_COMM_WORLD_RANK\n");
  std::vector<std::string> command = {"bash", script};
  const auto train = fixture->Command({.run = "disagree"});
  command.insert(command.end(), train.begin(), train.end());
  Expect(RunRanks(2, command), 2, {"disagree about the config"});
}

TEST_F(BadInput, FullDisk) {
  const auto small = fixture->path("small");
  std::filesystem::create_directories(small);
  // Space for one step of 471 KiB and the flight record of 132 KiB, but not for a second step.
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=800k") != 0) {
    GTEST_SKIP() << "mounting a tmpfs is not permitted here";
  }
  const RunResult result = fixture->Run({.run = "small/run", .set = {"train.steps=40"}});
  Expect(result, 74, {"space"});
  const RunResult ls = fixture->Halflife({"ckpt", "verify", small / "run"});
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
  Expect(result, 4, {"readonly/run", "Read-only"});
}

TEST_F(BadInput, DivergenceStopsWithItsOwnCode) {
  const RunResult result = fixture->Run({.run = "diverges",
                                         .set = {"optimizer.lr=1e30", "optimizer.clip_norm=0",
                                                 "schedule.warmup_steps=0", "ckpt.every=0"}});
  Expect(result, 73,
         {"not finite", "optimizer.lr", "clip the gradient (optimizer.clip_norm is 0,"});
  EXPECT_EQ(result.err.find("smaller optimizer.clip_norm"), std::string::npos)
      << "clipping is off: " << result.err;
  const auto lines = fixture->Metrics("diverges", "skipped");
  const auto skipped = std::find_if(lines.begin(), lines.end(),
                                    [](const auto& line) { return line["skipped"] == true; });
  ASSERT_NE(skipped, lines.end());
  EXPECT_TRUE((*skipped)["grad_norm"].is_null()) << *skipped;
}

}  // namespace
}  // namespace halflife::test
