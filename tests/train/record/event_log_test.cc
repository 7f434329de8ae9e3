// Checks the TensorBoard event files of a run: format, resumes and failed writes.
#include "train/record/event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <halflife/tensorboard_event.pb.h>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/tfrecord.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::train {
namespace {

namespace fs = std::filesystem;
namespace tb = proto::tensorboard;

class Events : public testing::Test {
 protected:
  // Returns "tag@step" for every summary value in the folder, in the order of the file names.
  std::vector<std::string> Shown() const {
    std::vector<std::string> shown;
    for (const fs::path& path : Files()) {
      TfRecordReader reader(path, ExitCode::kInternal);
      while (const auto payload = reader.Next()) {
        tb::Event event;
        EXPECT_TRUE(event.ParseFromString(*payload));
        for (const auto& value : event.summary().value()) {
          shown.push_back(Concat(value.tag(), "@", event.step()));
        }
      }
    }
    return shown;
  }
  std::vector<fs::path> Files() const {
    std::vector<fs::path> files(fs::directory_iterator(folder_), {});
    std::sort(files.begin(), files.end());
    return files;
  }
  static void Write(EventLog& events, int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) events.Scalars(step, {{"loss", 1.0}});
  }
  test::TempDir dir_;
  const fs::path folder_ = dir_ / "events";
};

TEST_F(Events, AFileOpensWithItsVersionAndTheStartOfItsSession) {
  const EventLog events(folder_, 7);
  TfRecordReader reader(events.path(), ExitCode::kInternal);
  tb::Event version, start;
  ASSERT_TRUE(version.ParseFromString(reader.Next().value()));
  ASSERT_TRUE(start.ParseFromString(reader.Next().value()));
  EXPECT_FALSE(reader.Next().has_value());
  EXPECT_EQ(version.file_version(), "brain.Event:2");
  EXPECT_GT(version.wall_time(), 1.7e9);
  EXPECT_EQ(start.session_log().status(), tb::SessionLog::START);
  EXPECT_EQ(start.step(), 7);
}

// Compares field numbers and wire types with TensorBoard's format, byte by byte except for the
// clock.
TEST_F(Events, TheWireFormatIsGolden) {
  EventLog events(folder_, 0);
  events.Scalars(3, {{"a/b", 0.5}});
  events.Text(4, "t", "hi");
  TfRecordReader reader(events.path(), ExitCode::kInternal);
  reader.Next();
  reader.Next();
  const std::string scalar = reader.Next().value(), text = reader.Next().value();
  using std::string_literals::operator""s;
  EXPECT_EQ(scalar.substr(0, 1), "\x09");  // 1: wall_time, fixed64
  EXPECT_EQ(scalar.substr(9), "\x10\x03\x2a\x0c\x0a\x0a\x0a\x03"s + "a/b\x15\0\0\0\x3f"s);
  EXPECT_EQ(text.substr(9), "\x10\x04\x2a\x1b\x0a\x19\x0a\x01t\x42\x08\x08\x07\x12\0\x42\x02hi"s +
                                "\x4a\x0a\x0a\x06\x0a\x04text\x20\x02"s);
}

TEST_F(Events, AnAttemptTruncatesReplayedSteps) {
  {
    EventLog first(folder_, 0);
    Write(first, 0, 15);
    first.Scalars(14, {{"val", 1.0}});
  }
  {
    EventLog second(folder_, 11);  // Resumes from step 10.
    Write(second, 11, 13);
  }
  EventLog third(folder_, 6);  // Resumes from step 5, so all of the second attempt is removed.
  Write(third, 6, 9);
  EXPECT_EQ(Files().size(), 2u);
  EXPECT_THAT(Shown(), testing::ElementsAre("loss@0", "loss@1", "loss@2", "loss@3", "loss@4",
                                            "loss@5", "loss@6", "loss@7", "loss@8"));
}

// A background save is recorded when it ends, after steps that are later than its own.
TEST_F(Events, AnEarlierStepRecordedBehindALaterOneStays) {
  fs::path path;
  {
    EventLog first(folder_, 0);
    Write(first, 0, 4);
    first.Scalars(2, {{"save", 1.0}});
    Write(first, 4, 6);
    first.Scalars(3, {{"save", 1.0}});
    first.Scalars(5, {{"save", 1.0}});
    path = first.path();
  }
  fs::resize_file(path, fs::file_size(path) - 3);  // The last record is incomplete.
  EventLog second(folder_, 4);
  Write(second, 4, 5);
  EXPECT_THAT(Shown(), testing::ElementsAre("loss@0", "loss@1", "loss@2", "loss@3", "save@2",
                                            "save@3", "loss@4"));
  EXPECT_EQ(Files().front(), path);
}

TEST_F(Events, ANewRunRemovesTheEventsOfAnOldOne) {
  {
    EventLog first(folder_, 0);
    Write(first, 0, 5);
  }
  EventLog second(folder_, 0);
  Write(second, 0, 2);
  EXPECT_EQ(Files(), std::vector<fs::path>{second.path()});
}

TEST_F(Events, ATornLastRecordOfAKilledWriterIsRemoved) {
  fs::path path;
  {
    EventLog first(folder_, 0);
    Write(first, 0, 5);
    path = first.path();
  }
  const auto whole = fs::file_size(path);
  fs::resize_file(path, whole - 3);
  EventLog second(folder_, 5);
  Write(second, 5, 7);
  EXPECT_LT(fs::file_size(path), whole - 3);
  EXPECT_THAT(Shown(),
              testing::ElementsAre("loss@0", "loss@1", "loss@2", "loss@3", "loss@5", "loss@6"));
}

TEST_F(Events, NamesSortByAttemptWithAnyClock) {
  fs::create_directories(folder_);
  const fs::path future = folder_ / "events.out.tfevents.9000000000.elsewhere.1";
  {
    EventLog attempt(folder_, 0);
    Write(attempt, 0, 2);
    fs::rename(attempt.path(), future);
  }
  const EventLog second(folder_, 1);
  EXPECT_EQ(Files(), (std::vector<fs::path>{future, second.path()}));
}

// A limit on the file size imitates a full disk: the first write beyond it is truncated.
TEST_F(Events, AFailedWriteLeavesWholeRecordsAndTheLogGoesOn) {
  EventLog events(folder_, 0);
  Write(events, 0, 3);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = old;
  limit.rlim_cur = fs::file_size(events.path()) + 10;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  testing::internal::CaptureStderr();
  Write(events, 3, 6);
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  ::signal(SIGXFSZ, handler);
  Write(events, 6, 8);
  EXPECT_THAT(Shown(), testing::ElementsAre("loss@0", "loss@1", "loss@2", "loss@6", "loss@7"));
  const size_t first = log.find("TensorBoard events of step 3 are lost, training goes on");
  EXPECT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("are lost", first + 60), std::string::npos) << "said more than once:\n" << log;
}

TEST_F(Events, AFolderThatCannotBeMadeIsNamed) {
  AtomicWriteFile(dir_ / "file", "x", ExitCode::kInternal);
  EXPECT_HL_ERROR(EventLog(dir_ / "file" / "events", 0), ExitCode::kEnvironment, "file/events");
}

TEST(MetricTags, EveryNumberOfALineHasATag) {
  const nlohmann::ordered_json line = {
      {"step", 3},         {"loss", std::nan("")},  {"skipped", true},
      {"tokens_per_s", 5}, {"attempt", "0badf00d"}, {"new_metric", 2}};
  const std::vector<ScalarValue> scalars = ScalarsOf(line);
  std::vector<std::string> tags;
  for (const ScalarValue& scalar : scalars) tags.push_back(scalar.tag);
  EXPECT_THAT(tags, testing::ElementsAre("train/loss", "train/skipped", "perf/tokens_per_second",
                                         "other/new_metric"));
  EXPECT_TRUE(std::isnan(scalars[0].value));  // JSON can only write it as null.
  EXPECT_EQ(scalars[1].value, 1);
  EXPECT_EQ(scalars[3].value, 2);
}

// Several lines of one step have the same tokens and time, but a curve has one point per step.
TEST(MetricTags, TokensAndTimeAreOfTrainedSteps) {
  const auto tags = [](const nlohmann::ordered_json& line) {
    std::vector<std::string> found;
    for (const ScalarValue& scalar : ScalarsOf(line)) found.push_back(scalar.tag);
    return found;
  };
  EXPECT_THAT(
      tags({{"step", 3}, {"loss", 1.0}, {"tokens", 96}, {"elapsed_s", 2.5}, {"unix_ms", 7}}),
      testing::ElementsAre("train/loss", "train/tokens", "perf/elapsed_s"));
  EXPECT_THAT(
      tags({{"step", 3}, {"val_loss", 1.0}, {"tokens", 96}, {"elapsed_s", 2.6}, {"unix_ms", 8}}),
      testing::ElementsAre("val/loss"));
}

}  // namespace
}  // namespace halflife::train
