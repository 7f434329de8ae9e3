// safetensors files: round trips, alignment, and headers that must be refused.
#include "ckpt/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <random>

#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::ckpt {
namespace {

using halflife::test::TempDir;
using safetensors::Entry;
using safetensors::Header;

const std::vector<Entry> kEntries = {{"main/w", StoredDType::kF32, {2, 3}, 0, 24},
                                     {"main/e", StoredDType::kF32, {0, 4}, 24, 24},
                                     {"bf\"16\n", StoredDType::kBF16, {}, 24, 26},
                                     {"u8@5", StoredDType::kU8, {6}, 26, 32}};

std::string WithLength(const std::string& json) {
  const uint64_t length = json.size();
  std::string head(8, '\0');
  std::memcpy(head.data(), &length, 8);
  return head + json;
}

Header Parse(const std::string& json, uint64_t data_bytes) {
  const std::string head = WithLength(json);
  return safetensors::ParseHeader(head, head.size() + data_bytes, "x.safetensors", ExitCode::kData);
}

TEST(SafetensorsTest, RoundTripWithAlignedData) {
  const std::string head = safetensors::BuildHeader(kEntries, {{"format", "pt"}}, 4096);
  EXPECT_EQ(head.size(), 4096u);
  const Header header =
      safetensors::ParseHeader(head, head.size() + 32, "x.safetensors", ExitCode::kData);
  EXPECT_EQ(header.data_offset, 4096u);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  ASSERT_EQ(header.entries.size(), kEntries.size());
  for (size_t i = 0; i < kEntries.size(); ++i) {
    EXPECT_EQ(header.entries[i].name, kEntries[i].name);
    EXPECT_EQ(header.entries[i].dtype, kEntries[i].dtype);
    EXPECT_EQ(header.entries[i].shape, kEntries[i].shape);
    EXPECT_EQ(header.entries[i].end, kEntries[i].end);
  }
}

TEST(SafetensorsTest, ReadsFromAFile) {
  const TempDir dir;
  const std::string head = safetensors::BuildHeader(kEntries, {}, 8);
  std::ofstream(dir / "x.safetensors", std::ios::binary) << head << std::string(32, 'd');
  EXPECT_EQ(safetensors::ReadHeader(dir / "x.safetensors", ExitCode::kData).entries.size(), 4u);
  std::ofstream(dir / "short.safetensors", std::ios::binary) << head.substr(0, 5);
  EXPECT_HL_ERROR(safetensors::ReadHeader(dir / "short.safetensors", ExitCode::kData),
                  ExitCode::kData, "short.safetensors", "shorter than 8 bytes");
  std::ofstream(dir / "pointer.safetensors") << "version https://git-lfs.github.com/spec/v1\n";
  EXPECT_HL_ERROR(safetensors::ReadHeader(dir / "pointer.safetensors", ExitCode::kData),
                  ExitCode::kData, "pointer.safetensors", "it is a pointer of Git LFS. Download");
  EXPECT_HL_ERROR(safetensors::ReadHeader(dir / "missing.safetensors", ExitCode::kData),
                  ExitCode::kData, "No such file");
}

// A read must not wait for a pipe without a writer.
TEST(SafetensorsTest, WhatIsNoRegularFile) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "pipe.safetensors").c_str(), 0600), 0);
  std::filesystem::create_directory(dir / "folder.safetensors");
  for (const char* name : {"pipe.safetensors", "folder.safetensors"})
    EXPECT_HL_ERROR(safetensors::ReadHeader(dir / name, ExitCode::kData), ExitCode::kData, name,
                    "it is not a regular file");
}

TEST(SafetensorsTest, HostileHeadersAreRefused) {
  const std::string good = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_EQ(Parse("{" + good + "}", 8).entries.size(), 1u);
  const struct {
    std::string json;
    const char* text;
  } cases[] = {
      {"[]", "does not begin with '{'"},
      {"{" + good, "not a JSON object"},
      {"{\"\xff\":1}", "not a JSON object in UTF-8"},
      {"{" + good + "," + good + "}", "key 'a' appears twice"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       "'dtype' appears"},
      {R"({"a":{"dtype":"F32","shape":[2]}})", "exactly dtype, shape and data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", "exactly dtype"},
      {R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", "dtype 'F31'; supported: F32"},
      {R"({"a":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})", "dtype is not a string"},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "not a list of sizes"},
      {R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", "not a list of sizes"},
      {R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", "shape is not a list"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", "not a pair"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "bytes [8, 0)"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "bytes [0, 4) for 2 elements"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})",
       "overflows"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "ends at 0"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "the data at 8"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", "the data at 8"},
      {"{" + good + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "begins at 4"},
      {R"({"__metadata__":{"a":1}})", "metadata 'a' is not a string"},
      {R"({"__metadata__":[]})", "__metadata__ is not an object"},
  };
  for (const auto& hostile : cases) {
    SCOPED_TRACE(hostile.json);
    EXPECT_HL_ERROR(Parse(hostile.json, 8), ExitCode::kData, "x.safetensors", hostile.text);
  }
  std::string huge = WithLength("{}");
  const uint64_t length = safetensors::kMaxHeaderBytes + 1;
  std::memcpy(huge.data(), &length, 8);
  EXPECT_HL_ERROR(safetensors::ParseHeader(huge, 1ull << 40, "x", ExitCode::kData), ExitCode::kData,
                  "the limit is 100000000");
  const uint64_t beyond = 11;
  std::memcpy(huge.data(), &beyond, 8);
  EXPECT_HL_ERROR(safetensors::ParseHeader(huge, 10, "x", ExitCode::kData), ExitCode::kData,
                  "header of 11 bytes in a file of 10");
}

TEST(SafetensorsFuzzTest, MutatedHeadersAreRefusedOrSound) {
  const std::string head = safetensors::BuildHeader(kEntries, {{"magic", "halflife-ckpt"}}, 8);
  std::mt19937_64 random(3);
  int num_refused = 0;
  for (int i = 0; i < 10'000; ++i) {
    std::string mutated = head;
    for (uint64_t n = random() % 3 + 1; n > 0; --n) {
      const size_t at = random() % mutated.size();
      // Half of the new bytes come from the header, so the result is often still JSON.
      mutated[at] = random() % 2 == 0 ? head[random() % head.size()] : static_cast<char>(random());
    }
    try {
      const Header header =
          safetensors::ParseHeader(mutated, head.size() + 32, "x", ExitCode::kData);
      uint64_t at = 0;
      for (const Entry& entry : header.entries) {
        EXPECT_EQ(entry.begin, at) << mutated;
        EXPECT_EQ(entry.end - entry.begin, CountElements(entry.shape) * SizeOf(entry.dtype));
        at = entry.end;
      }
      EXPECT_EQ(header.data_offset + at, head.size() + 32) << mutated;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 5000);
}

}  // namespace
}  // namespace halflife::ckpt
