// `halflife sweep` with the binary: a grid that partly fails, is killed, stopped and distributed
// has the same results as undisturbed runs.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>

#include "support/program_test.h"

namespace halflife::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Sweep : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    fixture = std::make_unique<RunFixture>(20000);
    std::ofstream(Path("two.textproto")) << Text("");
    ExpectExit(RunSweep("two", "undisturbed"), 0);
  }

  // Returns a sweep of two mixers with two seeds, followed by `more`.
  static std::string Text(const std::string& more) {
    return "recipe: \"recipe.textproto\"\n"
           "dataset { name: \"made\" prepare: \"--input " +
           Path("text.txt") +
           " --documents blank_lines --tokenizer bytes --validation-fraction 0.2\" }\n"
           "set: \"data.path=dataset:made\" set: \"train.steps=8\" set: \"ckpt.every=2\"\n"
           "set: \"eval.every=4\" set: \"train.threads=1\"\n"
           "axis { name: \"mixer\"\n"
           "  point { label: \"gla\" set: \"model.mixer=gla\" }\n"
           "  point { label: \"d2d\" set: \"model.mixer=d2d\" }\n}\n"
           "axis { field: \"train.seed\" value: [\"1\", \"2\"] }\n"
           "summary { over: \"seed\" }\n" +
           more;
  }
  static RunResult RunSweep(const std::string& config, const std::string& out,
                            const std::vector<std::string>& flags = {},
                            const std::map<std::string, std::string>& env = {}) {
    return RunCommand(
        Append({kProgram, "sweep", "--config", Path(config + ".textproto"), "--out", Path(out)},
               flags),
        {.timeout_s = 240, .env = env});
  }
  static void ExpectBitwiseUndisturbed(const std::string& out) {
    for (const char* trial : {"mixer=gla,seed=1", "mixer=gla,seed=2", "mixer=d2d,seed=1"}) {
      const std::string run = std::string("/runs/") + trial;
      ExpectExit(
          Halflife({"ckpt", "diff", Path("undisturbed" + run), Path(out + run), "--bitwise"}), 0);
    }
  }
};

TEST_F(Sweep, MakesItsDatasetItsRunsAndItsTables) {
  const std::string results = Read("undisturbed/results.csv");
  EXPECT_THAT(results, HasSubstr("run,mixer,seed,state,exit_code,attempts,seconds,parameters,steps,"
                                 "val_loss,val_loss_step,median_tokens_per_s,message\n"));
  EXPECT_THAT(results, HasSubstr("\"mixer=d2d,seed=2\",d2d,2,finished,0,1,"));
  EXPECT_THAT(Read("undisturbed/summary.csv"),
              AllOf(HasSubstr("mixer,val_loss_mean,val_loss_std,val_loss_low,val_loss_high,runs\n"),
                    HasSubstr("\ngla,"), HasSubstr("\nd2d,")));
  EXPECT_TRUE(std::filesystem::exists(Path("undisturbed/datasets/made/manifest.pb")));
  const RunResult page = ExpectExit(Halflife({"report", Path("undisturbed"), "--out", "-"}), 0);
  EXPECT_THAT(page.out, AllOf(HasSubstr("<h2>Summary</h2>"), HasSubstr("mixer=d2d,seed=2"),
                              HasSubstr("Content-Security-Policy")));
}

// The output if a finished sweep is started again.
TEST_F(Sweep, ItEndsWithATableOfItsRuns) {
  const RunResult again = ExpectExit(RunSweep("two", "undisturbed"), 0);
  EXPECT_THAT(again.out,
              testing::ContainsRegex("run               mixer  seed  status    val_loss  at step  "
                                     "tokens/s  time *\nmixer=gla,seed=1  gla       1  finished  "
                                     "  [ 0-9.]{6}        8  "));
  EXPECT_THAT(again.out, AllOf(HasSubstr("\nmixer  val_loss_mean  val_loss_std"),
                               HasSubstr("4 of 4 runs finished, 0 failed")));
}

// The page of a sweep has relative links to its runs, and may include other runs and evaluations.
TEST_F(Sweep, SweepsRunsAndEvaluationsShareAPage) {
  const std::string run = Path("undisturbed/runs/mixer=gla,seed=1");
  std::filesystem::create_directories(Path("pages"));
  ExpectExit(Halflife({"eval", "--model", run, "--text", Path("text.txt"), "--windows", "1",
                       "--lengths", "32,64", "--out", Path("pages/lengths.json")}),
             0);
  std::ofstream(Path("undisturbed/runs/mixer=gla,seed=2/report.html")) << "<p>its page</p>";
  ExpectExit(Halflife({"report", Path("undisturbed"), run, Path("pages/lengths.json"), "--out",
                       Path("pages/all.html")}),
             0);
  const std::string html = Read("pages/all.html");
  EXPECT_THAT(
      html,
      AllOf(HasSubstr("<h1 class=\"part\">Sweep undisturbed</h1>"),
            HasSubstr("<a href=\"../undisturbed/runs/mixer=gla,seed=1/\">mixer=gla,seed=1</a>"),
            HasSubstr("<a href=\"../undisturbed/runs/mixer=gla,seed=2/report.html\">"),
            HasSubstr("<b>val_loss over mixer</b>"), HasSubstr("<b>val_loss over seed</b>"),
            HasSubstr("<h1 class=\"part\">Other runs</h1>"), HasSubstr("<h2>By length</h2>")));
  std::filesystem::remove(Path("undisturbed/runs/mixer=gla,seed=2/report.html"));
  ExpectExit(Halflife({"report", Path("undisturbed"), "--out", Path("pages/x.svg")}), 2,
             {"a picture does not show a sweep. Use --out report.html"});
}

TEST_F(Sweep, ABlendNeedsAMetricOfASource) {
  std::string text = Text("set: \"data.source=[{ name: 'web' path: 'x' weight: 1 }]\"\n");
  const std::string path = "set: \"data.path=dataset:made\" ";
  text.erase(text.find(path), path.size());
  std::ofstream(Path("blend.textproto")) << text;
  ExpectExit(RunSweep("blend", "blend"), 2,
             {"run mixer=gla,seed=1: the summary's metric is val_loss, which a run on a blend does "
              "not have. Name a source or a set: summary { metric: \"val_loss/web\" }."});
  EXPECT_FALSE(std::filesystem::exists(Path("blend")));
}

TEST_F(Sweep, UnderALauncherItsRunsAreNoRanksOfIt) {
  const std::vector<std::string> sweep = {
      kProgram, "sweep", "--config", Path("two.textproto"), "--out", Path("launched")};
  ExpectExit(RunRanks(1, sweep, {.timeout_s = 240}), 0);
  ExpectBitwiseUndisturbed("launched");
  ExpectExit(RunRanks(2, sweep, {.timeout_s = 60}), 2, {"sweep as one of 2 ranks", "--share"});
}

// Training the same recipe by hand gives the same run.
TEST_F(Sweep, ARunIsWhatTrainMakesOfItsRecipe) {
  ExpectExit(Halflife({"train", "--config", Path("undisturbed/recipes/mixer=gla,seed=2.textproto"),
                       "--run", Path("alone")}),
             0);
  ExpectExit(Halflife({"ckpt", "diff", Path("undisturbed/runs/mixer=gla,seed=2"), Path("alone"),
                       "--bitwise"}),
             0);
}

TEST_F(Sweep, KilledRunsGoOnAndFinishedOnesStay) {
  const RunResult killed =
      ExpectExit(RunSweep("two", "killed", {"--share", "0/2"}, {{"HL_FAULT", "train.step:kill:6"}}),
                 137, {"failed with exit code 137: ended by SIGKILL"});
  EXPECT_THAT(killed.out, AllOf(HasSubstr("0 of 2 runs finished, 2 failed"),
                                HasSubstr("failed  mixer=gla,seed=1")));
  EXPECT_THAT(Read("killed/results.csv"), HasSubstr("mixer=gla,seed=2\",gla,2,pending,0,0,"));
  ExpectExit(RunSweep("two", "killed", {"--share", "0/2", "--jobs", "1"}), 0);
  EXPECT_THAT(Read("killed/results.csv"), HasSubstr("mixer=gla,seed=1\",gla,1,finished,0,2,"));
  const RunResult whole = ExpectExit(RunSweep("two", "killed"), 0, {"4 runs, 2 of them finished"});
  EXPECT_THAT(whole.out, HasSubstr("4 of 4 runs finished, 0 failed"));
  ExpectBitwiseUndisturbed("killed");
}

TEST_F(Sweep, ASignalSavesWhatRunsAndTheSameCommandGoesOn) {
  // Stopped when its first run trains.
  const std::string metrics = Path("stopped/runs/mixer=gla,seed=1/metrics.jsonl");
  const std::string script =
      std::string(kProgram) + " sweep --config " + Path("two.textproto") + " --out " +
      Path("stopped") +
      " --jobs 1 --set train.steps=1000000 --set ckpt.every=1000000 & sweep=$!; " + "until [ -s '" +
      metrics + "' ]; do sleep 0.1; done; kill -TERM $sweep; wait $sweep";
  const RunResult stopped =
      ExpectExit(RunCommand({"/bin/sh", "-c", script}, {.timeout_s = 120}), 75);
  const std::string results = Read("stopped/results.csv");
  EXPECT_THAT(results, AllOf(HasSubstr(",stopped,75,1,"), HasSubstr(",pending,0,0,")));
  EXPECT_TRUE(std::filesystem::exists(Path("stopped/runs/mixer=gla,seed=1/ckpt/LATEST")));
}

TEST_F(Sweep, ARunThatFailsStopsNoOther) {
  std::ofstream(Path("bad.textproto")) << Text(
      "axis { name: \"lr\" point { label: \"bad\" set: \"optimizer.lr=1e30\" set: "
      "\"train.on_nonfinite=stop\" } point { label: \"good\" set: \"optimizer.lr=1e-3\" } "
      "}");
  const RunResult result = ExpectExit(RunSweep("bad", "bad", {"--retries", "1"}), 73);
  EXPECT_THAT(result.out, HasSubstr("4 of 8 runs finished, 4 failed"));
  const std::string results = Read("bad/results.csv");
  EXPECT_THAT(results, AllOf(HasSubstr("lr=bad\",gla,1,bad,failed,73,2,"),
                             HasSubstr("lr=good\",gla,1,good,finished,0,1,")));
  EXPECT_THAT(Read("bad/logs/mixer=gla,seed=1,lr=bad.log"), HasSubstr("finite"));
}

TEST_F(Sweep, AFailedDatasetFailsOnlyItsRuns) {
  std::string text = Text("");
  const std::string good = "--validation-fraction 0.2\" }\n";
  text.insert(
      text.find(good) + good.size(),
      "dataset { name: \"broken\" prepare: \"--input /no/such/text --tokenizer bytes\" }\n");
  const std::string gla = "set: \"model.mixer=gla\"";
  text.insert(text.find(gla) + gla.size(), " set: \"data.path=dataset:broken\"");
  std::ofstream(Path("broken.textproto")) << text;
  ExpectExit(RunSweep("broken", "broken"), 3);
  EXPECT_THAT(Read("broken/results.csv"),
              AllOf(HasSubstr("mixer=gla,seed=1\",gla,1,failed,3,0,"),
                    HasSubstr("dataset broken could not be made"),
                    HasSubstr("mixer=d2d,seed=1\",d2d,1,finished,0,1,")));
}

TEST_F(Sweep, NumbersOfAnotherRecipeDoNotPassForThese) {
  ExpectExit(RunSweep("two", "undisturbed", {"--set", "optimizer.lr=0.5"}), 2,
             {"run mixer=gla,seed=1", "was made with optimizer.lr", "but the sweep now has 0.5",
              "another --out"});
  ExpectExit(RunSweep("two", "undisturbed", {"--set", "eval.windows=3"}), 2,
             {"was made with eval.windows"});
  // Options that do not change a run's numbers may change.
  ExpectExit(RunSweep("two", "undisturbed", {"--set", "train.log_every=3"}), 0);
  std::string text = Text("");
  text.replace(text.find("0.2\""), 3, "0.5");
  std::ofstream(Path("other_data.textproto")) << text;
  ExpectExit(RunSweep("other_data", "undisturbed"), 2,
             {"dataset made", "--validation-fraction 0.5", "another --out"});
  text = Text("");
  text.replace(text.find("dataset:made"), 12, "other");
  std::ofstream(Path("by_hand.textproto")) << text;
  EXPECT_THAT(RunSweep("by_hand", "undisturbed").err,
              HasSubstr("was made with data.path dataset:made, but the sweep now has other"));
  // A finished run's recipe records how it was made.
  EXPECT_THAT(Read("undisturbed/recipes/mixer=gla,seed=1.textproto"),
              Not(HasSubstr("log_every: 3")));
}

// A run that failed before it produced anything may be corrected.
TEST_F(Sweep, WhatWasNeverMadeIsBoundToNothing) {
  std::string text = Text("");
  text.replace(text.find("--tokenizer bytes"), 17, "--tokenizer none");
  std::ofstream(Path("typo.textproto")) << text;
  const RunResult typo =
      ExpectExit(RunSweep("typo", "mended"), 3,
                 {"no run can start: dataset made could not be made",
                  "dataset-made.log, ends with: ", "Correct its `prepare` line"});
  EXPECT_THAT(typo.out, Not(HasSubstr("failed")));
  ExpectExit(RunSweep("two", "mended", {"--set", "optimizer.lr=1e-4"}), 0);
  EXPECT_THAT(Read("mended/datasets/made.prepare"), HasSubstr("--tokenizer bytes"));
  // The outputs of the first sweep must not change, even after other versions of it have run.
  std::string without = Text("");
  const size_t begin = without.find("dataset {");
  without.erase(begin, without.find('\n', begin) - begin);
  without.replace(without.find("dataset:made"), 12, Path("mended/datasets/made"));
  std::ofstream(Path("without.textproto")) << without;
  ExpectExit(RunSweep("without", "mended", {"--set", "optimizer.lr=1e-4"}), 0);
  text = Text("");
  text.replace(text.find("0.2\""), 3, "0.5");
  std::ofstream(Path("stale.textproto")) << text;
  EXPECT_THAT(RunSweep("stale", "mended", {"--set", "optimizer.lr=1e-4"}).err,
              HasSubstr("dataset made"));
}

TEST_F(Sweep, WhatAnotherSweepRunsIsLeftToIt) {
  std::filesystem::create_directories(Path("shared/status"));
  const std::string lock = Path("shared/status/mixer=gla,seed=1.lock");
  const int fd = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  const RunResult result = RunSweep("two", "shared");
  ::close(fd);
  EXPECT_EQ(result.exit_code, 75) << result.err;  // It is not finished yet.
  EXPECT_THAT(result.err, HasSubstr("mixer=gla,seed=1 is being run by another sweep"));
  EXPECT_THAT(result.out, HasSubstr("3 of 4 runs finished, 0 failed"));
}

TEST_F(Sweep, SaysWhatIsWrongBeforeItStartsAnything) {
  std::ofstream(Path("option.textproto"))
      << Text("axis { field: \"model.num_layers\" value: [\"1\", \"-1\"] }");
  ExpectExit(RunSweep("option", "never"), 2,
             {"run mixer=gla,seed=1,num_layers=-1: ", "num_layers"});
  EXPECT_FALSE(std::filesystem::exists(Path("never")));
  ExpectExit(RunSweep("two", "never", {"--share", "2/2"}), 2,
             {"--share '2/2' is not INDEX/COUNT. Use 0/8"});
  ExpectExit(RunSweep("no_such_sweep", "never"), 2, {"no_such_sweep.textproto"});
}

// One error before the first run, instead of the same error in each run.
TEST_F(Sweep, ADatasetThatDoesNotFitIsReportedBeforeTheFirstRun) {
  const auto expect_refusal = [](const std::string& name, const std::string& set, int exit_code,
                                 const std::vector<std::string>& words) {
    const std::string out = "unfit_" + name;
    const RunResult result = RunSweep("two", out, {"--set", set});
    EXPECT_EQ(result.exit_code, exit_code) << name << result.out << result.err;
    EXPECT_THAT(result.err, HasSubstr("run mixer=gla,seed=1: "));
    for (const std::string& word : words) EXPECT_THAT(result.err, HasSubstr(word));
    EXPECT_THAT(result.err, Not(HasSubstr("mixer=d2d")));
    EXPECT_THAT(result.out, Not(HasSubstr("failed")));
    EXPECT_FALSE(std::filesystem::exists(Path(out + "/runs/mixer=gla,seed=1")));
  };
  expect_refusal("missing", "data.path=" + Path("no_such_data"), 3, {"no_such_data"});
  expect_refusal("text", "data.path=" + Path("text.txt"), 3, {"text.txt"});
  expect_refusal("unset", "data.path=", 2, {"data.path is not set. Name a dataset"});
  const std::string data = "data.path=" + Path("undisturbed/datasets/made");
  std::ofstream(Path("ready.textproto")) << Text("set: \"" + data + "\"\n");
  ExpectExit(RunSweep("ready", "unfit_vocabulary", {"--set", "model.vocab_size=100"}), 2,
             {"model.vocab_size 100 is smaller than the dataset's vocabulary of 259"});
  EXPECT_FALSE(std::filesystem::exists(Path("unfit_vocabulary")));
  // A dataset that the sweep prepares is checked afterwards.
  expect_refusal(
      "rows", "data.seq_len=65536", 3,
      {"the training split of ", "fewer than data.seq_len + 1 = 65537", "Prepare more text"});
  EXPECT_TRUE(std::filesystem::exists(Path("unfit_rows/datasets/made/manifest.pb")));
}

TEST_F(Sweep, AFileOfTheOtherKindIsNamed) {
  ExpectExit(Halflife({"train", "--config", Path("two.textproto")}), 2,
             {"It is a field of a sweep: `halflife sweep --config` reads its file"});
  ExpectExit(RunSweep("recipe", "none"), 2,
             {"It is a field of a recipe: `halflife train --config` reads its file"});
}

// For example, a table of 48 positions is reported before the dataset is prepared.
TEST_F(Sweep, UnsupportedRowsAreReportedFirst) {
  std::ofstream(Path("rows.textproto"))
      << Text("set: \"model.positions.learned.max_positions=16\"\n");
  ExpectExit(RunSweep("rows", "rows"), 2, {"run mixer=gla,seed=1", "16"});
  EXPECT_FALSE(std::filesystem::exists(Path("rows/datasets/made")));
}

TEST_F(Sweep, ADryRunOnlyReports) {
  const RunResult plan = ExpectExit(RunSweep("two", "planned", {"--dry-run"}), 0);
  EXPECT_EQ(plan.out,
            "4 pending\ndataset  made  to be made\npending  mixer=gla,seed=1\n"
            "pending  mixer=gla,seed=2\npending  mixer=d2d,seed=1\npending  mixer=d2d,seed=2\n");
  EXPECT_FALSE(std::filesystem::exists(Path("planned")));
  EXPECT_THAT(RunSweep("two", "undisturbed", {"--dry-run"}).out,
              AllOf(HasSubstr("4 finished"), HasSubstr("dataset  made  exists"),
                    Not(HasSubstr("pending"))));
}

}  // namespace
}  // namespace halflife::test
