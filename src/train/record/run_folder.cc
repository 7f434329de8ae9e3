#include "train/record/run_folder.h"

#include <fcntl.h>
#include <torch/version.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>

#include "ckpt/collective.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/versions.h"
#include "data/dataset.h"
#include "data/library_versions.h"
#include "data/shard_layout.h"
#include "dist/rank_context.h"

namespace halflife::train {

namespace fs = std::filesystem;

void RunFolder::Create() {
  std::error_code error;
  HL_CHECK_AS(ExitCode::kUsage, !fs::exists(path_ / data::kManifestName, error), "--run ",
              path_.string(), " holds a dataset or a checkpoint step (it has a ",
              data::kManifestName, "), not a run. Choose another folder with --run.");
  for (fs::path folder = fs::absolute(path_).lexically_normal();
       !fs::exists(fs::symlink_status(folder, error)) && folder.has_relative_path();
       folder = folder.parent_path()) {
    if (folder.has_filename()) created_.insert(created_.begin(), folder);
  }
  is_new_ = !created_.empty();
  fs::create_directories(path_ / "ckpt", error);
  HL_CHECK_AS(ExitCode::kEnvironment, !error, "cannot create ", (path_ / "ckpt").string(), ": ",
              error.message(), ". Choose another run folder with --run.");
}

RunFolder RunFolder::Open(const fs::path& path, dist::RankContext& context,
                          const Options& options) {
  RunFolder folder;
  folder.path_ = path;
  const std::string opened = ckpt::OnRankZero(context.control(), {"run_folder", 0}, [&] {
    folder.Create();
    folder.lock_.emplace(ckpt::RunLock::Acquire(path, {.steal = options.steal_lock}));
    RemoveTemporaries(path);
    std::error_code error;
    // Failure records of earlier attempts, which may have had more ranks.
    for (const char* const records : {"abort", "flight"}) fs::remove_all(path / records, error);
    fs::create_directories(path / "logs", error);
    return Concat(folder.is_new_ ? '+' : '=', RandomHex(8));
  });
  folder.is_new_ = opened[0] == '+';
  folder.attempt_ = opened.substr(1);
  return folder;
}

RunFolder::RunFolder(RunFolder&& other) noexcept
    : path_(std::move(other.path_)),
      attempt_(std::move(other.attempt_)),
      is_new_(other.is_new_),
      created_(std::exchange(other.created_, {})),
      lock_(std::move(other.lock_)) {}

// A failed start leaves nothing that looks like a run. Without the lock, files in the folder may
// belong to another start that was faster. Then only empty folders are removed.
RunFolder::~RunFolder() {
  if (created_.empty()) return;
  std::error_code ignored;
  if (lock_) {
    fs::remove_all(created_.back(), ignored);
    created_.pop_back();
  } else {
    fs::remove(path_ / "ckpt", ignored);
  }
  while (!created_.empty() && fs::remove(created_.back(), ignored)) created_.pop_back();
}

bool RunFolder::finished() const {
  std::error_code ignored;
  return fs::exists(path_ / "DONE", ignored);
}

fs::path RunFolder::LogFile(int rank) const {
  const std::string digits = std::to_string(rank);
  const std::string zeros(5 - std::min<size_t>(5, digits.size()), '0');
  return path_ / "logs" / Concat("r", zeros, digits, ".log");
}

void RunFolder::WriteConfig(const std::string& text) const {
  AtomicWriteFile(path_ / "config.textproto", text, ExitCode::kEnvironment);
}

bool RunFolder::HasTokenizerOf(const data::Dataset& dataset) const {
  const fs::path target = path_ / "tokenizer";
  std::error_code error;
  if (!fs::exists(fs::symlink_status(target, error))) return false;
  data::RequireSameTokens(dataset, *data::LoadTokenizer(target), path_.string());
  return true;
}

void RunFolder::CopyTokenizer(const data::Dataset& dataset) const {
  if (HasTokenizerOf(dataset)) return;
  const fs::path target = path_ / "tokenizer";
  std::error_code error;
  const fs::path temporary = path_ / ("tokenizer.tmp-" + attempt_);
  fs::create_directories(temporary, error);
  HL_CHECK_AS(ExitCode::kEnvironment, !error, "cannot create ", temporary.string(), ": ",
              error.message());
  dataset.LoadTokenizer()->Save(temporary);
  PublishDirectory(temporary, target, ExitCode::kEnvironment);
}

void RunFolder::WriteHeartbeat(int64_t step, const char* phase) const {
  const nlohmann::ordered_json line = {{"step", step},
                                       {"phase", phase},
                                       {"unix_ms", UnixMilliseconds()},
                                       {"pid", ::getpid()},
                                       {"attempt", attempt_}};
  AtomicWriteFile(path_ / "heartbeat.json", line.dump() + "\n", ExitCode::kEnvironment);
}

void RunFolder::WriteDone(int64_t step) const {
  AtomicWriteFile(path_ / "DONE", Concat("step ", step, "\n"), ExitCode::kEnvironment);
}

void RunFolder::RemoveDone() const {
  std::error_code error;
  fs::remove(path_ / "DONE", error);
}

std::string RecordAbort(const fs::path& run_dir, int rank, const std::string& cause,
                        bool is_consequence) {
  std::error_code ignored;
  if (run_dir.empty() || !fs::exists(run_dir, ignored)) return cause;
  fs::create_directories(run_dir / "abort", ignored);
  const fs::path first = run_dir / "abort" / "FIRST";
  // A collective usually fails because another rank failed, which is about to write the cause.
  for (int tries = 0; is_consequence && tries < 20 && !fs::exists(first, ignored); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const Fd fd(::open(first.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (fd) {
    const std::string text = Concat("rank ", rank, ": ", cause, "\n");
    if (::write(fd.get(), text.data(), text.size()) < 0)
      HL_WARN("train", "cannot write abort/FIRST");
    return cause;
  }
  // The rank that created the file may not have written it yet.
  try {
    for (int tries = 0; tries < 20; ++tries) {
      const std::string text = ReadFile(first, ExitCode::kInternal);
      if (!text.empty()) return Concat("stopped because another rank failed first: ", text);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  } catch (const Error&) {  // The file is unreadable, so this rank reports its own error.
  }
  return cause;
}

namespace {

// Returns an empty string if `libraries` does not have the name, because the build lacks the
// library.
std::string VersionOf(std::string_view name, const std::vector<LibraryVersion>& libraries) {
  for (const LibraryVersion& library : libraries)
    if (library.name == name) return library.loaded.empty() ? library.built : library.loaded;
  return "";
}

}  // namespace

ckpt::Versions VersionsHere() {
  const BuildInfo build = GetBuildInfo();
  const std::vector<LibraryVersion> communication = dist::CommunicationLibraries();
  return {.git_hash = build.git_hash,
          .git_dirty = build.git_dirty,
          .halflife = build.version,
          .torch = TORCH_VERSION,
          .cuda = VersionOf("CUDA runtime", communication),
          .nccl = VersionOf("NCCL", communication),
          .mpi = VersionOf("MPI library", communication),
          .hdf5 = VersionOf("HDF5", data::DataLibraries())};
}

}  // namespace halflife::train
