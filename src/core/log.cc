#include "core/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "core/error.h"

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

// spdlog's own default logger writes to stdout, which belongs to the program's results.
[[maybe_unused]] const bool kOnStderrBeforeMain = [] {
  Init({});
  return true;
}();

}  // namespace

void Init(const Config& config) {
  auto console = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  console->set_level(ToSpdlog(config.rank == 0 ? config.console_level : Level::kWarn));
  std::vector<spdlog::sink_ptr> sinks{console};
  if (!config.file.empty()) {
    if (config.file.has_parent_path()) {
      std::filesystem::create_directories(config.file.parent_path());
    }
    sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(config.file.string()));
  }
  auto logger = std::make_shared<spdlog::logger>("halflife", sinks.begin(), sinks.end());
  logger->set_level(spdlog::level::debug);
  logger->set_pattern(Concat("[%H:%M:%S] [r", config.rank, "/", config.world_size, "] [%l] %v"));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

void Flush() { spdlog::default_logger()->flush(); }

void Write(Level level, std::string_view area, const std::string& text) {
  spdlog::log(ToSpdlog(level), "{}: {}", area, text);
}

Level ParseLevel(std::string_view name) {
  if (name == "debug") return Level::kDebug;
  if (name == "info") return Level::kInfo;
  if (name == "warn") return Level::kWarn;
  if (name == "error") return Level::kError;
  HL_FAIL(ExitCode::kUsage, "log level '", name, "' is unknown; use debug, info, warn or error");
}

}  // namespace halflife::log
