#include "ckpt/step_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ckpt/damage.h"
#include "ckpt/stored_layout.h"

namespace halflife::ckpt {
namespace {

using internal::ErrnoText;

}  // namespace

StepFiles::StepFiles(std::filesystem::path step_dir, const Manifest& manifest)
    : dir_(std::move(step_dir)),
      manifest_(manifest),
      dir_fd_(::open(dir_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
      fds_(manifest.files.size()) {
  HL_CHECK_AS(ExitCode::kCheckpointIo, dir_fd_, "cannot open ", dir_.string(), ": ",
              ErrnoText(errno));
}

std::shared_ptr<const Fd> StepFiles::Open(int file) const {
  const std::lock_guard lock(mutex_);
  if (fds_[file]) return fds_[file];
  const FileEntry& entry = manifest_.files[file];
  Fd fd(::openat(dir_fd_.get(), entry.name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd && errno == ENOENT) {
    std::error_code ignored;
    HL_CHECK_AS(ExitCode::kCheckpointIo, std::filesystem::exists(dir_, ignored), dir_.string(),
                ": the step was deleted while reading");
    throw DamageError(Concat(entry.name, ": missing"));
  }
  HL_CHECK_AS(ExitCode::kCheckpointIo, fd, "cannot open ", (dir_ / entry.name).string(), ": ",
              ErrnoText(errno));
  struct stat info {};
  HL_CHECK_AS(ExitCode::kCheckpointIo, ::fstat(fd.get(), &info) == 0, "cannot stat ",
              (dir_ / entry.name).string(), ": ", ErrnoText(errno));
  CheckDamage(S_ISREG(info.st_mode) && static_cast<uint64_t>(info.st_size) == entry.bytes,
              entry.name, ": ", info.st_size, " bytes, the manifest says ", entry.bytes);
  if (open_.size() == kMaxOpenFiles) {  // a reader keeps its own file open
    fds_[open_.front()].reset();
    open_.pop_front();
  }
  open_.push_back(file);
  return fds_[file] = std::make_shared<const Fd>(std::move(fd));
}

void StepFiles::CheckSizes() const {
  for (size_t i = 0; i < manifest_.files.size(); ++i) {
    struct stat info {};
    const FileEntry& file = manifest_.files[i];
    const int result = ::fstatat(dir_fd_.get(), file.name.c_str(), &info, 0);
    CheckDamage(result == 0 || errno != ENOENT, file.name, ": missing");
    HL_CHECK_AS(ExitCode::kCheckpointIo, result == 0, "cannot stat ", (dir_ / file.name).string(),
                ": ", ErrnoText(errno));
    CheckDamage(S_ISREG(info.st_mode) && static_cast<uint64_t>(info.st_size) == file.bytes,
                file.name, ": ", info.st_size, " bytes, the manifest says ", file.bytes);
  }
}

void StepFiles::ReadAt(int file, uint64_t offset, char* out, uint64_t bytes) const {
  const std::shared_ptr<const Fd> fd = Open(file);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd->get(), out, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    const FileEntry& entry = manifest_.files[file];
    HL_CHECK_AS(ExitCode::kCheckpointIo, n >= 0, "cannot read ", (dir_ / entry.name).string(),
                " at byte ", offset, ": ", ErrnoText(errno));
    CheckDamage(n > 0, entry.name, ": ends at byte ", offset, ", the manifest says ", entry.bytes);
    out += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
    bytes_read_ += static_cast<uint64_t>(n);
  }
}

std::string StepFiles::ReadHeader(int file) const {
  const FileEntry& entry = manifest_.files[file];
  CheckDamage(entry.data_offset <= safetensors::kMaxHeaderBytes + kMaxBlockBytes, entry.name,
              ": header of ", entry.data_offset, " bytes");
  std::string head(entry.data_offset, '\0');
  ReadAt(file, 0, head.data(), head.size());
  CheckDamage(HashBytes(head) == entry.header_hash, entry.name, " header: hash mismatch");
  return head;
}

void StepFiles::CheckHeader(int file) const { ReadHeader(file); }

// Reads the table of block hashes at the end of a file. A file whose hashes the manifest lists has
// none.
std::string StepFiles::ReadTable(int file) const {
  const FileEntry& entry = manifest_.files[file];
  if (manifest_.num_slices == 0) return "";
  std::string table(kHashBytes * entry.num_blocks, '\0');
  ReadAt(file, entry.bytes - table.size(), table.data(), table.size());
  CheckDamage(HashBytes(table) == entry.table_hash, entry.name,
              " table of block hashes: hash mismatch");
  return table;
}

Hash128 StepFiles::BlockHash(const StoredFragment& fragment, uint64_t block) const {
  if (manifest_.num_slices == 0) return fragment.block_hashes[block];
  std::shared_ptr<const std::string> table;
  {
    const std::lock_guard lock(mutex_);
    table = tables_[fragment.file];
  }
  if (!table) {
    table = std::make_shared<const std::string>(ReadTable(fragment.file));
    const std::lock_guard lock(mutex_);
    tables_[fragment.file] = table;
  }
  uint64_t words[2];
  std::memcpy(words, table->data() + kHashBytes * (fragment.first_block + block), sizeof words);
  return {words[0], words[1]};
}

uint64_t StepFiles::ReadBlock(const TensorEntry& tensor, const StoredFragment& fragment,
                              uint64_t block, char* out) const {
  const FileEntry& entry = manifest_.files[fragment.file];
  const uint64_t begin = block * manifest_.block_bytes;
  const uint64_t bytes = std::min(manifest_.block_bytes, FragmentBytes(fragment) - begin);
  const uint64_t offset = entry.data_offset + fragment.offset + begin;
  ReadAt(fragment.file, offset, out, bytes);
  if (HashBytes(out, bytes) != BlockHash(fragment, block)) {
    const auto size = static_cast<int64_t>(SizeOf(fragment.dtype));
    const int64_t first = fragment.begin + static_cast<int64_t>(begin) / size;
    const int64_t last = first + static_cast<int64_t>(bytes) / size;
    throw DamageError(Concat(entry.name, " block ", block, " of ", fragment.array, "/", tensor.name,
                             ": hash mismatch (elements [", first, ", ", last, "))"),
                      tensor.name, offset);
  }
  return bytes;
}

void StepFiles::CheckWholeFile(int file) const {
  const FileEntry& entry = manifest_.files[file];
  const std::string head = ReadHeader(file);
  const auto buffer = std::make_unique_for_overwrite<char[]>(manifest_.block_bytes);
  StreamHash whole;
  whole.Update(head.data(), head.size());
  for (const auto& [tensor, fragment] : FragmentsOfFile(manifest_, file)) {
    const uint64_t count = NumBlocks(FragmentBytes(*fragment), manifest_.block_bytes);
    for (uint64_t block = 0; block < count; ++block) {
      whole.Update(buffer.get(), ReadBlock(*tensor, *fragment, block, buffer.get()));
    }
  }
  const std::string table = ReadTable(file);
  whole.Update(table.data(), table.size());
  CheckDamage(whole.Digest() == entry.hash, entry.name, ": hash of the whole file mismatches");
}

void StepFiles::ForgetCached(int file) const {
  // Only advice: if the file system ignores it, the data comes from memory and the hashes are still
  // checked.
  static_cast<void>(::posix_fadvise(Open(file)->get(), 0, 0, POSIX_FADV_DONTNEED));
}

BlockCursor::BlockCursor(const StepFiles& files)
    : files_(files),
      block_bytes_(files.manifest().block_bytes),
      buffer_(std::make_unique_for_overwrite<char[]>(block_bytes_)) {}

void BlockCursor::Copy(const TensorEntry& tensor, const StoredFragment& fragment, int64_t begin,
                       int64_t end, void* out) {
  const uint64_t size = SizeOf(fragment.dtype);
  uint64_t at = static_cast<uint64_t>(begin - fragment.begin) * size;  // bytes in the fragment
  const uint64_t stop = static_cast<uint64_t>(end - fragment.begin) * size;
  char* to = static_cast<char*>(out);
  while (at < stop) {
    const uint64_t block = at / block_bytes_;
    if (fragment_ != &fragment || block_ != block) {
      fragment_ = nullptr;  // the buffer is invalid while it is being refilled
      files_.ReadBlock(tensor, fragment, block, buffer_.get());
      fragment_ = &fragment;
      block_ = block;
    }
    const uint64_t bytes = std::min(stop, (block + 1) * block_bytes_) - at;
    std::memcpy(to, buffer_.get() + at % block_bytes_, bytes);
    to += bytes;
    at += bytes;
  }
}

std::vector<FileFragment> FragmentsOfFile(const Manifest& manifest, int file) {
  std::vector<FileFragment> fragments;
  for (const TensorEntry& tensor : manifest.tensors) {
    for (const StoredFragment& fragment : tensor.fragments) {
      if (fragment.file == file) fragments.push_back({&tensor, &fragment});
    }
  }
  std::stable_sort(fragments.begin(), fragments.end(),
                   [](const FileFragment& a, const FileFragment& b) {
                     return a.fragment->offset < b.fragment->offset;
                   });
  return fragments;
}

}  // namespace halflife::ckpt
