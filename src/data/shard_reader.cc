#include "data/shard_reader.h"

#include <fcntl.h>
#include <hdf5.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "data/batch.h"
#include "data/hdf5_handles.h"
#include "data/manifest.h"
#include "data/shard_layout.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

Fd OpenShard(const fs::path& path, uint64_t expected) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  HL_CHECK_AS(ExitCode::kData, fd && ::fstat(fd.get(), &info) == 0, "the token shard ",
              path.string(), " is missing or cannot be reached (", internal::ErrnoText(errno),
              "); ", kDamageRemedy);
  const auto size = static_cast<uint64_t>(info.st_size);
  HL_CHECK_AS(ExitCode::kData, S_ISREG(info.st_mode) && size == expected, "the token shard ",
              path.string(), " has ", size, " bytes, but the manifest says ", expected, ": it was ",
              size < expected ? "truncated" : "overwritten", "; ", kDamageRemedy);
  return fd;
}

// Decodes unsigned little-endian integers of kBytes bytes.
template <int kBytes>
void Decode(const uint8_t* raw, std::span<uint32_t> ids) {
  for (uint32_t& id : ids) {
    id = 0;
    for (int byte = kBytes - 1; byte >= 0; --byte) id = id << 8 | raw[byte];
    raw += kBytes;
  }
}

int64_t BlockLength(int64_t total, int64_t block_size, int64_t block) {
  return std::min(block_size, total - block * block_size);
}

}  // namespace

ShardReader::ShardReader(const fs::path& folder, const ShardRecord& record, int vocab_size,
                         int num_labels)
    : path_(folder / record.file.name),
      num_tokens_(record.num_tokens),
      num_documents_(record.num_documents),
      file_(record.file),
      token_bytes_(TokenBytes(vocab_size)),
      vocab_size_(vocab_size),
      num_labels_(num_labels),
      fd_(OpenShard(path_, record.file.bytes)),
      index_(ReadIndex(folder, record, num_labels > 0)) {
  if (record.index == nullptr) return;
  CheckHeader();
  FindOffsets();
}

// Sets the offsets of an index that has none.
void ShardReader::FindOffsets() {
  auto index = std::make_shared<ShardIndex>(*index_);
  const Hdf5Lock lock;
  const auto describe = [&] { return Concat("cannot open the token shard ", path_.string()); };
  const Hdf5Handle access = CheckHdf5(H5Pcreate(H5P_FILE_ACCESS), &H5Pclose, describe);
  CheckHdf5(H5Pset_file_locking(access.get(), false, true), describe);
  const Hdf5Handle file =
      CheckHdf5(H5Fopen(path_.c_str(), H5F_ACC_RDONLY, access.get()), &H5Fclose, describe);
  const auto find = [&](const char* name, int64_t elements, int64_t element_bytes,
                        std::vector<BlockRecord>& blocks) {
    if (blocks.empty()) return;
    const Hdf5Handle column =
        CheckHdf5(H5Dopen2(file.get(), name, H5P_DEFAULT), &H5Dclose, describe);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const auto first = static_cast<hsize_t>(static_cast<int64_t>(i) * elements);
      unsigned filter_mask = 0;
      haddr_t address = 0;
      hsize_t bytes = 0;
      CheckHdf5(H5Dget_chunk_info_by_coord(column.get(), &first, &filter_mask, &address, &bytes),
                describe);
      HL_CHECK_AS(
          ExitCode::kData,
          bytes >= static_cast<hsize_t>(elements * element_bytes) && address + bytes <= file_.bytes,
          "block ", i, " of '", name, "' of the token shard ", path_.string(), " has ", bytes,
          " bytes at ", address, "; ", kDamageRemedy);
      blocks[i].offset = address;
    }
  };
  find(kTokensName, kBlockTokens, token_bytes_, index->tokens);
  find(kLabelsName, kBlockTokens, sizeof(int32_t), index->labels);
  find(kStartsName, kBlockStarts, sizeof(int64_t), index->starts);
  index_ = std::move(index);
}

void ShardReader::CheckHeader() const {
  HL_CHECK_AS(ExitCode::kData,
              HashFilePrefix(fd_.get(), path_, index_->header_bytes) == index_->header_hash,
              "the header of the token shard ", path_.string(), " (bytes 0 to ",
              index_->header_bytes, ") does not have the hash of the manifest: it is damaged; ",
              kDamageRemedy);
}

void ShardReader::CheckWhole() const {
  CheckHeader();
  const Hash128 hash = HashFile(fd_.get(), path_, 0).whole;
  HL_CHECK_AS(ExitCode::kData, hash == file_.hash, "the token shard ", path_.string(),
              " has xxh3-128 ", ToHex(hash), ", but the manifest says ", ToHex(file_.hash),
              ": it is damaged; ", kDamageRemedy);
}

void ShardReader::ReadBlock(const BlockRecord& block, const char* what, int64_t begin,
                            int64_t count, size_t bytes, void* out) const {
  for (size_t at = 0; at < bytes;) {
    const ssize_t got = ::pread(fd_.get(), static_cast<char*>(out) + at, bytes - at,
                                static_cast<off_t>(block.offset + at));
    if (got < 0 && errno == EINTR) continue;
    HL_CHECK_AS(ExitCode::kData, got > 0, "cannot read ", what, " ", begin, " to ", begin + count,
                " of the token shard ", path_.string(), ": ",
                got < 0 ? internal::ErrnoText(errno) : "it was truncated", "; ", kDamageRemedy);
    at += static_cast<size_t>(got);
  }
  HL_CHECK_AS(ExitCode::kData, HashBytes(out, bytes) == block.hash, what, " ", begin, " to ",
              begin + count, " of the token shard ", path_.string(),
              " do not have the hash of the manifest: they are damaged; ", kDamageRemedy);
}

std::vector<int32_t> ShardReader::ReadTokens(int64_t block) const {
  const int64_t begin = block * kBlockTokens;
  const int64_t count = BlockLength(num_tokens_, kBlockTokens, block);
  std::vector<uint8_t> raw(static_cast<size_t>(count * token_bytes_));
  ReadBlock(index_->tokens[static_cast<size_t>(block)], "tokens", begin, count, raw.size(),
            raw.data());
  std::vector<uint32_t> ids(static_cast<size_t>(count));
  token_bytes_ == 2 ? Decode<2>(raw.data(), ids) : Decode<4>(raw.data(), ids);
  const auto wrong = std::ranges::find_if(
      ids, [vocab = static_cast<uint32_t>(vocab_size_)](uint32_t id) { return id >= vocab; });
  HL_CHECK_AS(ExitCode::kData, wrong == ids.end(), "token ", begin + (wrong - ids.begin()),
              " of the token shard ", path_.string(), " is ", *wrong, ", but the vocabulary has ",
              vocab_size_, " ids; run `halflife prepare` again");
  return {ids.begin(), ids.end()};
}

std::vector<int32_t> ShardReader::ReadLabels(int64_t block) const {
  const int64_t begin = block * kBlockTokens;
  const int64_t count = BlockLength(num_tokens_, kBlockTokens, block);
  std::vector<int32_t> labels(static_cast<size_t>(count));
  ReadBlock(index_->labels[static_cast<size_t>(block)], "labels", begin, count,
            sizeof(int32_t) * labels.size(), labels.data());
  const auto wrong = std::ranges::find_if(labels, [this](int32_t label) {
    return label != kNoTarget && (label < 0 || label >= num_labels_);
  });
  HL_CHECK_AS(ExitCode::kData, wrong == labels.end(), "label ", begin + (wrong - labels.begin()),
              " of the token shard ", path_.string(), " is ", *wrong, ", but there are ",
              num_labels_, " labels; run `halflife prepare` again");
  return labels;
}

std::vector<int64_t> ShardReader::ReadStarts(int64_t block) const {
  const int64_t begin = block * kBlockStarts;
  const int64_t count = BlockLength(num_documents_, kBlockStarts, block);
  std::vector<int64_t> starts(static_cast<size_t>(count));
  ReadBlock(index_->starts[static_cast<size_t>(block)], "document starts", begin, count,
            sizeof(int64_t) * starts.size(), starts.data());
  return starts;
}

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

OpenShardLimits RaisedLimits(size_t num_datasets) {
  constexpr rlim_t kMin = 64, kMax = 1 << 20;
  constexpr size_t kIndexBytes = size_t{1} << 30;
  const auto part = [&](rlim_t descriptors) {
    return OpenShardLimits{.max_open = std::max<size_t>(descriptors / num_datasets, 1),
                           .max_index_bytes = kIndexBytes / num_datasets};
  };
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return part(kMin);
  const rlim_t wanted = std::min(limit.rlim_max, kMax);
  if (limit.rlim_cur < wanted) {
    struct rlimit raised = limit;
    raised.rlim_cur = wanted;
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return part(std::clamp(limit.rlim_cur / 4 * 3, kMin, kMax));
}

std::shared_ptr<const ShardReader> OpenShards::Open(const ShardRecord& record) const {
  return std::make_shared<const ShardReader>(folder_, record, vocab_size_, num_labels_);
}

std::shared_ptr<const ShardReader> OpenShards::Get(const ShardRecord& record) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(&record);
    if (found != places_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return found->second->second;
    }
  }
  std::shared_ptr<const ShardReader> shard = Open(record);
  const std::lock_guard lock(mutex_);
  ++num_opened_;
  // Another thread may have opened it meanwhile.
  if (const auto found = places_.find(&record); found != places_.end())
    return found->second->second;
  entries_.emplace_front(&record, shard);
  places_.emplace(&record, entries_.begin());
  index_bytes_ += shard->index().bytes();
  while (entries_.size() > 1 &&
         (entries_.size() > limits_.max_open || index_bytes_ > limits_.max_index_bytes)) {
    index_bytes_ -= entries_.back().second->index().bytes();
    places_.erase(entries_.back().first);
    entries_.pop_back();
  }
  return shard;
}

}  // namespace halflife::data
