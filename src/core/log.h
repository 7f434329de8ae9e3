// Logging: `[17:05:09] [r3/8] [info] ckpt: wrote step 1200 (3.2 GiB in 4.1 s)`. The area comes
// first, values carry units; a world of one has no `[r0/1]`. spdlog stays in .cc files of core.
// Rank 0 speaks at info on stderr, the others at warn; the file gets everything.
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
  Level console_level = Level::kInfo;  // of rank 0; other ranks speak at warn or above
  std::filesystem::path file;          // empty: console only; appended to
};

// Until Init, messages go to stderr as those of a world of one. Call again to add the file once the
// run folder is known. Error kEnvironment: the file cannot be opened, or is a pipe or a folder.
void Init(const Config& config);
void Flush();

// Any thread.
void Write(Level level, std::string_view area, const std::string& text);

Level ParseLevel(std::string_view name);  // debug | info | warn | error; else Error kUsage

}  // namespace halflife::log

#define HL_DEBUG(area, ...) \
  ::halflife::log::Write(::halflife::log::Level::kDebug, area, ::halflife::Concat(__VA_ARGS__))
#define HL_INFO(area, ...) \
  ::halflife::log::Write(::halflife::log::Level::kInfo, area, ::halflife::Concat(__VA_ARGS__))
#define HL_WARN(area, ...) \
  ::halflife::log::Write(::halflife::log::Level::kWarn, area, ::halflife::Concat(__VA_ARGS__))
#define HL_ERROR(area, ...) \
  ::halflife::log::Write(::halflife::log::Level::kError, area, ::halflife::Concat(__VA_ARGS__))
