#include "data/prepare/shard_writer.h"

#include <fcntl.h>
#include <hdf5.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "core/concat.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/files.h"
#include "data/hdf5_handles.h"
#include "data/shard_layout.h"
#include "data/shard_reader.h"
#include "data/utf8.h"

namespace halflife::data {

void SourceList::Begin(std::string_view name) {
  sources_.push_back({.name = ReplaceInvalidUtf8(name)});
}

void SourceList::Count(int64_t num_tokens, int64_t num_documents) {
  if (sources_.empty()) return;
  sources_.back().num_tokens += num_tokens;
  sources_.back().num_documents += num_documents;
}

std::vector<Source> SourceList::Take() {
  constexpr size_t kMaxSources = 100;
  std::vector<Source> sources = std::exchange(sources_, {});
  std::erase_if(sources, [](const Source& source) { return source.num_tokens == 0; });
  if (sources.size() < 2 || sources.size() > kMaxSources) return {};
  std::map<std::string, int> count;
  for (Source& source : sources)
    if (const int number = ++count[source.name]; number > 1)
      source.name = Concat(source.name, " (", number, ")");
  return sources;
}

namespace {

namespace fs = std::filesystem;

// A growing, chunked HDF5 dataset with fletcher32 checksums, written in whole blocks.
class BlockColumn {
 public:
  BlockColumn(int64_t file, const char* name, int64_t type, int64_t block, int64_t capacity)
      : type_(type), block_(block) {
    const auto describe = [&] { return Concat("cannot create the HDF5 dataset ", name); };
    const hsize_t empty = 0, chunk = static_cast<hsize_t>(block);
    // With a fixed maximum, HDF5 indexes the blocks by one array of known size (see HeaderRoom).
    const hsize_t most = static_cast<hsize_t>(std::max(capacity, block));
    const Hdf5Handle space = CheckHdf5(H5Screate_simple(1, &empty, &most), &H5Sclose, describe);
    const Hdf5Handle create = CheckHdf5(H5Pcreate(H5P_DATASET_CREATE), &H5Pclose, describe);
    CheckHdf5(H5Pset_chunk(create.get(), 1, &chunk), describe);
    CheckHdf5(H5Pset_fletcher32(create.get()), describe);
    // Equal text gives equal bytes.
    CheckHdf5(H5Pset_obj_track_times(create.get(), false), describe);
    const Hdf5Handle access = CheckHdf5(H5Pcreate(H5P_DATASET_ACCESS), &H5Pclose, describe);
    CheckHdf5(H5Pset_chunk_cache(access.get(), 0, 0, 0), describe);  // blocks are written directly
    dataset_ = CheckHdf5(
        H5Dcreate2(file, name, type, space.get(), H5P_DEFAULT, create.get(), access.get()),
        &H5Dclose, describe);
  }

  template <typename Describe>
  void Write(const void* data, int64_t count, const Describe& describe) {
    const hsize_t start = static_cast<hsize_t>(size_), length = static_cast<hsize_t>(count);
    const hsize_t end = start + length;
    CheckHdf5(H5Dset_extent(dataset_.get(), &end), describe);
    const Hdf5Handle space = CheckHdf5(H5Dget_space(dataset_.get()), &H5Sclose, describe);
    CheckHdf5(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, nullptr, &length, nullptr),
              describe);
    const Hdf5Handle memory = CheckHdf5(H5Screate_simple(1, &length, nullptr), &H5Sclose, describe);
    CheckHdf5(H5Dwrite(dataset_.get(), type_, memory.get(), space.get(), H5P_DEFAULT, data),
              describe);
    size_ += count;
  }

  // Sets the offsets of the blocks in the file. Returns their total size on disk.
  uint64_t Locate(std::vector<BlockRecord>& blocks) const {
    uint64_t total = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const hsize_t first = static_cast<hsize_t>(static_cast<int64_t>(i) * block_);
      unsigned filter_mask = 0;
      haddr_t address = 0;
      hsize_t bytes = 0;
      CheckHdf5(H5Dget_chunk_info_by_coord(dataset_.get(), &first, &filter_mask, &address, &bytes),
                [&] { return Concat("cannot query the block at ", first); });
      blocks[i].offset = address;
      total += bytes;
    }
    return total;
  }

  bool CloseNow() { return dataset_.CloseNow(); }

 private:
  Hdf5Handle dataset_;
  int64_t type_;
  int64_t block_;
  int64_t size_ = 0;
};

// Returns the number of bytes to reserve at the beginning of the file for HDF5's own structures: 24
// bytes of index per block and a few KiB for everything else. With this reservation, everything
// except the blocks is in one contiguous range, which the manifest hashes.
uint64_t HeaderRoom(int64_t capacity, bool labels) {
  const int64_t token_blocks = NumBlocks(capacity, kBlockTokens) + 1;
  const int64_t blocks = (labels ? 2 : 1) * token_blocks + NumBlocks(capacity, kBlockStarts) + 1;
  return 8192 + 24 * static_cast<uint64_t>(blocks);
}

Hdf5Handle CreateFile(const fs::path& path, uint64_t header_room) {
  const auto describe = [&] { return Concat("cannot create ", path.string()); };
  const Hdf5Handle access = CheckHdf5(H5Pcreate(H5P_FILE_ACCESS), &H5Pclose, describe);
  CheckHdf5(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110), describe);
  // Many network file systems have no locks.
  CheckHdf5(H5Pset_file_locking(access.get(), false, true), describe);
  CheckHdf5(H5Pset_meta_block_size(access.get(), header_room), describe);
  CheckHdf5(H5Pset_small_data_block_size(access.get(), 0), describe);
  const Hdf5Handle create = CheckHdf5(H5Pcreate(H5P_FILE_CREATE), &H5Pclose, describe);
  CheckHdf5(H5Pset_obj_track_times(create.get(), false), describe);
  return CheckHdf5(H5Fcreate(path.c_str(), H5F_ACC_EXCL, create.get(), access.get()), &H5Fclose,
                   describe);
}

}  // namespace

// A shard that is being written.
class ShardWriter::File {
 public:
  File(const fs::path& path, int token_bytes, int64_t capacity, bool labels)
      : path_(path), token_bytes_(token_bytes), capacity_(capacity) {
    const Hdf5Lock lock;
    file_ = CreateFile(path, HeaderRoom(capacity, labels));
    const int64_t type = token_bytes == 2 ? H5T_STD_U16LE : H5T_STD_U32LE;
    tokens_ = std::make_unique<BlockColumn>(file_.get(), kTokensName, type, kBlockTokens, capacity);
    if (labels) {
      labels_ = std::make_unique<BlockColumn>(file_.get(), kLabelsName, H5T_STD_I32LE, kBlockTokens,
                                              capacity);
    }
    starts_ = std::make_unique<BlockColumn>(file_.get(), kStartsName, H5T_STD_I64LE, kBlockStarts,
                                            capacity);
    token_block_.reserve(static_cast<size_t>(kBlockTokens * token_bytes));
  }

  int64_t room() const { return capacity_ - record_.num_tokens; }

  void AddStart() {
    start_block_.push_back(record_.num_tokens);
    ++record_.num_documents;
    if (static_cast<int64_t>(start_block_.size()) == kBlockStarts) FlushStarts();
  }

  void AddTokens(std::span<const int32_t> ids) {
    for (const int32_t id : ids) {
      for (int byte = 0; byte < token_bytes_; ++byte) {
        token_block_.push_back(static_cast<uint8_t>(static_cast<uint32_t>(id) >> 8 * byte));
      }
      ++record_.num_tokens;
      if (static_cast<int64_t>(token_block_.size()) == kBlockTokens * token_bytes_) FlushTokens();
    }
  }

  // Adds labels in any portions. In total there must be as many as tokens.
  void AddLabels(std::span<const int32_t> labels) {
    for (const int32_t label : labels) {
      label_block_.push_back(label);
      if (static_cast<int64_t>(label_block_.size()) == kBlockTokens) FlushLabels();
    }
  }

  ShardRecord Close() {
    if (!token_block_.empty()) FlushTokens();
    if (!label_block_.empty()) FlushLabels();
    if (!start_block_.empty()) FlushStarts();
    CloseHdf5();
    HashAndSync();
    WriteIndex();
    return std::move(record_);
  }

 private:
  void FlushTokens() {
    HL_FAULT_POINT("data.shard.write", ExitCode::kData);
    index_.tokens.push_back({.hash = HashBytes(token_block_.data(), token_block_.size())});
    const Hdf5Lock lock;
    tokens_->Write(token_block_.data(), static_cast<int64_t>(token_block_.size()) / token_bytes_,
                   [&] { return Concat("cannot write tokens to ", path_.string()); });
    token_block_.clear();
  }

  void FlushLabels() {
    index_.labels.push_back({.hash = HashBytes(label_block_.data(), 4 * label_block_.size())});
    const Hdf5Lock lock;
    labels_->Write(label_block_.data(), static_cast<int64_t>(label_block_.size()),
                   [&] { return Concat("cannot write labels to ", path_.string()); });
    label_block_.clear();
  }

  void FlushStarts() {
    index_.starts.push_back({.hash = HashBytes(start_block_.data(), 8 * start_block_.size())});
    index_.first_starts.push_back(start_block_.front());
    const Hdf5Lock lock;
    starts_->Write(start_block_.data(), static_cast<int64_t>(start_block_.size()),
                   [&] { return Concat("cannot write document starts to ", path_.string()); });
    start_block_.clear();
  }

  void CloseHdf5() {
    const Hdf5Lock lock;
    block_bytes_ = tokens_->Locate(index_.tokens) + starts_->Locate(index_.starts);
    if (labels_ != nullptr) block_bytes_ += labels_->Locate(index_.labels);
    index_.header_bytes = UINT64_MAX;
    for (const auto* blocks : {&index_.tokens, &index_.labels, &index_.starts})
      for (const BlockRecord& block : *blocks)
        index_.header_bytes = std::min(index_.header_bytes, block.offset);
    bool closed = tokens_->CloseNow() && starts_->CloseNow();
    if (labels_ != nullptr) closed = labels_->CloseNow() && closed;
    closed = file_.CloseNow() && closed;
    CheckHdf5(closed ? 0 : -1, [&] { return Concat("cannot finish ", path_.string()); });
  }

  // Reads the file back in the same way as later readers do, and makes it durable.
  void HashAndSync() {
    record_.file.name = path_.filename().string();
    record_.file.bytes = fs::file_size(path_);
    HL_CHECK(index_.header_bytes + block_bytes_ == record_.file.bytes, path_.string(), " has ",
             record_.file.bytes, " bytes, of which ", block_bytes_, " in blocks after ",
             index_.header_bytes, ": HDF5 put structures between the blocks");
    const Fd fd = OpenFile(path_, O_RDONLY, ExitCode::kData);
    Fsync(fd.get(), path_, ExitCode::kData);
    const FileHashes hashes = HashFile(fd.get(), path_, index_.header_bytes);
    index_.header_hash = hashes.header;
    record_.file.hash = hashes.whole;
  }

  void WriteIndex() {
    const std::string bytes = EncodeIndex(index_);
    AtomicWriteFile(path_.parent_path() / IndexName(record_.file.name), bytes, ExitCode::kData);
    record_.index_hash = HashBytes(bytes);
  }

  const fs::path path_;
  const int token_bytes_;
  const int64_t capacity_;
  Hdf5Handle file_;  // declared before the columns, which close first
  std::unique_ptr<BlockColumn> tokens_, labels_, starts_;
  std::vector<uint8_t> token_block_;  // little-endian, as on disk
  std::vector<int32_t> label_block_;
  std::vector<int64_t> start_block_;
  uint64_t block_bytes_ = 0;
  ShardRecord record_;
  ShardIndex index_;
};

ShardWriter::ShardWriter(const ShardWriterConfig& config) : config_(config) {
  HL_CHECK(config.token_bytes == 2 || config.token_bytes == 4, "token_bytes ", config.token_bytes);
  HL_CHECK(config.shard_tokens > 0, "shard_tokens ", config.shard_tokens);
}
ShardWriter::~ShardWriter() = default;

void ShardWriter::OpenShardIfNone() {
  if (file_ != nullptr) return;
  file_ =
      std::make_unique<File>(config_.folder / ShardFileName(config_.split, record_.shards.size()),
                             config_.token_bytes, config_.shard_tokens, config_.labels);
}

void ShardWriter::CloseShard() {
  record_.shards.push_back(file_->Close());
  file_.reset();
}

void ShardWriter::BeginDocument() {
  OpenShardIfNone();
  file_->AddStart();
  ++record_.info.num_documents;
  sources_.Count(0, 1);
}

void ShardWriter::Append(std::span<const int32_t> ids) {
  HL_CHECK(!config_.labels, "tokens without their labels");
  AppendPieces(ids, {});
}

void ShardWriter::AppendLabelled(std::span<const int32_t> ids, std::span<const int32_t> labels) {
  HL_CHECK(config_.labels && ids.size() == labels.size(), labels.size(), " labels of ", ids.size(),
           " tokens");
  BeginDocument();
  AppendPieces(ids, labels);
}

void ShardWriter::AppendPieces(std::span<const int32_t> ids, std::span<const int32_t> labels) {
  sources_.Count(std::ssize(ids), 0);
  while (!ids.empty()) {
    OpenShardIfNone();
    const auto count = std::min<size_t>(ids.size(), static_cast<size_t>(file_->room()));
    file_->AddTokens(ids.first(count));
    if (config_.labels) {
      file_->AddLabels(labels.first(count));
      labels = labels.subspan(count);
    }
    record_.info.num_tokens += static_cast<int64_t>(count);
    ids = ids.subspan(count);
    if (file_->room() == 0) CloseShard();
  }
}

SplitRecord ShardWriter::Finish() {
  if (file_ != nullptr) CloseShard();
  record_.info.num_shards = static_cast<int>(record_.shards.size());
  record_.info.sources = sources_.Take();
  return std::move(record_);
}

}  // namespace halflife::data
