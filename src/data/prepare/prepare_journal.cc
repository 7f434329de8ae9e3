#include "data/prepare/prepare_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/hash.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

// Precedes each payload.
struct RecordHead {
  uint64_t bytes = 0;
  Hash128 hash;
};

std::string RecordOf(const std::string& payload) {
  const RecordHead head = {payload.size(), HashBytes(payload)};
  return std::string(reinterpret_cast<const char*>(&head), sizeof head) + payload;
}

fs::path JournalOf(const fs::path& out) {
  fs::path path = NamedFolder(fs::absolute(out).lexically_normal());
  path += ".journal";
  return path;
}

// Appends values to a payload. Journals are read on the machine that wrote them.
template <typename T>
void PutValues(std::span<const T> values, std::string& bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  const uint64_t count = values.size();
  bytes.append(reinterpret_cast<const char*>(&count), sizeof count);
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

// Takes what PutValues appended from the front of `rest`. The payload's hash was checked.
template <typename Values>
Values TakeValues(std::string_view& rest) {
  uint64_t count = 0;
  std::memcpy(&count, rest.data(), sizeof count);
  rest.remove_prefix(sizeof count);
  Values values;
  values.resize(count);
  const size_t bytes = count * sizeof(typename Values::value_type);
  if (bytes > 0) std::memcpy(values.data(), rest.data(), bytes);
  rest.remove_prefix(bytes);
  return values;
}

std::string ToPayload(const EncodedChunk& chunk) {
  std::string bytes;
  PutValues(std::span<const int32_t>(chunk.ids), bytes);
  PutValues(std::span<const EncodedDocument>(chunk.documents), bytes);
  std::vector<int64_t> counts = {chunk.num_empty};
  for (const auto& [name, count] : chunk.special_names) counts.push_back(count);
  PutValues(std::span<const int64_t>(counts), bytes);
  for (const auto& [name, count] : chunk.special_names)
    PutValues(std::span<const char>(name), bytes);
  return bytes;
}

EncodedChunk FromPayload(std::string_view rest) {
  EncodedChunk chunk;
  chunk.ids = TakeValues<std::vector<int32_t>>(rest);
  chunk.documents = TakeValues<std::vector<EncodedDocument>>(rest);
  const auto counts = TakeValues<std::vector<int64_t>>(rest);
  chunk.num_empty = counts.at(0);
  for (size_t i = 1; i < counts.size(); ++i)
    chunk.special_names[TakeValues<std::string>(rest)] = counts[i];
  return chunk;
}

}  // namespace

PrepareJournal::PrepareJournal(const fs::path& out, const std::string& identity)
    : path_(JournalOf(out)), fd_(OpenFile(path_, O_RDWR | O_CREAT | O_CLOEXEC, ExitCode::kData)) {
  const bool used = ::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  HL_CHECK_AS(ExitCode::kUsage, !used, path_.string(),
              " is used by another prepare that is running. Wait for it, or use another --out.");
  const std::optional<std::string> kept = ReadRecord();
  if (!kept) {
    HL_CHECK_AS(ExitCode::kUsage, RecordOf(identity).starts_with(ReadFile(path_, ExitCode::kData)),
                path_.string(), " is not a journal of prepare. Move it, or use another --out.");
    HL_CHECK_AS(ExitCode::kData, ::ftruncate(fd_.get(), 0) == 0, "cannot write ", path_.string(),
                ": ", internal::ErrnoText(errno));
    WriteRecord(identity);
    return;
  }
  HL_CHECK_AS(ExitCode::kUsage, *kept == identity, path_.string(),
              " was written by a prepare with other options, another tokenizer or other input "
              "files. Use the options and files of that run, or remove the journal.");
  ReadAhead();
}

void PrepareJournal::Remove(const fs::path& out) {
  std::error_code ignored;
  fs::remove(JournalOf(out), ignored);
}

std::optional<std::string> PrepareJournal::ReadRecord() {
  RecordHead head;
  const auto read = [&](void* to, uint64_t bytes, uint64_t offset) {
    for (uint64_t done = 0; done < bytes;) {
      const ssize_t got = ::pread(fd_.get(), static_cast<char*>(to) + done, bytes - done,
                                  static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      done += static_cast<uint64_t>(got);
    }
    return true;
  };
  const off_t size = ::lseek(fd_.get(), 0, SEEK_END);
  if (!read(&head, sizeof head, at_)) return std::nullopt;
  // A damaged size must not allocate more than the file has.
  if (head.bytes > static_cast<uint64_t>(size) - at_ - sizeof head) return std::nullopt;
  std::string payload(head.bytes, '\0');
  if (!read(payload.data(), head.bytes, at_ + sizeof head)) return std::nullopt;
  if (HashBytes(payload) != head.hash) return std::nullopt;
  at_ += sizeof head + head.bytes;
  return payload;
}

// Reads the next record. An incomplete record, which was being written when the run ended, is cut
// off.
void PrepareJournal::ReadAhead() {
  next_ = ReadRecord();
  if (next_) return;
  HL_CHECK_AS(ExitCode::kData, ::ftruncate(fd_.get(), static_cast<off_t>(at_)) == 0,
              "cannot write ", path_.string(), ": ", internal::ErrnoText(errno));
}

void PrepareJournal::WriteRecord(const std::string& payload) {
  const std::string bytes = RecordOf(payload);
  ::lseek(fd_.get(), static_cast<off_t>(at_), SEEK_SET);
  WriteAll(fd_.get(), bytes.data(), bytes.size(), path_, ExitCode::kData);
  at_ += bytes.size();
}

EncodedChunk PrepareJournal::Next() {
  HL_CHECK(next_.has_value(), path_.string(), " has no further chunk");
  EncodedChunk chunk = FromPayload(*next_);
  ReadAhead();
  return chunk;
}

void PrepareJournal::Append(const EncodedChunk& chunk) {
  HL_CHECK(!next_, path_.string(), " has chunks that were not taken");
  WriteRecord(ToPayload(chunk));
}

}  // namespace halflife::data
