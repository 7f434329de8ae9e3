// `halflife prepare` as a user calls it: exit codes, messages, Ctrl-C.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "data/small_datasets.h"
#include "support/paths.h"
#include "support/subprocess.h"
#include "support/temp_dir.h"

namespace halflife::data {
namespace {

using halflife::test::RunCommand;
using halflife::test::RunResult;
using halflife::test::TempDir;
using testing::HasSubstr;

class PrepareCliTest : public testing::Test {
 protected:
  void SetUp() override {
    test::WriteText(dir_ / "a.txt", test::JoinByBlankLines(test::RandomDocuments(300, 1)));
  }
  RunResult Run(std::vector<std::string> options) {
    std::vector<std::string> command = {halflife::test::kProgram, "prepare"};
    command.insert(command.end(), options.begin(), options.end());
    return RunCommand(command);
  }
  std::string Path(const std::string& name) { return dir_ / name; }
  TempDir dir_;
};

TEST_F(PrepareCliTest, PreparesAndSums) {
  const RunResult result =
      Run({"--input", Path("a.txt"), "--tokenizer", "bytes", "--out", Path("out"), "--documents",
           "blank_lines", "--invalid-utf8", "replace"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(": 1 file, "));
  EXPECT_THAT(result.out, testing::ContainsRegex(" of text in ([0-9]+\\.[0-9]|less than 0.1) s "));
  EXPECT_THAT(result.out, HasSubstr("train: "));
  EXPECT_THAT(result.out, HasSubstr("tokenizer: bytes, 259 ids"));
  EXPECT_THAT(result.out, HasSubstr(ToHex(Dataset::Open(Path("out")).info().hash)));
  EXPECT_EQ(Run({"--input", Path("a.txt"), "--tokenizer", "bytes", "--out", Path("out")}).exit_code,
            2);
}

// The split of nanoGPT's Shakespeare example, on a text of the same size.
TEST_F(PrepareCliTest, TheTailIsCutByPosition) {
  test::WriteText(dir_ / "book.txt", std::string(1115394, 'x'));
  const RunResult result = Run({"--input", Path("book.txt"), "--validation-tail", "0.1",
                                "--tokenizer", "bytes", "--out", Path("out")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("shard, the last 10 % of book.txt\n"));
  const DatasetInfo info = Dataset::Open(Path("out")).info();
  EXPECT_EQ(info.train.num_bytes, 1003854);
  EXPECT_EQ(info.validation.num_bytes, 111540);
  EXPECT_EQ(info.train.num_tokens, 1003854 + 1);
}

TEST_F(PrepareCliTest, ShortDocumentsAreWarnedOf) {
  const auto prepare = [&](const char* documents, const char* out) {
    return Run({"--input", Path("a.txt"), "--tokenizer", "bytes", "--documents", documents, "--out",
                Path(out)});
  };
  const std::string warning =
      " tokens on average. The state restarts at each document, so in rows of 512 tokens";
  const RunResult blocks = prepare("blank_lines", "blocks");
  EXPECT_THAT(blocks.err, HasSubstr(warning));
  EXPECT_THAT(blocks.err, HasSubstr("Use --documents file, or train with "
                                    "data.reset_at_documents=false"));
  EXPECT_THAT(prepare("line", "lines").err, HasSubstr(warning));
  EXPECT_EQ(prepare("file", "file").err, "");
  const RunResult old = prepare("blank-line", "old");
  EXPECT_EQ(old.exit_code, 2);
  EXPECT_THAT(old.err, HasSubstr("blank_lines")) << "the name that it has now";
}

// A full disk gives one line with the file and the system's reason.
TEST_F(PrepareCliTest, AFullDiskIsOneMessage) {
  test::WriteText(dir_ / "book.txt", std::string(1000000, 'x'));
  const RunResult result = RunCommand(
      {"bash", "-c", "ulimit -f 100; trap '' XFSZ; exec \"$0\" \"$@\"", halflife::test::kProgram,
       "prepare", "--input", Path("book.txt"), "--tokenizer", "bytes", "--out", Path("out")});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  EXPECT_THAT(result.err,
              testing::ContainsRegex("cannot write tokens to .*train-00000.h5: File too large\n"));
  EXPECT_FALSE(std::filesystem::exists(Path("out")));
}

TEST_F(PrepareCliTest, MakesASyntheticTask) {
  const RunResult result = Run({"--synthetic",
                                "mqar",
                                "--vocab-size",
                                "64",
                                "--seq-len",
                                "16",
                                "--num-pairs",
                                "4",
                                "2",
                                "--examples",
                                "50",
                                "30",
                                "--validation-examples",
                                "10",
                                "--test-examples",
                                "0",
                                "--generator",
                                "numpy_compat",
                                "--out",
                                Path("mqar")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* piece : {"labelled rows of 16 tokens", "train: 80 rows",
                            "30 of seq_len=16,num_kv_pairs=2, seed 142", "test: 0 rows"}) {
    EXPECT_THAT(result.out, HasSubstr(piece));
  }
  const Dataset dataset = Dataset::Open(Path("mqar"));
  EXPECT_THAT(result.out, HasSubstr(ToHex(dataset.info().hash)));
  EXPECT_THAT(dataset.info().generator, HasSubstr("mqar numpy_compat"));

  const RunResult odd = Run({"--synthetic", "mqar", "--seq-len", "63", "--out", Path("odd")});
  EXPECT_EQ(odd.exit_code, 2);
  EXPECT_THAT(odd.err, HasSubstr("Use 64."));
  const RunResult none = Run({"--synthetic", "mqar", "--examples", "0", "--out", Path("none")});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("has no rows. Use --examples 1 or more."));
  const RunResult full = Run({"--synthetic", "mqar", "--seq-len", "16", "--num-pairs", "5",
                              "--vocab-size", "64", "--out", Path("full")});
  EXPECT_EQ(full.exit_code, 2);
  EXPECT_THAT(full.err, HasSubstr("Use 1 to 4.")) << "rows too short for their pairs";
  EXPECT_FALSE(std::filesystem::exists(Path("full")));
  const RunResult lists = Run({"--synthetic", "mqar", "--seq-len", "64", "32", "--num-pairs", "4",
                               "8", "2", "--out", Path("lists")});
  EXPECT_EQ(lists.exit_code, 2);
  EXPECT_THAT(lists.err,
              HasSubstr("--seq-len has 2 numbers. Use 1 number for all segments, or 3."));
  EXPECT_EQ(Run({"--synthetic", "mqar", "--input", Path("a.txt"), "--out", Path("o")}).exit_code,
            2);
  EXPECT_EQ(Run({"--out", Path("o")}).exit_code, 2);  // Neither.
}

TEST_F(PrepareCliTest, ExitCodes) {
  EXPECT_EQ(Run({"--input", Path("a.txt")}).exit_code, 2);                      // No --out.
  EXPECT_EQ(Run({"--input", Path("a.txt"), "--out", Path("o")}).exit_code, 2);  // No tokenizer.
  EXPECT_EQ(Run({"--input", Path("a.txt"), "--tokenizer", "bytes", "--out", Path("o"),
                 "--documents", "page"})
                .exit_code,
            2);
  const RunResult missing =
      Run({"--input", Path("b*.txt"), "--tokenizer", "bytes", "--out", Path("o")});
  EXPECT_EQ(missing.exit_code, 3);
  EXPECT_THAT(missing.err, HasSubstr("no file matches"));
}

TEST_F(PrepareCliTest, ValidationInput) {
  const auto published = test::RandomDocuments(30, 1);  // The first documents of a.txt.
  test::WriteText(dir_ / "v.txt", test::JoinByBlankLines({published[3], "a text of its own"}));
  const std::vector<std::string> options = {"--input",     Path("a.txt"), "--validation-input",
                                            Path("v.txt"), "--documents", "blank_lines",
                                            "--tokenizer", "bytes",       "--out",
                                            Path("out")};
  const RunResult result = Run(options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Dataset::Open(Path("out")).info().validation.num_documents, 2);
  EXPECT_THAT(result.err,
              HasSubstr("1 of the 2 documents of --validation-input are also in --input"));
  auto both = options;
  both.insert(both.end(), {"--validation-fraction", "0.1"});
  const RunResult refused = Run(both);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err,
              HasSubstr("--validation-input and --validation-fraction exclude each other"));
}

// Options of a synthetic task for text, and options of text for the task.
TEST_F(PrepareCliTest, OptionsOfAnotherModeAreNotIgnored) {
  const RunResult task = Run({"--input", Path("a.txt"), "--tokenizer", "bytes", "--out", Path("o"),
                              "--seq-len", "128", "--num-pairs", "7", "--examples", "5"});
  EXPECT_EQ(task.exit_code, 2);
  EXPECT_THAT(task.err, HasSubstr("--seq-len does nothing without --synthetic"));
  const RunResult text =
      Run({"--synthetic", "mqar", "--tokenizer", "bytes", "--field", "body",
           "--validation-fraction", "0.3", "--documents", "file", "--out", Path("o")});
  EXPECT_EQ(text.exit_code, 2);
  EXPECT_THAT(text.err, HasSubstr("--tokenizer and --synthetic exclude each other"));
  EXPECT_FALSE(std::filesystem::exists(Path("o")));
}

TEST_F(PrepareCliTest, HelpShowsExamples) {
  const RunResult help = Run({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("--train-tokenizer --vocab 8192"));
}

TEST_F(PrepareCliTest, CtrlCLeavesNothing) {
  // 600 MB of text in a small compressed file, which takes seconds.
  const std::string member = test::Gzip(test::JoinByBlankLines(test::RandomDocuments(10000, 1)));
  std::string many;
  for (int i = 0; i < 500; ++i) many += member;
  test::WriteText(Path("big.txt.gz"), many);
  const std::string input = Path("big.txt.gz"), out = Path("out"), log = Path("log");
  const pid_t child = ::fork();
  if (child == 0) {
    std::freopen(log.c_str(), "w", stderr) == nullptr ? ::_exit(9) : void();
    ::execl(halflife::test::kProgram, "halflife", "prepare", "--input", input.c_str(),
            "--documents", "blank_lines", "--tokenizer", "bytes", "--out", out.c_str(), nullptr);
    ::_exit(127);
  }
  // Interrupts it when its temporary folder exists.
  for (int i = 0; i < 1000 && test::Names(dir_.path()).size() < 4; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(child, SIGINT);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_THAT(test::ReadText(log), HasSubstr("stopped by a signal"));
  EXPECT_EQ(test::Names(dir_.path()), (std::vector<std::string>{"a.txt", "big.txt.gz", "log"}));
}

}  // namespace
}  // namespace halflife::data
