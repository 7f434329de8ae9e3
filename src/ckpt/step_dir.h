// Names and renames in a ckpt folder. Only rank 0 changes it, and only by renames, each of which is
// made durable at once:
//   step_000000001200               published
//   step_000000001200.bad           failed verification, kept for people
//   step_000000001200.superseded    of a branch that the run abandoned for another step
//   .tmp_step_000000001300.<hex>    being written, or left by a crash
//   .trash/<name>                   being deleted
//   LATEST                          a hint for people and scripts:
//                                   "step_000000001200 <manifest hash>"
//   ORIGIN                          the path of a step in another folder from which the run began
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/manifest.h"
#include "core/hash.h"

namespace halflife::ckpt {

std::string StepName(uint64_t step);
std::string TemporaryName(uint64_t step, const std::string& attempt);

struct StepDir {
  enum class Kind { kPublished, kBad, kSuperseded, kTemporary };
  Kind kind = Kind::kPublished;
  uint64_t step = 0;
  std::filesystem::path path;
};
// nullopt: this is not the name of a step.
std::optional<StepDir> ParseStepName(const std::filesystem::path& path);
// Returns all steps, the newest first, or nothing if the folder does not exist. Throws Error
// kCheckpointIo.
std::vector<StepDir> ListSteps(const std::filesystem::path& ckpt_dir);
std::vector<StepDir> ListPublished(const std::filesystem::path& ckpt_dir);

// Returns true if a person has put a file KEEP into the step. Such a step is never deleted, and a
// step that replaces it is pinned as well.
bool IsPinned(const std::filesystem::path& step_dir);
// Pins an unpublished step.
void Pin(const std::filesystem::path& step_dir);

// Creates, writes, fsyncs and closes a new file.
void WriteDurably(const std::filesystem::path& path, std::string_view bytes);

// Files next to manifest.pb for people. A load does not read them.
constexpr char kManifestTextName[] = "manifest.txtpb";
constexpr char kSumsName[] = "XXH128SUMS";

// Returns the text of XXH128SUMS in the format of `xxh128sum -c`: one line per shard file, then
// manifest.pb and manifest.txtpb.
std::string SumsText(const Manifest& manifest, Hash128 manifest_hash, Hash128 text_hash);

// Writes manifest.pb, manifest.txtpb and XXH128SUMS into an unpublished step. Returns the bytes of
// manifest.pb.
std::string WriteManifestFiles(const Manifest& manifest, const std::filesystem::path& step_dir);

// Durably renames STEP to STEP.<ending>, or to STEP.<ending>.<hex> if that exists. Returns the new
// path.
std::filesystem::path SetAside(const std::filesystem::path& step_dir, const std::string& ending);
// Durably renames every published step above `step`, from which a run continues, to .superseded.
void SetNewerAside(const std::filesystem::path& ckpt_dir, uint64_t step);
// Does the same with every published step, for a run that continues from `step_dir` in another
// folder. LATEST is not changed: from it, the launchers see whether such a run has saved a step.
void SetAllAside(const std::filesystem::path& ckpt_dir, const std::filesystem::path& step_dir);
// Durably renames a path in .trash, which MoveToTrash has returned, back to `step_dir`.
void RestoreFromTrash(const std::filesystem::path& trashed, const std::filesystem::path& step_dir);
// Durably renames the path into .trash. Returns the new path.
std::filesystem::path MoveToTrash(const std::filesystem::path& ckpt_dir,
                                  const std::filesystem::path& victim);
// If no step is published, restores the newest one in .trash: a save that replaced it was
// interrupted before it could publish the new one.
void RestoreLastStep(const std::filesystem::path& ckpt_dir);
// Deletes the contents of .trash. A failure is logged, and the next call tries again.
void EmptyTrash(const std::filesystem::path& ckpt_dir) noexcept;

// A run that continues from a step in another folder writes ORIGIN before it trains. As long as it
// has saved no step of its own, it can only be started again from there, and not from new weights.
void WriteOrigin(const std::filesystem::path& ckpt_dir, const std::filesystem::path& step_dir);
// Returns an empty path if there is no ORIGIN.
std::filesystem::path ReadOrigin(const std::filesystem::path& ckpt_dir);
void RemoveOrigin(const std::filesystem::path& ckpt_dir);

void WriteLatest(const std::filesystem::path& ckpt_dir, const std::string& step_name,
                 Hash128 manifest_hash);
// Returns the step's name. Empty: there is no LATEST, or the program has not written it.
std::string ReadLatest(const std::filesystem::path& ckpt_dir);

}  // namespace halflife::ckpt
