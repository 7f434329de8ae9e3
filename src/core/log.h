// Logging: `[17:05:09] [r3/8] [info] ckpt: wrote step 1200 (3.2 GiB in 4.1 s)`. A message starts
// with its area, and values have units. With a world size of 1 the `[r0/1]` is omitted. Rank 0 logs
// to stderr at level info, the other ranks at level warn; the log file receives all levels. spdlog
// is used only in the .cc files of core.
//
//   log::Init({.rank = rank, .world_size = world, .file = run_dir / "logs/r00000.log"});
//   HL_INFO("ckpt", "wrote step ", step, " (", bytes, " bytes)");
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/concat.h"

namespace halflife::log {

enum class Level { kDebug, kInfo, kWarn, kError };

struct Config {
  int rank = 0;
  int world_size = 1;
  Level console_level = Level::kInfo;  // on rank 0; other ranks log at warn and above
  std::filesystem::path file;          // lines are appended; empty: log only to stderr
};

// Until Init is called, messages go to stderr in the form of a world of one rank. Call Init again
// to add the file once the run folder is known. Throws Error kEnvironment if the file cannot be
// opened, or is a pipe or a folder.
void Init(const Config& config);
void Flush();

// Thread-safe.
void Write(Level level, std::string_view area, const std::string& text);

Level ParseLevel(std::string_view name);  // debug | info | warn | error; else Error kUsage

// For processes whose ranks are threads: attributes all further messages of this thread to `rank`.
// Ranks other than 0 log only warnings and errors, prefixed with their rank. All ranks of the
// process share one log file.
void SpeakAsRank(int rank);
int RankOfThisThread();  // 0 unless SpeakAsRank was called on this thread

}  // namespace halflife::log

#define HL_DEBUG(area, ...) \
  ::halflife::log::Write(::halflife::log::Level::kDebug, area, ::halflife::Concat(__VA_ARGS__))
#define HL_INFO(area, ...) \
  ::halflife::log::Write(::halflife::log::Level::kInfo, area, ::halflife::Concat(__VA_ARGS__))
#define HL_WARN(area, ...) \
  ::halflife::log::Write(::halflife::log::Level::kWarn, area, ::halflife::Concat(__VA_ARGS__))
#define HL_ERROR(area, ...) \
  ::halflife::log::Write(::halflife::log::Level::kError, area, ::halflife::Concat(__VA_ARGS__))
