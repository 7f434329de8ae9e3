// The description by inspect of TensorBoard's event files: those of a run, and artificial ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <halflife/tensorboard_event.pb.h>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "cli/inspect/artifact.h"
#include "core/tfrecord.h"
#include "support/expect_error.h"
#include "support/mutate.h"
#include "support/temp_dir.h"
#include "train/record/event_log.h"

namespace halflife::cli::inspect {
namespace {

namespace fs = std::filesystem;
namespace tb = proto::tensorboard;
using Json = nlohmann::ordered_json;
using testing::HasSubstr;

constexpr char kName[] = "events.out.tfevents.1700000000.host.1";

std::string Record(const std::function<void(tb::Event&)>& fill, int64_t step = 0) {
  tb::Event event;
  event.set_step(step);
  event.set_wall_time(1.7e9 + static_cast<double>(step));
  fill(event);
  return FrameTfRecord(event.SerializeAsString());
}
std::string Version() {
  return Record([](tb::Event& event) { event.set_file_version("brain.Event:2"); });
}
std::string Start(int64_t step) {
  return Record(
      [](tb::Event& event) { event.mutable_session_log()->set_status(tb::SessionLog::START); },
      step);
}
std::string Scalar(const std::string& tag, int64_t step, float number) {
  return Record(
      [&](tb::Event& event) {
        tb::Summary::Value* value = event.mutable_summary()->add_value();
        value->set_tag(tag);
        value->set_simple_value(number);
      },
      step);
}

class InspectEventsTest : public testing::Test {
 protected:
  fs::path Write(const std::string& bytes, const std::string& name = kName) {
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
    return dir_ / name;
  }
  test::TempDir dir_;
};

TEST_F(InspectEventsTest, WhatTheTrainerWrote) {
  train::EventLog log(dir_ / "events", 0);
  log.Text(0, "run/config", "    optimizer { lr: 3e-4 }");
  for (int64_t step = 1; step <= 5; ++step) {
    log.Scalars(step, {{"train/loss", 6.0 - static_cast<double>(step)}, {"train/lr", 3e-4}});
  }
  log.Scalars(5, {{"val/loss", std::nan("")}});
  const Json json = Describe(dir_ / "events");
  EXPECT_EQ(json["kind"], "events");
  EXPECT_EQ(json["records"], 9);  // Version, start, text, five steps, a validation.
  EXPECT_EQ(json["damaged_bytes"], 0);
  EXPECT_EQ(json["attempts"], 1);
  EXPECT_GT(json["first_time"], 1.7e9);
  EXPECT_GE(json["last_time"], json["first_time"]);
  EXPECT_EQ(json["other_values"], 0);
  EXPECT_EQ(json["scalars"][0], Json({{"tag", "train/loss"},
                                      {"points", 5},
                                      {"first_step", 1},
                                      {"last_step", 5},
                                      {"least", 1.0},
                                      {"largest", 5.0},
                                      {"last", 1.0}}));
  EXPECT_EQ(json["scalars"][1]["tag"], "train/lr");
  EXPECT_EQ(json["scalars"][1]["last"], 3e-4);
  EXPECT_EQ(json["scalars"][2]["points"], 1);
  EXPECT_TRUE(json["scalars"][2]["last"].is_null());
  EXPECT_TRUE(json["scalars"][2]["least"].is_null());
  EXPECT_EQ(
      json["texts"],
      Json::array({{{"tag", "run/config"}, {"points", 1}, {"first_step", 0}, {"last_step", 0}}}));
  // The description of one file of the folder is the same.
  Json file = Describe(log.path());
  EXPECT_EQ(file["files"], json["files"]);
  file["path"] = json["path"];
  EXPECT_EQ(file, json);
  EXPECT_THAT(Text(dir_ / "events"), HasSubstr("train/loss"));
}

// If TensorBoard has read the first file before it was truncated, the START of the second file
// makes it forget the old points.
TEST_F(InspectEventsTest, SupersededStepsDoNotCount) {
  Write(Version() + Start(0) + Scalar("a", 1, 1) + Scalar("a", 2, 2) + Scalar("a", 3, 9) +
            Scalar("gone", 3, 0),
        "tfevents.1");
  Write(Version() + Start(3) + Scalar("a", 3, 3) + Scalar("a", 4, 7), "tfevents.2");
  Write(Version() + Start(4) + Start(5), "tfevents.3");
  const Json json = Describe(dir_.path());
  EXPECT_EQ(json["attempts"], 4);
  ASSERT_EQ(json["scalars"].size(), 1u) << json.dump();
  EXPECT_EQ(json["scalars"][0]["points"], 3);
  EXPECT_EQ(json["scalars"][0]["last_step"], 3);
  EXPECT_EQ(json["scalars"][0]["largest"], 3.0);
  EXPECT_EQ(json["scalars"][0]["last"], 3.0);
}

TEST_F(InspectEventsTest, ATornEndIsSaid) {
  const std::string whole = Version() + Scalar("a", 1, 1);
  const Json torn = Describe(Write(whole + Scalar("a", 2, 2).substr(0, 30)));
  EXPECT_EQ(torn["records"], 2);
  EXPECT_EQ(torn["damaged_bytes"], 30);
  EXPECT_EQ(torn["files"][0]["damaged_bytes"], 30);
  // A complete record that is not an event. Records after it are not read.
  const std::string other = FrameTfRecord("\xff\xff") + Scalar("a", 2, 2);
  const Json mixed = Describe(Write(whole + other));
  EXPECT_EQ(mixed["damaged_bytes"], other.size());
  EXPECT_EQ(mixed["scalars"][0]["points"], 1);
  // An empty file, as a new writer leaves it.
  EXPECT_EQ(Describe(Write(""))["records"], 0);
}

TEST_F(InspectEventsTest, WhatIsNoEventFile) {
  EXPECT_HL_ERROR(Describe(Write("text")), ExitCode::kData, kName,
                  "no complete TensorBoard event. Use a file");
  EXPECT_HL_ERROR(Describe(Write(Scalar("a", 1, 1))), ExitCode::kData, "brain.Event");
}

TEST_F(InspectEventsTest, HostileFilesAreBounded) {
  EXPECT_HL_ERROR(Describe(Write(Version() + Scalar(std::string(1025, 'a'), 1, 1))),
                  ExitCode::kData, "1024 bytes (1025)");
  std::string tags = Version();
  for (int i = 0; i <= 10'000; ++i) tags += Scalar(std::to_string(i), 1, 1);
  EXPECT_HL_ERROR(Describe(Write(tags)), ExitCode::kData, "10000 tags");
  EXPECT_HL_ERROR(Describe(Write(Version() + FrameTfRecord(std::string((16 << 20) + 1, 'x')))),
                  ExitCode::kData, "a record of 16777217 bytes");
  // A tag that would clear the terminal.
  const fs::path escape = Write(Version() + Scalar("\x1b[2J", 1, 1));
  EXPECT_EQ(Text(escape).find('\x1b'), std::string::npos);
}

// Checksums are recomputed, so that the damage reaches the event parser.
TEST_F(InspectEventsTest, DamagedEventsAreRefusedOrDescribed) {
  std::mt19937_64 random(1);
  tb::Event event;
  event.set_step(3);
  tb::Summary::Value* value = event.mutable_summary()->add_value();
  value->set_tag("train/loss");
  value->set_simple_value(1);
  const std::string bytes = event.SerializeAsString();
  int described = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string file = Version();
    for (int record = 0; record < 3; ++record) file += FrameTfRecord(test::Mutated(bytes, random));
    if (i % 4 == 0) file = test::Mutated(file, random);
    try {
      const Json json = Describe(Write(file));
      EXPECT_FALSE(json.dump(-1, ' ', false, Json::error_handler_t::replace).empty());
      ++described;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
    }
  }
  EXPECT_GT(described, 1000);
}

}  // namespace
}  // namespace halflife::cli::inspect
