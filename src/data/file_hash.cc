#include "data/file_hash.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

#include "core/error.h"

namespace halflife::data {
namespace {

// Hashes bytes [at, end) of the file, or up to its end. Returns the position at which it stopped.
uint64_t Update(int fd, const std::filesystem::path& path, uint64_t at, uint64_t end,
                StreamHash& hash) {
  std::vector<char> buffer(1 << 20);
  while (at < end) {
    const size_t want = std::min<uint64_t>(buffer.size(), end - at);
    const ssize_t got = ::pread(fd, buffer.data(), want, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    HL_CHECK_AS(ExitCode::kData, got >= 0, "cannot read ", path.string(), ": ",
                internal::ErrnoText(errno));
    if (got == 0) break;
    hash.Update(buffer.data(), static_cast<size_t>(got));
    at += static_cast<uint64_t>(got);
  }
  return at;
}

}  // namespace

FileHashes HashFile(int fd, const std::filesystem::path& path, uint64_t header_bytes) {
  StreamHash hash;
  const uint64_t at = Update(fd, path, 0, header_bytes, hash);
  const Hash128 header = hash.Digest();
  Update(fd, path, at, UINT64_MAX, hash);
  return {header, hash.Digest()};
}

Hash128 HashFilePrefix(int fd, const std::filesystem::path& path, uint64_t bytes) {
  StreamHash hash;
  Update(fd, path, 0, bytes, hash);
  return hash.Digest();
}

}  // namespace halflife::data
