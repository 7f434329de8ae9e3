// Pipes, sockets, devices, link loops and damaged names in the place of a run's or a dataset's
// files cause an immediate error that names the path, and never an internal error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "support/program_test.h"

namespace halflife::test {
namespace {

using testing::HasSubstr;
using testing::Not;

namespace fs = std::filesystem;

void MakePipe(const fs::path& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0) << path; }
void MakeLoop(const fs::path& path) { fs::create_symlink(path.filename(), path); }
void MakeSocket(const fs::path& path) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  ASSERT_LT(path.string().size(), sizeof address.sun_path);
  std::strcpy(address.sun_path, path.c_str());
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << path;
  ::close(fd);
}
void MakeEndless(const fs::path& path) { fs::create_symlink("/dev/zero", path); }

class HostilePaths : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    ExpectExit(fixture->Run({.run = "run", .set = {"train.steps=2"}}), 0);
  }

  // Copies the run or the dataset, and creates `name` with `make`.
  static std::string With(const std::string& source, const std::string& name,
                          void (*make)(const fs::path&)) {
    static int count = 0;
    const fs::path copy = fixture->path(source + std::to_string(++count));
    fs::copy(Path(source), copy, fs::copy_options::recursive);
    fs::remove_all(copy / name);
    make(copy / name);
    return copy;
  }
  static RunResult Resume(const std::string& run, const std::string& steps) {
    return fixture->Run({.run = fs::path(run).filename(),
                         .set = {"train.steps=" + steps},
                         .flags = {"--allow-change", "train.steps"},
                         .timeout_s = 60});
  }
  // Expects an error about the user's environment that contains `piece`.
  static void ExpectNamed(const RunResult& result, const std::string& piece) {
    EXPECT_GT(result.exit_code, 0) << result.err << result.out;
    EXPECT_NE(result.exit_code, 70) << result.err;
    EXPECT_LT(result.exit_code, 128) << "a signal: " << result.err;
    EXPECT_THAT(result.err, HasSubstr(piece));
    EXPECT_THAT(result.err, Not(HasSubstr("frame #")));
  }
};

TEST_F(HostilePaths, ARecipeThatIsNoFile) {
  MakePipe(fixture->path("pipe.textproto"));
  for (const std::string& path : {Path("pipe.textproto"), std::string("/dev/zero")}) {
    ExpectNamed(Halflife({"train", "--config", path}), path);
    ExpectNamed(Halflife({"train", "--config", path, "--dry-run"}), path);
    ExpectNamed(Halflife({"inspect", path}), path);
  }
}

TEST_F(HostilePaths, PartsOfARun) {
  for (const char* part : {"tokenizer", "logs", "logs/r00000.log", "ckpt"}) {
    for (const auto make : {MakePipe, MakeLoop, MakeSocket}) {
      const std::string run = With("run", part, make);
      SCOPED_TRACE(run + " " + part);
      ExpectNamed(Resume(run, "3"), part);
    }
  }
  ExpectNamed(Resume(With("run", "metrics.jsonl", MakePipe), "3"), "metrics.jsonl");
  ExpectNamed(Resume(With("run", "tokenizer/kind.txt", MakeEndless), "3"), "kind.txt");
}

// These parts are informative or are replaced later, so the run continues.
TEST_F(HostilePaths, PartsOfARunThatItCanDoWithout) {
  for (const char* part :
       {"config.textproto", "heartbeat.json", "owner.json", "events", "ckpt/LATEST", "DONE"}) {
    for (const auto make : {MakePipe, MakeLoop}) {
      const std::string run = With("run", part, make);
      SCOPED_TRACE(run + " " + part);
      ExpectExit(Resume(run, "3"), 0);
    }
  }
}

TEST_F(HostilePaths, AnEndlessOrMissingTokenizer) {
  const std::string run = With("run", "tokenizer/kind.txt", MakeEndless);
  ExpectNamed(Halflife({"generate", "--model", run, "--prompt", "a"}), "kind.txt");
}

TEST_F(HostilePaths, ADatasetsManifest) {
  for (const auto make : {MakePipe, MakeLoop, MakeEndless, MakeSocket}) {
    const std::string data = With("data", "manifest.pb", make);
    SCOPED_TRACE(data);
    ExpectNamed(fixture->Run({.run = "new", .set = {"data.path=" + data}, .timeout_s = 60}),
                "manifest.pb");
    ExpectNamed(Halflife({"eval", "--model", Path("run"), "--data", data}), "manifest.pb");
    ExpectNamed(Halflife({"inspect", data}), data);
  }
}

TEST_F(HostilePaths, AStepsManifest) {
  for (const auto make : {MakePipe, MakeLoop, MakeEndless}) {
    const std::string step = "ckpt/step_000000000002/manifest.pb";
    const std::string run = With("run", step, make);
    SCOPED_TRACE(run);
    ExpectNamed(Halflife({"eval", "--model", run, "--data", Path("data")}), "manifest.pb");
    ExpectNamed(Resume(run, "3"), "manifest.pb");
  }
}

TEST_F(HostilePaths, AFailedStartLeavesNoFolder) {
  ExpectExit(fixture->Run({.run = "deep/er/run", .set = {"data.path=/no/such/data"}}), 3);
  EXPECT_FALSE(fs::exists(fixture->path("deep")));
  fs::create_directories(fixture->path("kept"));
  ExpectExit(fixture->Run({.run = "kept/run", .set = {"model.vocab_size=3"}}), 2);
  EXPECT_TRUE(fs::is_empty(fixture->path("kept")));
}

TEST_F(HostilePaths, ListingsNameWhatWasProbablyMeant) {
  ExpectExit(Halflife({"ckpt", "ls", Path("")}), 1,
             {". Use one of these runs:", Path("run") + "\n"});

  const std::string page = fixture->path("page.html");
  ExpectExit(Halflife({"report", Path("data"), Path("run"), "--out", page}), 0, {"left out: "});
  EXPECT_TRUE(fs::exists(page));
  ExpectNamed(Halflife({"report", Path("data"), "--out", page}), "is not the folder of a run");
}

}  // namespace
}  // namespace halflife::test
