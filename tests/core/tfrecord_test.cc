// The framing and checksums of TFRecord files, and readers of truncated or damaged files.
#include "core/tfrecord.h"

#include <gtest/gtest.h>

#include "core/files.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife {
namespace {

std::string Ascending(int first, int last) {
  std::string bytes;
  for (int i = first; i != last; i += first < last ? 1 : -1) bytes += static_cast<char>(i);
  return bytes;
}

// RFC 3720, B.4, and the check value of CRC catalogues.
TEST(Crc32c, KnownAnswers) {
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(Ascending(0, 32)), 0x46dd794eu);
  EXPECT_EQ(Crc32c(Ascending(31, -1)), 0x113fdb5cu);
  const unsigned char iscsi_read[48] = {
      0x01, 0xc0, 0, 0,    0, 0, 0, 0,    0,    0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0,
      0,    0,    0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0,    0};
  EXPECT_EQ(Crc32c({reinterpret_cast<const char*>(iscsi_read), sizeof iscsi_read}), 0xd9963a56u);
}

class TfRecord : public testing::Test {
 protected:
  static std::vector<std::string> ReadAll(const std::filesystem::path& path, uint64_t* end) {
    TfRecordReader reader(path, ExitCode::kEnvironment);
    std::vector<std::string> payloads;
    while (auto payload = reader.Next()) payloads.push_back(std::move(*payload));
    *end = reader.offset();
    return payloads;
  }
  test::TempDir dir_;
};

// The bytes that tensorboard.summary.writer.record_writer.RecordWriter writes for b"hello", and its
// masked_crc32c.
TEST_F(TfRecord, FramingIsGolden) {
  const std::string hex = [] {
    std::string text;
    for (const unsigned char byte : FrameTfRecord("hello")) {
      text += "0123456789abcdef"[byte >> 4];
      text += "0123456789abcdef"[byte & 15];
    }
    return text;
  }();
  EXPECT_EQ(hex, "0500000000000000eab2043e68656c6c6fbb1f1c19");
  EXPECT_EQ(MaskedCrc32c("123456789"), 0xc78ab0e5u);
}

TEST_F(TfRecord, ReadsBackWhatWasFramed) {
  const std::vector<std::string> payloads = {"", "a", std::string(100000, '\xee'),
                                             Ascending(0, 256)};
  std::string bytes;
  for (const std::string& payload : payloads) bytes += FrameTfRecord(payload);
  AtomicWriteFile(dir_ / "r", bytes, ExitCode::kInternal);
  uint64_t end = 0;
  EXPECT_EQ(ReadAll(dir_ / "r", &end), payloads);
  EXPECT_EQ(end, bytes.size());
}

TEST_F(TfRecord, StopsBeforeATornRecordWhereverItIsTorn) {
  const std::string whole = FrameTfRecord("first"), torn = FrameTfRecord("second record");
  for (size_t length = 0; length < torn.size(); ++length) {
    AtomicWriteFile(dir_ / "r", whole + torn.substr(0, length), ExitCode::kInternal);
    uint64_t end = 0;
    EXPECT_EQ(ReadAll(dir_ / "r", &end), std::vector<std::string>{"first"}) << length;
    EXPECT_EQ(end, whole.size());
  }
}

TEST_F(TfRecord, StopsBeforeADamagedRecordWhereverItIsDamaged) {
  const std::string whole = FrameTfRecord("first"), next = FrameTfRecord("second record");
  for (size_t at = 0; at < next.size(); ++at) {
    std::string damaged = whole + next + whole;
    damaged[whole.size() + at] ^= 0x40;
    AtomicWriteFile(dir_ / "r", damaged, ExitCode::kInternal);
    uint64_t end = 0;
    EXPECT_EQ(ReadAll(dir_ / "r", &end), std::vector<std::string>{"first"}) << at;
  }
}

TEST_F(TfRecord, ARecordThatNoMemoryShouldHoldIsRefused) {
  const std::string largest = FrameTfRecord(std::string(kMaxTfRecordBytes, 'x'));
  AtomicWriteFile(dir_ / "r", largest + FrameTfRecord(std::string(kMaxTfRecordBytes + 1, 'x')),
                  ExitCode::kInternal);
  TfRecordReader reader(dir_ / "r", ExitCode::kData);
  EXPECT_EQ(reader.Next().value().size(), kMaxTfRecordBytes);
  EXPECT_HL_ERROR(reader.Next(), ExitCode::kData, "/r has a record of 16777217 bytes",
                  Concat("at byte ", largest.size()), "more than the limit of 16777216 bytes");
}

TEST_F(TfRecord, AMissingFileIsNamed) {
  EXPECT_HL_ERROR(TfRecordReader(dir_ / "none", ExitCode::kEnvironment), ExitCode::kEnvironment,
                  "none", "No such file");
}

}  // namespace
}  // namespace halflife
