#include "core/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "core/error.h"
#include "core/files.h"

namespace halflife::log {
namespace {

spdlog::level::level_enum ToSpdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

thread_local int thread_rank = 0;  // 0 unless the process runs several ranks as threads

// The default logger of spdlog writes to stdout, which is reserved for the program's results.
[[maybe_unused]] const bool kOnStderrBeforeMain = [] {
  Init({});
  return true;
}();

}  // namespace

namespace {

spdlog::sink_ptr OpenLogFile(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  constexpr auto kCode = ExitCode::kEnvironment;
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  HL_CHECK_AS(kCode, !error, "cannot create the folder of the log ", path.string(), ": ",
              error.message());
  RequireAppendable(path, kCode);
  try {
    return std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
  } catch (const spdlog::spdlog_ex& failure) {
    HL_FAIL(kCode, "cannot open the log: ", failure.what());
  }
}

}  // namespace

void Init(const Config& config) {
  auto console = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  console->set_level(ToSpdlog(config.rank == 0 ? config.console_level : Level::kWarn));
  std::vector<spdlog::sink_ptr> sinks{console};
  if (!config.file.empty()) sinks.push_back(OpenLogFile(config.file));
  auto logger = std::make_shared<spdlog::logger>("halflife", sinks.begin(), sinks.end());
  logger->set_level(spdlog::level::debug);
  const std::string rank =
      config.world_size == 1 ? "" : Concat("[r", config.rank, "/", config.world_size, "] ");
  logger->set_pattern(Concat("[%H:%M:%S] ", rank, "[%l] %v"));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

void Flush() { spdlog::default_logger()->flush(); }

void SpeakAsRank(int rank) { thread_rank = rank; }
int RankOfThisThread() { return thread_rank; }

void Write(Level level, std::string_view area, const std::string& text) {
  if (thread_rank == 0) {
    spdlog::log(ToSpdlog(level), "{}: {}", area, text);
  } else if (level == Level::kWarn || level == Level::kError) {
    spdlog::log(ToSpdlog(level), "rank {}: {}: {}", thread_rank, area, text);
  }
}

Level ParseLevel(std::string_view name) {
  if (name == "debug") return Level::kDebug;
  if (name == "info") return Level::kInfo;
  if (name == "warn") return Level::kWarn;
  if (name == "error") return Level::kError;
  HL_FAIL(ExitCode::kUsage, "log level '", name, "' is unknown. Use debug, info, warn or error.");
}

}  // namespace halflife::log
