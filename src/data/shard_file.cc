#include "data/shard_file.h"

#include <hdf5.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "data/hdf5_handles.h"
#include "data/manifest.h"
#include "data/shard_reader.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

struct Column {
  int64_t length = 0;
  int element_bytes = 0;
};

Column ReadColumn(const Hdf5Handle& file, const char* name, const fs::path& path) {
  const auto describe = [&] {
    return Concat(path.string(), " has no list '", name,
                  "' of whole numbers, so it is not a token shard");
  };
  const Hdf5Handle dataset =
      CheckHdf5(H5Dopen2(file.get(), name, H5P_DEFAULT), &H5Dclose, describe);
  const Hdf5Handle space = CheckHdf5(H5Dget_space(dataset.get()), &H5Sclose, describe);
  const Hdf5Handle type = CheckHdf5(H5Dget_type(dataset.get()), &H5Tclose, describe);
  hsize_t length = 0;
  HL_CHECK_AS(ExitCode::kData,
              H5Sget_simple_extent_ndims(space.get()) == 1 &&
                  H5Sget_simple_extent_dims(space.get(), &length, nullptr) == 1 &&
                  H5Tget_class(type.get()) == H5T_INTEGER,
              describe());
  return {static_cast<int64_t>(length), static_cast<int>(H5Tget_size(type.get()))};
}

// Verifies size and header of the shard against the manifest in the same folder, if there is one.
void CheckAgainstManifest(const fs::path& path, ShardFile* shard) {
  const fs::path folder = path.parent_path();
  std::error_code ignored;
  if (!fs::exists(folder / kManifestName, ignored)) return;
  const Manifest manifest = ReadManifest(folder / kManifestName);
  for (const Split split : kSplits) {
    const SplitRecord& record = manifest.of(split);
    for (const ShardRecord& row : record.shards) {
      if (row.file.name != path.filename()) continue;
      ShardReader(folder, row, manifest.vocab_size, manifest.num_labels()).CheckHeader();
      shard->split = Name(split);
      shard->dataset_hash = ToHex(manifest.hash);
    }
  }
}

}  // namespace

ShardFile ReadShardFile(const fs::path& path) {
  ShardFile shard;
  CheckAgainstManifest(path, &shard);
  std::error_code error;
  shard.bytes = fs::file_size(path, error);
  HL_CHECK_AS(ExitCode::kData, !error, "cannot read ", path.string(), ": ", error.message());
  const Hdf5Lock lock;
  const auto describe = [&] { return Concat("cannot open ", path.string()); };
  const Hdf5Handle access = CheckHdf5(H5Pcreate(H5P_FILE_ACCESS), &H5Pclose, describe);
  CheckHdf5(H5Pset_file_locking(access.get(), false, true), describe);
  const Hdf5Handle file =
      CheckHdf5(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), &H5Fclose, describe);
  const Column tokens = ReadColumn(file, kTokensName, path);
  shard.num_tokens = tokens.length;
  shard.token_bytes = tokens.element_bytes;
  shard.num_documents = ReadColumn(file, kStartsName, path).length;
  shard.has_labels = H5Lexists(file.get(), kLabelsName, H5P_DEFAULT) > 0;
  return shard;
}

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
