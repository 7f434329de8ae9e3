// Traces are files that trace viewers can open, also with events of many threads.
#include "core/trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

namespace halflife {
namespace {

using Json = nlohmann::json;

TEST(Trace, IsWhatViewersOpen) {
  Trace first(0), second(1);
  first.Slice("phases", "for\"ward", 1000, 1500);
  first.Slice("phases", "backward", 1500, 2700);
  first.Slice("loader", "read", 900, 1100);
  second.Overlapping("world", "all_reduce a 0", 2000, 2900, 64);
  second.Overlapping("world", "all_reduce a 1", 2100, 2800, 32);
  const Json events = Json::parse(TraceFile({first.Events(), second.Events()})).at("traceEvents");
  const auto named = [&](const std::string& name) {
    std::vector<Json> found;
    for (const Json& event : events)
      if (event.at("name") == name) found.push_back(event);
    return found;
  };
  ASSERT_EQ(named("process_name").size(), 2u);
  EXPECT_EQ(named("process_name")[1].at("args").at("name"), "rank 1");
  EXPECT_EQ(named("thread_name").size(), 3u);
  ASSERT_EQ(named("for\"ward").size(), 1u);
  const Json forward = named("for\"ward")[0];
  EXPECT_EQ(forward.at("ph"), "X");
  EXPECT_EQ(forward.at("ts"), 1000);
  EXPECT_EQ(forward.at("dur"), 500);
  EXPECT_EQ(forward.at("pid"), 0);
  EXPECT_EQ(forward.at("tid"), named("backward")[0].at("tid"));
  EXPECT_NE(forward.at("tid"), named("read")[0].at("tid"));
  const std::vector<Json> pair = named("all_reduce a 0");
  ASSERT_EQ(pair.size(), 2u);
  EXPECT_EQ(pair[0].at("ph"), "b");
  EXPECT_EQ(pair[0].at("args").at("bytes"), 64);
  EXPECT_EQ(pair[1].at("ph"), "e");
  EXPECT_EQ(pair[1].at("ts"), 2900);
  EXPECT_EQ(pair[0].at("id2"), pair[1].at("id2"));
  EXPECT_NE(pair[0].at("id2"), named("all_reduce a 1")[0].at("id2"));
}

TEST(Trace, EmptyIsAFileToo) { EXPECT_TRUE(Json::parse(TraceFile({})).at("traceEvents").empty()); }

TEST(Trace, TakesEventsOfManyThreads) {
  Trace trace(0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&trace, t] {
      for (int i = 0; i < 200; ++i) trace.Slice(std::to_string(t), "x", i, i + 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Json::parse(TraceFile({trace.Events()})).at("traceEvents").size(), 1u + 4 + 800);
}

}  // namespace
}  // namespace halflife
