// Names and renames in a ckpt folder. Only rank 0 changes it, and only by renames, each of which is
// made durable at once:
//   step_000000001200               published
//   step_000000001200.bad           failed verification, kept for people
//   step_000000001200.superseded    of a branch that the run left for another step
//   .tmp_step_000000001300.<hex>    being written, or left over
//   .trash/<name>                   being deleted
//   LATEST                          a hint for people and scripts:
//                                   "step_000000001200 <manifest hash>"
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
// nullopt: not the name of a step.
std::optional<StepDir> ParseStepName(const std::filesystem::path& path);
// All of them, the newest step first; a folder that does not exist holds none. Error kCheckpointIo.
std::vector<StepDir> ListSteps(const std::filesystem::path& ckpt_dir);
std::vector<StepDir> ListPublished(const std::filesystem::path& ckpt_dir);

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

// Renames STEP to STEP.<ending>, or STEP.<ending>.<hex> where that exists, durably. Returns the new
// path.
std::filesystem::path SetAside(const std::filesystem::path& step_dir, const std::string& ending);
// Renames every published step above `step`, from which a run goes on, to .superseded, durably.
void SetNewerAside(const std::filesystem::path& ckpt_dir, uint64_t step);
// The same of every published step, for a run that goes on from `step_dir`, which is none of them.
// LATEST stays as it is: the launchers see by it whether such a run has saved a step yet.
void SetAllAside(const std::filesystem::path& ckpt_dir, const std::filesystem::path& step_dir);
// Renames into .trash, durably. Returns the new path.
std::filesystem::path MoveToTrash(const std::filesystem::path& ckpt_dir,
                                  const std::filesystem::path& victim);
// Deletes what .trash holds. A failure is logged and left for the next time.
void EmptyTrash(const std::filesystem::path& ckpt_dir) noexcept;

void WriteLatest(const std::filesystem::path& ckpt_dir, const std::string& step_name,
                 Hash128 manifest_hash);
// The step's name; empty: no LATEST, or not one that we write.
std::string ReadLatest(const std::filesystem::path& ckpt_dir);

}  // namespace halflife::ckpt
