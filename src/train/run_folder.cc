#include "train/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "ckpt/collective.h"
#include "core/error.h"
#include "core/log.h"
#include "data/token_agreement.h"

namespace halflife::train {
namespace fs = std::filesystem;

RunFolder RunFolder::Open(const fs::path& path, dist::RankContext& context,
                          const Options& options) {
  RunFolder folder;
  folder.path_ = path;
  folder.attempt_ = ckpt::OnRankZero(context.control(), {"run_folder", 0}, [&] {
    std::error_code error;
    fs::create_directories(path / "ckpt", error);
    HL_CHECK_AS(ExitCode::kEnvironment, !error, "cannot create the run folder ", path.string(),
                ": ", error.message(), "; choose another with --run");
    folder.lock_.emplace(ckpt::RunLock::Acquire(path, {.steal = options.steal_lock}));
    fs::remove_all(path / "abort", error);
    fs::create_directories(path / "logs", error);
    return RandomHex(8);
  });
  return folder;
}

bool RunFolder::finished() const { return fs::exists(path_ / "DONE"); }

void RunFolder::WriteConfig(const std::string& text) const {
  AtomicWriteFile(path_ / "config.textproto", text, ExitCode::kEnvironment);
}

void RunFolder::CopyTokenizer(const data::Dataset& dataset) const {
  const fs::path target = path_ / "tokenizer";
  if (fs::exists(target)) {
    data::RequireSameTokens(dataset, *data::LoadTokenizer(target), path_.string());
    return;
  }
  const fs::path temporary = path_ / ("tokenizer.tmp-" + attempt_);
  std::error_code error;
  fs::create_directories(temporary, error);
  HL_CHECK_AS(ExitCode::kEnvironment, !error, "cannot create ", temporary.string(), ": ",
              error.message());
  dataset.LoadTokenizer()->Save(temporary);
  PublishDirectory(temporary, target, ExitCode::kEnvironment);
}

void RunFolder::WriteHeartbeat(int64_t step, const char* phase) const {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const nlohmann::ordered_json line = {
      {"step", step},
      {"phase", phase},
      {"unix_ms", std::chrono::duration_cast<std::chrono::milliseconds>(now).count()},
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
  // A failed collective is mostly the echo of a rank that is about to write its own, better words.
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
  try {
    return Concat("stopped because another rank failed first: ",
                  ReadFile(first, ExitCode::kInternal));
  } catch (const Error&) {
    return cause;
  }
}

}  // namespace halflife::train
