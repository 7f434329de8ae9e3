#include "sweep/sweep_folder.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_text.h"

namespace halflife::sweep {
namespace {

namespace fs = std::filesystem;

// In the order of TrialState.
constexpr const char* kStateNames[] = {"pending", "running", "stopped", "failed", "finished"};

}  // namespace

const char* NameOf(TrialState state) { return kStateNames[static_cast<size_t>(state)]; }

bool IsThere(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

void SweepFolder::Make() const {
  for (const char* part : {"datasets", "recipes", "runs", "logs", "status"}) {
    std::error_code error;
    fs::create_directories(path_ / part, error);
    HL_CHECK_AS(ExitCode::kEnvironment, !error, "cannot make ", (path_ / part).string(), ": ",
                error.message(), ". Use another --out.");
  }
}

fs::path SweepFolder::dataset_words(const std::string& dataset) const {
  return datasets() / (dataset + ".prepare");
}
fs::path SweepFolder::recipe(const std::string& trial) const {
  return path_ / "recipes" / (trial + ".textproto");
}
fs::path SweepFolder::run(const std::string& trial) const { return path_ / "runs" / trial; }
fs::path SweepFolder::log(const std::string& trial) const {
  return path_ / "logs" / (trial + ".log");
}
fs::path SweepFolder::dataset_log(const std::string& dataset) const {
  return path_ / "logs" / ("dataset-" + dataset + ".log");
}
fs::path SweepFolder::status(const std::string& trial) const {
  return path_ / "status" / (trial + ".json");
}

TrialStatus SweepFolder::Status(const std::string& trial) const {
  TrialStatus found;
  if (IsThere(status(trial))) {
    const auto json = nlohmann::json::parse(ReadJsonText(status(trial)), nullptr,
                                            /*allow_exceptions=*/false);
    HL_CHECK_AS(ExitCode::kEnvironment, json.is_object(), status(trial).string(),
                " is damaged. Remove it; the run then continues from its checkpoints.");
    for (size_t state = 0; state < std::size(kStateNames); ++state)
      if (json.value("state", "") == kStateNames[state])
        found.state = static_cast<TrialState>(state);
    found.exit_code = json.value("exit_code", 0);
    found.attempts = json.value("attempts", 0);
    found.seconds = json.value("seconds", 0.0);
    found.message = json.value("message", "");
  }
  // Whether a run is finished is known from the run itself: it may have been finished by hand, or
  // removed to be trained again.
  if (IsThere(run(trial) / "DONE")) {
    found.state = TrialState::kFinished;
    found.exit_code = 0;
    found.message.clear();
  } else if (found.state == TrialState::kFinished) {
    found = {};
  }
  return found;
}

void SweepFolder::SetStatus(const std::string& trial, const TrialStatus& set) const {
  const nlohmann::ordered_json json = {{"state", NameOf(set.state)},
                                       {"exit_code", set.exit_code},
                                       {"attempts", set.attempts},
                                       {"seconds", set.seconds},
                                       {"message", set.message}};
  AtomicWriteFile(status(trial), JsonText(json, 2) + "\n", ExitCode::kEnvironment);
}

std::optional<Fd> SweepFolder::Lock(const std::string& trial) const {
  Fd fd = OpenFile(path_ / "status" / (trial + ".lock"), O_RDWR | O_CREAT | O_CLOEXEC,
                   ExitCode::kEnvironment);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return std::nullopt;
  return fd;
}

bool SweepFolder::Is(const fs::path& path) { return IsThere(SweepFolder(path).sweep_file()); }

std::string LastWords(const fs::path& log, uint64_t begin) {
  std::ifstream in(log);
  in.seekg(static_cast<std::streamoff>(begin));
  std::string last, error;
  bool in_error = false;
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) continue;
    last = line;
    const bool begins = line.starts_with("[");  // the time of a message; others continue one
    if (begins) in_error = line.find("[error]") != std::string::npos;
    if (begins && in_error) error = line;
    if (!begins && in_error) error += "\n" + line;
  }
  return error.empty() ? last : error;
}

}  // namespace halflife::sweep
