#include "data/shard_reader.h"

#include <fcntl.h>
#include <hdf5.h>
#include <sys/stat.h>

#include <algorithm>
#include <span>

#include "core/error.h"
#include "core/files.h"
#include "data/batch.h"
#include "data/shard_file.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

void CheckSize(const fs::path& path, uint64_t expected) {
  struct stat info {};
  HL_CHECK_AS(ExitCode::kData, ::stat(path.c_str(), &info) == 0, "the token shard ", path.string(),
              " is missing or cannot be reached (", internal::ErrnoText(errno), "); ",
              kDamageRemedy);
  const auto size = static_cast<uint64_t>(info.st_size);
  HL_CHECK_AS(ExitCode::kData, size == expected, "the token shard ", path.string(), " has ", size,
              " bytes, but the manifest says ", expected, ": it was ",
              size < expected ? "truncated" : "overwritten", "; ", kDamageRemedy);
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
      record_(record),
      token_bytes_(TokenBytes(vocab_size)),
      vocab_size_(vocab_size),
      num_labels_(num_labels) {}

void ShardReader::CheckHeader() const {
  CheckSize(path_, record_.file.bytes);
  const Fd fd = OpenFile(path_, O_RDONLY, ExitCode::kData);
  HL_CHECK_AS(
      ExitCode::kData, HashFilePrefix(fd.get(), path_, record_.header_bytes) == record_.header_hash,
      "the header of the token shard ", path_.string(), " (bytes 0 to ", record_.header_bytes,
      ") does not have the hash of the manifest: it is damaged; ", kDamageRemedy);
}

void ShardReader::CheckWhole() const {
  CheckHeader();
  const Fd fd = OpenFile(path_, O_RDONLY, ExitCode::kData);
  const Hash128 hash = HashFile(fd.get(), path_, 0).whole;
  HL_CHECK_AS(ExitCode::kData, hash == record_.file.hash, "the token shard ", path_.string(),
              " has xxh3-128 ", ToHex(hash), ", but the manifest says ", ToHex(record_.file.hash),
              ": it is damaged; ", kDamageRemedy);
}

void ShardReader::Open() {
  if (file_) return;
  const auto describe = [&] { return Concat("cannot open the token shard ", path_.string()); };
  const Hdf5Handle access = CheckHdf5(H5Pcreate(H5P_FILE_ACCESS), &H5Pclose, describe);
  CheckHdf5(H5Pset_file_locking(access.get(), false, true), describe);
  Hdf5Handle file =
      CheckHdf5(H5Fopen(path_.c_str(), H5F_ACC_RDONLY, access.get()), &H5Fclose, describe);
  // The caller reads whole blocks and caches them itself, so HDF5's own cache would only cost
  // memory.
  const Hdf5Handle uncached = CheckHdf5(H5Pcreate(H5P_DATASET_ACCESS), &H5Pclose, describe);
  CheckHdf5(H5Pset_chunk_cache(uncached.get(), 0, 0, 0), describe);
  tokens_ = CheckHdf5(H5Dopen2(file.get(), kTokensName, uncached.get()), &H5Dclose, describe);
  if (!record_.label_hashes.empty())
    labels_ = CheckHdf5(H5Dopen2(file.get(), kLabelsName, uncached.get()), &H5Dclose, describe);
  starts_ = CheckHdf5(H5Dopen2(file.get(), kStartsName, uncached.get()), &H5Dclose, describe);
  unchecked_ = CheckHdf5(H5Pcreate(H5P_DATASET_XFER), &H5Pclose, describe);
  CheckHdf5(H5Pset_edc_check(unchecked_.get(), H5Z_DISABLE_EDC), describe);
  file_ = std::move(file);
}

void ShardReader::Close() {
  unchecked_ = {};
  starts_ = {};
  labels_ = {};
  tokens_ = {};
  file_ = {};
}

void ShardReader::ReadRaw(const Hdf5Handle& dataset, int64_t type, int64_t begin, int64_t count,
                          void* out) {
  const auto describe = [&] {
    return Concat("cannot read entries ", begin, " to ", begin + count, " of the token shard ",
                  path_.string(), "; ", kDamageRemedy);
  };
  const hsize_t start = static_cast<hsize_t>(begin), length = static_cast<hsize_t>(count);
  const Hdf5Handle space = CheckHdf5(H5Dget_space(dataset.get()), &H5Sclose, describe);
  CheckHdf5(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, nullptr, &length, nullptr),
            describe);
  const Hdf5Handle memory = CheckHdf5(H5Screate_simple(1, &length, nullptr), &H5Sclose, describe);
  CheckHdf5(H5Dread(dataset.get(), type, memory.get(), space.get(), unchecked_.get(), out),
            describe);
}

std::vector<int32_t> ShardReader::ReadTokens(int64_t block) {
  const int64_t begin = block * kBlockTokens;
  const int64_t count = BlockLength(record_.num_tokens, kBlockTokens, block);
  std::vector<uint8_t> raw(static_cast<size_t>(count * token_bytes_));
  {
    const Hdf5Lock lock;
    Open();
    ReadRaw(tokens_, token_bytes_ == 2 ? H5T_STD_U16LE : H5T_STD_U32LE, begin, count, raw.data());
  }
  HL_CHECK_AS(ExitCode::kData,
              HashBytes(raw.data(), raw.size()) == record_.token_hashes[static_cast<size_t>(block)],
              "tokens ", begin, " to ", begin + count, " of the token shard ", path_.string(),
              " do not have the hash of the manifest: they are damaged; ", kDamageRemedy);
  std::vector<uint32_t> ids(static_cast<size_t>(count));
  token_bytes_ == 2 ? Decode<2>(raw.data(), ids) : Decode<4>(raw.data(), ids);
  const auto wrong = std::ranges::find_if(
      ids, [vocab = static_cast<uint32_t>(vocab_size_)](uint32_t id) { return id >= vocab; });
  HL_CHECK_AS(ExitCode::kData, wrong == ids.end(), "token ", begin + (wrong - ids.begin()),
              " of the token shard ", path_.string(), " is ", *wrong, ", but the vocabulary has ",
              vocab_size_, " ids; run `halflife prepare` again");
  return {ids.begin(), ids.end()};
}

std::vector<int32_t> ShardReader::ReadLabels(int64_t block) {
  const int64_t begin = block * kBlockTokens;
  std::vector<int32_t> labels(
      static_cast<size_t>(BlockLength(record_.num_tokens, kBlockTokens, block)));
  {
    const Hdf5Lock lock;
    Open();
    ReadRaw(labels_, H5T_STD_I32LE, begin, static_cast<int64_t>(labels.size()), labels.data());
  }
  HL_CHECK_AS(ExitCode::kData,
              HashBytes(labels.data(), 4 * labels.size()) ==
                  record_.label_hashes[static_cast<size_t>(block)],
              "labels ", begin, " to ", begin + static_cast<int64_t>(labels.size()),
              " of the token shard ", path_.string(),
              " do not have the hash of the manifest: they are damaged; ", kDamageRemedy);
  const auto wrong = std::ranges::find_if(labels, [this](int32_t label) {
    return label != kNoTarget && (label < 0 || label >= num_labels_);
  });
  HL_CHECK_AS(ExitCode::kData, wrong == labels.end(), "label ", begin + (wrong - labels.begin()),
              " of the token shard ", path_.string(), " is ", *wrong, ", but there are ",
              num_labels_, " labels; run `halflife prepare` again");
  return labels;
}

std::vector<int64_t> ShardReader::ReadStarts(int64_t block) {
  const int64_t begin = block * kBlockStarts;
  const int64_t count = BlockLength(record_.num_documents, kBlockStarts, block);
  std::vector<int64_t> starts(static_cast<size_t>(count));
  {
    const Hdf5Lock lock;
    Open();
    ReadRaw(starts_, H5T_STD_I64LE, begin, count, starts.data());
  }
  HL_CHECK_AS(ExitCode::kData,
              HashBytes(starts.data(), 8 * starts.size()) ==
                  record_.start_hashes[static_cast<size_t>(block)],
              "document starts ", begin, " to ", begin + count, " of the token shard ",
              path_.string(), " do not have the hash of the manifest: they are damaged; ",
              kDamageRemedy);
  return starts;
}

}  // namespace halflife::data
