#include "ckpt/step_dir.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "core/error.h"
#include "core/fault.h"
#include "core/files.h"
#include "core/log.h"

namespace halflife::ckpt {
namespace {

namespace fs = std::filesystem;
using internal::ErrnoText;

constexpr std::string_view kStepPrefix = "step_";
constexpr std::string_view kTemporaryPrefix = ".tmp_step_";
constexpr size_t kStepDigits = 12;
constexpr char kKeepName[] = "KEEP", kOriginName[] = "ORIGIN", kTrashName[] = ".trash";

void RenameDurably(const fs::path& from, const fs::path& to) {
  HL_CHECK_AS(ExitCode::kCheckpointIo, ::rename(from.c_str(), to.c_str()) == 0, "cannot rename ",
              from.string(), " to ", to.string(), ": ", ErrnoText(errno));
  FsyncDirectory(from.parent_path(), ExitCode::kCheckpointIo);
}

fs::path FreshName(const fs::path& wanted) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(wanted, ignored))) return wanted;
  fs::path other = wanted;
  other += Concat(".", RandomHex(8));
  return other;
}

// Renames a step to .superseded. Throws Error kCheckpointIo. `why` ends with "step_N is ...".
void LeaveStep(const StepDir& step, const std::string& why) {
  const fs::path aside = SetAside(step.path, "superseded");
  HL_WARN("ckpt", step.path.filename().string(), " is ", why,
          ", from which this run goes on; it was renamed to ", aside.filename().string());
}

// Deletes the path unless it is a folder. A link in the place of the trash could lead to a folder
// that must not be emptied.
void RemoveUnlessFolder(const fs::path& trash) {
  if (!fs::is_directory(fs::symlink_status(trash))) fs::remove(trash);
}

// Deletes depth first. std::filesystem::remove_all has no point at which it could be stopped.
void Unlink(const fs::path& path) {
  if (fs::is_directory(fs::symlink_status(path))) {
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) Unlink(entry.path());
  }
  HL_FAULT_POINT("ckpt.gc.unlink", ExitCode::kCheckpointIo);
  fs::remove(path);
}

}  // namespace

std::string StepName(uint64_t step) {
  const std::string digits = std::to_string(step);
  const size_t zeros = digits.size() < kStepDigits ? kStepDigits - digits.size() : 0;
  return Concat(kStepPrefix, std::string(zeros, '0'), digits);
}

std::string TemporaryName(uint64_t step, const std::string& attempt) {
  return Concat(".tmp_", StepName(step), ".", attempt);
}

std::optional<StepDir> ParseStepName(const fs::path& path) {
  const std::string name = path.filename().string();
  const bool temporary = name.starts_with(kTemporaryPrefix);
  if (!temporary && !name.starts_with(kStepPrefix)) return std::nullopt;
  StepDir dir{.path = path};
  const char* const digits =
      name.data() + (temporary ? kTemporaryPrefix.size() : kStepPrefix.size());
  const auto [end, error] = std::from_chars(digits, name.data() + name.size(), dir.step);
  if (error != std::errc() || end - digits < static_cast<ptrdiff_t>(kStepDigits)) {
    return std::nullopt;
  }
  const std::string_view rest(end, name.data() + name.size() - end);
  if (temporary) {
    dir.kind = StepDir::Kind::kTemporary;
  } else if (rest == ".bad" || rest.starts_with(".bad.")) {
    dir.kind = StepDir::Kind::kBad;
  } else if (rest == ".superseded" || rest.starts_with(".superseded.")) {
    dir.kind = StepDir::Kind::kSuperseded;
  } else if (!rest.empty()) {
    return std::nullopt;
  }
  return dir;
}

std::vector<StepDir> ListSteps(const fs::path& ckpt_dir) {
  std::vector<StepDir> steps;
  std::error_code error;
  fs::directory_iterator it(ckpt_dir, error);
  if (error == std::errc::no_such_file_or_directory) return steps;
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    if (auto step = ParseStepName(it->path())) steps.push_back(std::move(*step));
  }
  HL_CHECK_AS(ExitCode::kCheckpointIo, !error, "cannot list ", ckpt_dir.string(), ": ",
              error.message());
  std::sort(steps.begin(), steps.end(), [](const StepDir& a, const StepDir& b) {
    return a.step != b.step ? a.step > b.step : a.path < b.path;
  });
  return steps;
}

std::vector<StepDir> ListPublished(const fs::path& ckpt_dir) {
  std::vector<StepDir> steps = ListSteps(ckpt_dir);
  std::erase_if(steps, [](const StepDir& s) { return s.kind != StepDir::Kind::kPublished; });
  return steps;
}

void WriteDurably(const fs::path& path, std::string_view bytes) {
  Fd fd = OpenFile(path, O_WRONLY | O_CREAT | O_EXCL, ExitCode::kCheckpointIo);
  WriteAll(fd.get(), bytes.data(), bytes.size(), path, ExitCode::kCheckpointIo);
  Fsync(fd.get(), path, ExitCode::kCheckpointIo);
  fd.Close(path, ExitCode::kCheckpointIo);
}

std::string SumsText(const Manifest& manifest, Hash128 manifest_hash, Hash128 text_hash) {
  std::string sums;
  const auto add = [&](Hash128 hash, const std::string& name) {
    sums += Concat(ToHex(hash), "  ", name, "\n");
  };
  for (const FileEntry& file : manifest.files) add(file.hash, file.name);
  add(manifest_hash, kManifestName);
  add(text_hash, kManifestTextName);
  return sums;
}

std::string WriteManifestFiles(const Manifest& manifest, const fs::path& step_dir) {
  std::string bytes = EncodeManifest(manifest);
  const std::string text = ManifestText(bytes);
  WriteDurably(step_dir / kManifestName, bytes);
  WriteDurably(step_dir / kManifestTextName, text);
  WriteDurably(step_dir / kSumsName, SumsText(manifest, HashBytes(bytes), HashBytes(text)));
  FsyncDirectory(step_dir, ExitCode::kCheckpointIo);
  return bytes;
}

fs::path SetAside(const fs::path& step_dir, const std::string& ending) {
  fs::path wanted = step_dir;
  wanted += "." + ending;
  const fs::path to = FreshName(wanted);
  RenameDurably(step_dir, to);
  return to;
}

void SetNewerAside(const fs::path& ckpt_dir, uint64_t step) {
  for (const StepDir& newer : ListPublished(ckpt_dir)) {
    if (newer.step > step) LeaveStep(newer, Concat("newer than step ", step));
  }
}

void SetAllAside(const fs::path& ckpt_dir, const fs::path& step_dir) {
  for (const StepDir& other : ListPublished(ckpt_dir))
    LeaveStep(other, Concat("not of the branch of ", step_dir.string()));
}

fs::path MoveToTrash(const fs::path& ckpt_dir, const fs::path& victim) {
  const fs::path trash = ckpt_dir / kTrashName;
  try {
    RemoveUnlessFolder(trash);
    fs::create_directory(trash);
  } catch (const fs::filesystem_error& error) {
    HL_FAIL(ExitCode::kCheckpointIo, "cannot create ", trash.string(), ": ",
            error.code().message());
  }
  const fs::path to = trash / (victim.filename().string() + "." + RandomHex(8));
  RenameDurably(victim, to);
  return to;
}

void RestoreLastStep(const fs::path& ckpt_dir) {
  std::error_code error;
  if (!ListPublished(ckpt_dir).empty() || !fs::is_directory(ckpt_dir / kTrashName, error)) return;
  std::optional<StepDir> newest;
  fs::path trashed;
  for (const fs::directory_entry& entry : fs::directory_iterator(ckpt_dir / kTrashName)) {
    const auto step = ParseStepName(entry.path().stem());  // without the ending of MoveToTrash
    if (!step || step->kind != StepDir::Kind::kPublished) continue;
    if (!newest || step->step > newest->step) newest = step, trashed = entry.path();
  }
  if (!newest) return;
  HL_WARN("ckpt", newest->path.string(),
          " was being replaced when the program ended, and is the only step. It is restored.");
  RestoreFromTrash(trashed, ckpt_dir / newest->path);
}

void RestoreFromTrash(const fs::path& trashed, const fs::path& step_dir) {
  RenameDurably(trashed, step_dir);
  FsyncDirectory(step_dir.parent_path(), ExitCode::kCheckpointIo);
}

void EmptyTrash(const fs::path& ckpt_dir) noexcept {
  const fs::path trash = ckpt_dir / kTrashName;
  try {
    RemoveUnlessFolder(trash);
    if (!fs::exists(trash)) return;
    for (const fs::directory_entry& entry : fs::directory_iterator(trash)) Unlink(entry.path());
  } catch (const fs::filesystem_error& error) {
    HL_WARN("ckpt", "could not empty ", trash.string(),
            " (tried again at the next save): ", TextOf(error));
  } catch (const std::exception& error) {
    HL_WARN("ckpt", "could not empty ", trash.string(),
            " (tried again at the next save): ", error.what());
  }
}

bool IsPinned(const fs::path& step_dir) {
  std::error_code ignored;
  return fs::exists(step_dir / kKeepName, ignored);
}

void Pin(const fs::path& step_dir) { WriteDurably(step_dir / kKeepName, ""); }

void WriteOrigin(const fs::path& ckpt_dir, const fs::path& step_dir) {
  std::error_code error;
  fs::create_directories(ckpt_dir, error);
  HL_CHECK_AS(ExitCode::kCheckpointIo, !error, "cannot create ", ckpt_dir.string(), ": ",
              error.message());
  AtomicWriteFile(ckpt_dir / kOriginName, step_dir.string() + "\n", ExitCode::kCheckpointIo);
}

fs::path ReadOrigin(const fs::path& ckpt_dir) {
  std::error_code error;
  if (!fs::exists(ckpt_dir / kOriginName, error)) return {};
  std::string path = ReadFile(ckpt_dir / kOriginName, ExitCode::kCheckpointIo);
  if (path.ends_with('\n')) path.pop_back();
  return path;
}

void RemoveOrigin(const fs::path& ckpt_dir) {
  std::error_code ignored;
  if (fs::remove(ckpt_dir / kOriginName, ignored))
    FsyncDirectory(ckpt_dir, ExitCode::kCheckpointIo);
}

void WriteLatest(const fs::path& ckpt_dir, const std::string& step_name, Hash128 manifest_hash) {
  AtomicWriteFile(ckpt_dir / "LATEST", Concat(step_name, " ", ToHex(manifest_hash), "\n"),
                  ExitCode::kCheckpointIo);
}

std::string ReadLatest(const fs::path& ckpt_dir) {
  std::error_code ignored;
  if (!fs::is_regular_file(ckpt_dir / "LATEST", ignored)) return "";
  constexpr uint64_t kLongestHint = 4096;
  std::error_code error;
  if (fs::file_size(ckpt_dir / "LATEST", error) > kLongestHint || error) return "";
  const std::string text = ReadFile(ckpt_dir / "LATEST", ExitCode::kCheckpointIo);
  const std::string name = text.substr(0, text.find_first_of(" \n"));
  const auto step = ParseStepName(name);
  return step && step->kind == StepDir::Kind::kPublished ? name : "";
}

}  // namespace halflife::ckpt
