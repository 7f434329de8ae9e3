// Errors, fault points, hashes, and number formatting.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"
#include "core/fault.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/human.h"
#include "core/log.h"
#include "core/tensor_ref.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife {
namespace {

std::string TextOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Error, InternalFaultsShowPlaceAndCondition) {
  const std::string text = TextOf([] { HL_CHECK(1 + 1 == 3, "sum is ", 2, ", not ", 3); });
  EXPECT_THAT(text, testing::MatchesRegex(
                        ".*core_test\\.cc:[0-9]+: check failed: 1 \\+ 1 == 3: sum is 2, not 3"));
  EXPECT_THAT(TextOf([] { HL_CHECK(false); }), testing::EndsWith("check failed: false"));
}

TEST(Error, UsersSeeWordsOnly) {
  EXPECT_EQ(TextOf([] { HL_CHECK_AS(ExitCode::kUsage, false, "unknown mixer '", "x", "'"); }),
            "unknown mixer 'x'");
  EXPECT_EQ(TextOf([] { HL_FAIL(ExitCode::kData, "no documents in ", 3, " files"); }),
            "no documents in 3 files");
  EXPECT_HL_ERROR([] { HL_FAIL(ExitCode::kRequeue, "saved"); }(), ExitCode::kRequeue, "saved");
}

TEST(Error, PiecesAreOnlyEvaluatedOnFailure) {
  int evaluated = 0;
  const auto piece = [&] { return ++evaluated; };
  HL_CHECK(true, piece());
  EXPECT_EQ(evaluated, 0);
}

TEST(Log, ParsesLevels) {
  EXPECT_EQ(log::ParseLevel("warn"), log::Level::kWarn);
  EXPECT_HL_ERROR(log::ParseLevel("loud"), ExitCode::kUsage, "'loud'",
                  "debug, info, warn or error");
}

TEST(Log, SpeaksOnStderrBeforeInit) {
  testing::internal::CaptureStdout();
  HL_WARN("test", "value ", 3, " of ", 4);
  log::Flush();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "") << "stdout belongs to results";
}

TEST(Log, NamesTheRankOnlyWhereThereAreSeveral) {
  const auto line = [](int rank, int world_size) {
    const test::TempDir dir;
    log::Init({.rank = rank, .world_size = world_size, .file = dir / "logs" / "log"});
    HL_INFO("test", "words");
    log::Flush();
    log::Init({});
    return ReadFile(dir / "logs" / "log", ExitCode::kInternal);
  };
  EXPECT_THAT(line(0, 1), testing::MatchesRegex("\\[[0-9:]+\\] \\[info\\] test: words\n"));
  EXPECT_THAT(line(3, 8), testing::HasSubstr("[r3/8] [info] test: words"));
}

TEST(Log, RefusesAFileThatIsNone) {
  const test::TempDir dir;
  const auto init = [&](const char* name) { log::Init({.file = dir / name}); };
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_HL_ERROR(init("pipe"), ExitCode::kEnvironment, "pipe", "exists and is not a file");
  std::filesystem::create_symlink("loop", dir / "loop");
  EXPECT_HL_ERROR(init("loop"), ExitCode::kEnvironment, "loop", "symbolic links");
  EXPECT_HL_ERROR(init("loop/log"), ExitCode::kEnvironment, "loop", "symbolic links");
  EXPECT_HL_ERROR(log::Init({.file = dir.path()}), ExitCode::kEnvironment,
                  "exists and is not a file");
}

#ifdef HALFLIFE_FAULT_POINTS

class Faults : public testing::Test {
 protected:
  ~Faults() override { fault::Arm("", 0); }
};

TEST_F(Faults, FireAtTheNthHitOfTheirPointOnly) {
  fault::Arm("ckpt.rename:eio:2", 0);
  HL_FAULT_POINT("ckpt.rename", ExitCode::kCheckpointIo);
  HL_FAULT_POINT("ckpt.other", ExitCode::kCheckpointIo);
  EXPECT_HL_ERROR(fault::Hit("ckpt.rename", ExitCode::kCheckpointIo), ExitCode::kCheckpointIo,
                  "injected at ckpt.rename", "errno 5");
  HL_FAULT_POINT("ckpt.rename", ExitCode::kCheckpointIo);  // Fails only once.
}

TEST_F(Faults, BelongToOneRank) {
  fault::Arm("p:throw:1:3", 2);
  HL_FAULT_POINT("p", ExitCode::kData);
  fault::Arm("p:throw:1:3", 3);
  EXPECT_HL_ERROR(fault::Hit("p", ExitCode::kData), ExitCode::kInternal, "injected at p");
}

TEST_F(Faults, SpeakAsTheDiskDoes) {
  fault::Arm("p:enospc:1", 0);
  EXPECT_HL_ERROR(fault::Hit("p", ExitCode::kData), ExitCode::kData, "No space left on device");
}

TEST_F(Faults, KillEndsTheProcess) {
  EXPECT_EXIT(
      {
        fault::Arm("p:kill:1", 0);
        fault::Hit("p", ExitCode::kData);
      },
      testing::KilledBySignal(9), "point p: kill");
}

TEST_F(Faults, ExitLeavesWithoutAWord) {
  EXPECT_EXIT(
      {
        fault::Arm("p:exit:1", 0);
        fault::Hit("p", ExitCode::kData);
      },
      testing::ExitedWithCode(3), "point p: exit");
}

TEST_F(Faults, StopLastsUntilTheProcessIsContinued) {
  const pid_t child = fork();
  if (child == 0) {
    fault::Arm("p:stop:1", 0);
    fault::Hit("p", ExitCode::kData);
    _exit(7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

TEST_F(Faults, RefuseMalformedSpecs) {
  for (const char* spec :
       {"p", "p:throw", "p:explode:1", "p:throw:0", "p:throw:x", "p:throw:1:0:0"}) {
    EXPECT_HL_ERROR(fault::Arm(spec, 0), ExitCode::kUsage, spec, "point:action:nth",
                    "kill, exit, stall, delay, stop, throw, enospc, eio");
  }
}

#endif

TEST(Hash, Golden) {
  // `printf '' | xxh128sum` and `printf 'halflife' | xxh128sum`
  EXPECT_EQ(ToHex(HashBytes("")), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(ToHex(HashBytes("halflife")), "036d0952ca2fb01be734d1eae89d52f6");
}

TEST(Hash, StreamedEqualsOneShot) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 31);
  StreamHash stream;
  for (size_t begin = 0; begin < text.size(); begin += 777) {
    stream.Update(text.data() + begin, std::min<size_t>(777, text.size() - begin));
  }
  EXPECT_EQ(stream.Digest(), HashBytes(text));
  stream.Reset();
  EXPECT_EQ(stream.Digest(), HashBytes(""));
}

TEST(Human, Numbers) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes(3435973837), "3.2 GiB");
  EXPECT_EQ(HumanCount(0), "0");
  EXPECT_EQ(HumanCount(0.432), "0.43");
  EXPECT_EQ(HumanCount(3.74), "3.7");
  EXPECT_EQ(HumanCount(9.96), "10");
  EXPECT_EQ(HumanCount(999), "999");
  EXPECT_EQ(HumanCount(12400), "12.4k");
  EXPECT_EQ(HumanCount(999999), "1.0M");
  EXPECT_EQ(HumanCount(-2.5e9), "-2.5B");
  EXPECT_EQ(HumanSeconds(59.4), "59 s");
  EXPECT_EQ(HumanSeconds(61), "1 min 01 s");
  EXPECT_EQ(HumanSeconds(3720), "1 h 02 min");
  EXPECT_EQ(Counted(0, "file"), "0 files");
  EXPECT_EQ(Counted(1, "file"), "1 file");
  EXPECT_EQ(Counted(1200, "file"), "1200 files");
  EXPECT_EQ(Fixed(1.005, 1), "1.0");
  EXPECT_EQ(Padded("ab", 4), "ab  ");
  EXPECT_EQ(Padded("abcd", 2), "abcd");
}

TEST(TensorRef, SlicesByElements) {
  double x[6] = {};
  const TensorRef part = Ref(x, 6).Slice(2, 3);
  EXPECT_EQ(part.data, x + 2);
  EXPECT_EQ(part.bytes(), 24u);
  EXPECT_STREQ(Name(DType::kBF16), "bf16");
  EXPECT_EQ(SizeOf(DType::kBF16), 2u);
}

}  // namespace
}  // namespace halflife
