// CheckpointStore::Load: loads the newest step whose bytes all verify, or throws. Rank 0 reads
// names and manifests. The ranks read and verify each stored block once, and send its elements to
// the ranks whose slices they are in. Arrays that are whole on every rank are then gathered.
#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "ckpt/agreement.h"
#include "ckpt/collective.h"
#include "ckpt/damage.h"
#include "ckpt/slice_reader.h"
#include "ckpt/step_dir.h"
#include "ckpt/step_files.h"
#include "ckpt/store.h"
#include "core/files.h"
#include "core/human.h"
#include "core/log.h"

namespace halflife::ckpt {
namespace {

namespace fs = std::filesystem;

// A damaged step that a load skipped.
struct Passed {
  uint64_t step = 0;
  std::string text;
  std::optional<uint64_t> tokens;  // if its manifest was readable
};

class LoadSession {
 public:
  LoadSession(const fs::path& dir, dist::Communicator& control, const Expectation& expectation,
              const ArenaView& arena, const std::function<ArenaView()>& allocate)
      : dir_(dir),
        control_(control),
        expectation_(expectation),
        arena_(arena),
        allocate_(allocate) {}

  std::optional<LoadReport> Newest();
  LoadReport Exactly(const fs::path& step_dir);
  void LeaveBranch(LoadReport& report);
  void RefuseExisting();
  void CleanUp();

 private:
  void RequireNoOrigin() const;
  std::vector<fs::path> Candidates();
  Manifest FetchManifest(const fs::path& step_dir);
  void ReadArrays(const fs::path& step_dir, const Manifest& manifest);
  void GatherArrays();
  void CompareArrays();
  LoadReport Try(const fs::path& step_dir, Passed* passed);
  void RenameBad(const fs::path& step_dir);
  void RepairLatest(const fs::path& step_dir);
  std::vector<std::string> Banners(const std::vector<Passed>& passed, const StepState& state) const;

  const fs::path& dir_;
  dist::Communicator& control_;
  const Expectation& expectation_;
  ArenaView arena_;
  std::function<ArenaView()> allocate_;  // empty: `arena_` has memory
  std::string manifest_hash_;
};

// Deletes the remains of earlier writers. Only step_N folders are ever loaded.
void LoadSession::CleanUp() {
  OnRankZero(control_, {"ckpt_clean_up", 0}, [&] {
    for (const StepDir& step : WithRetries([&] { return ListSteps(dir_); })) {
      if (step.kind != StepDir::Kind::kTemporary) continue;
      HL_INFO("ckpt", "removing the unfinished attempt ", step.path.filename().string());
      MoveToTrash(dir_, step.path);
    }
    RestoreLastStep(dir_);
    EmptyTrash(dir_);
    RemoveTemporaries(dir_);
    return std::string();
  });
}

// A run that began from another folder's step must not begin again from new weights.
void LoadSession::RequireNoOrigin() const {
  const std::string origin = ReadOrigin(dir_).string();
  HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, origin.empty(), "the run in ",
              dir_.parent_path().string(), " began from ", origin,
              " and has saved no step since. Start the same command with --resume path=", origin,
              " (and with its --skip-data, if it had one), or use another run folder.");
}

void LoadSession::RefuseExisting() {
  OnRankZero(control_, {"ckpt_resume_none", 0}, [&] {
    const std::vector<StepDir> steps = WithRetries([&] { return ListSteps(dir_); });
    const auto found = std::find_if(steps.begin(), steps.end(), [](const StepDir& step) {
      return step.kind != StepDir::Kind::kTemporary;
    });
    HL_CHECK_AS(ExitCode::kUsage, found == steps.end(), dir_.string(), " already holds ",
                found == steps.end() ? "" : found->path.filename().string(),
                "; a fresh start needs an empty run folder: use --resume auto, or another --run");
    RemoveOrigin(dir_);
    return std::string();
  });
}

// Returns the published steps, the newest first. Throws if there are only bad steps, because a
// fresh start in their folder would be wrong.
std::vector<fs::path> LoadSession::Candidates() {
  const std::string names = OnRankZero(control_, {"ckpt_candidates", 0}, [&] {
    std::string published, others;
    bool damaged = false;
    for (const StepDir& step : WithRetries([&] { return ListSteps(dir_); })) {
      const std::string name = step.path.filename().string();
      if (step.kind == StepDir::Kind::kPublished) {
        published += name + "\n";
      } else if (step.kind != StepDir::Kind::kTemporary) {
        others += (others.empty() ? "" : ", ") + name;
        damaged = damaged || step.kind == StepDir::Kind::kBad;
      }
    }
    if (published.empty() && !damaged) RequireNoOrigin();
    HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, !published.empty() || others.empty(),
                "no usable checkpoint in ", dir_.string(), ", only ", others,
                "; restore a good step, or start afresh in another run folder");
    return published;
  });
  std::vector<fs::path> candidates;
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = names.find('\n', begin);
    candidates.push_back(dir_ / names.substr(begin, end - begin));
    begin = end + 1;
  }
  return candidates;
}

// Broadcasts rank 0's bytes and decodes them on every rank. Makes all checks that need no shard
// file.
Manifest LoadSession::FetchManifest(const fs::path& step_dir) {
  const std::string bytes = OnRankZero(control_, {"ckpt_manifest", 0}, [&] {
    return WithRetries([&] {
      std::string read = ReadManifestBytes(step_dir);
      const Manifest manifest = DecodeManifest(read, kManifestName);
      CheckCoverage(manifest, kManifestName);
      const auto named = ParseStepName(step_dir);
      CheckDamage(!named || named->step == manifest.state.step, kManifestName, " is of step ",
                  manifest.state.step);
      StepFiles(step_dir, manifest).CheckSizes();
      return read;
    });
  });
  manifest_hash_ = ToHex(HashBytes(bytes));
  OnEveryRank(
      control_, {"ckpt_manifest_hash", 0}, [&] { return manifest_hash_; },
      [](const std::vector<std::string>& hashes) {
        HL_CHECK(std::ranges::count(hashes, hashes[0]) == std::ssize(hashes),
                 "ranks received different manifests");
        return std::string();
      });
  return DecodeManifest(bytes, kManifestName);
}

void LoadSession::ReadArrays(const fs::path& step_dir, const Manifest& manifest) {
  std::optional<SliceReader> reader;
  OnEveryRank(control_, {"ckpt_plan", 0}, [&] {
    if (allocate_) arena_ = std::exchange(allocate_, {})();
    WithRetries([&] { reader.emplace(step_dir, manifest, arena_, control_); });
    return std::string();
  });
  reader->Read();
  GatherArrays();
  CompareArrays();
}

void LoadSession::GatherArrays() {
  if (control_.size() == 1) return;
  for (const ArenaArray& array : arena_.arrays) {
    int index = 0;
    for (const dist::Bucket& bucket : arena_.layout->buckets()) {
      if (bucket.end <= array.sliced_end) continue;  // this rank's slice is all it holds
      const int64_t length = (bucket.end - bucket.begin) / control_.size();
      float* const out = arena_.place(array, {.arena_begin = bucket.begin});
      control_
          .AllGather(Ref(out + control_.rank() * length, length),
                     Ref(out, bucket.end - bucket.begin), {"ckpt_gather", index++}, nullptr)
          .WaitHost();
    }
  }
}

void LoadSession::CompareArrays() {
  StreamHash hash;
  for (const ArenaArray& array : arena_.arrays) {
    const int64_t begin = array.sliced_end, count = arena_.layout->num_elements() - begin;
    hash.Update(arena_.place(array, {.arena_begin = begin}),
                static_cast<size_t>(count) * sizeof(float));
  }
  OnEveryRank(
      control_, {"ckpt_replicas", 0}, [&] { return ToHex(hash.Digest()); },
      [&](const std::vector<std::string>& hashes) {
        for (int rank = 0; rank < control_.size(); ++rank) {
          HL_CHECK(hashes[rank] == hashes[0], "the loaded weights differ between ranks: hash ",
                   hashes[rank], " on rank ", control_.WorldRank(rank), " and ", hashes[0],
                   " on rank ", control_.WorldRank(0));
        }
        return std::string();
      });
}

// Throws DamageError after filling in `passed`, so that the caller may fall back.
LoadReport LoadSession::Try(const fs::path& step_dir, Passed* passed) {
  if (const auto named = ParseStepName(step_dir)) passed->step = named->step;
  try {
    const Manifest manifest = FetchManifest(step_dir);
    passed->step = manifest.state.step;
    passed->tokens = manifest.state.data.tokens;
    CheckAgreement(manifest, step_dir.filename().string(), expectation_, arena_);
    if (expectation_.check_state) expectation_.check_state(manifest.state, step_dir);
    ReadArrays(step_dir, manifest);
    return {
        .state = manifest.state, .path = step_dir, .own = false, .fell_back = false, .damage = {}};
  } catch (const DamageError& error) {
    passed->text = error.message();
    throw;
  }
}

void LoadSession::RenameBad(const fs::path& step_dir) {
  OnRankZero(control_, {"ckpt_bad", 0}, [&] {
    SetAside(step_dir, "bad");
    return std::string();
  });
}

void LoadSession::RepairLatest(const fs::path& step_dir) {
  OnRankZero(control_, {"ckpt_latest", 0}, [&] {
    const std::string name = step_dir.filename().string(), latest = ReadLatest(dir_);
    if (latest == name) return std::string();
    HL_INFO("ckpt", "LATEST named ", latest.empty() ? "nothing" : latest, ", now ", name);
    AtomicWriteFile(dir_ / "LATEST", name + " " + manifest_hash_ + "\n", ExitCode::kCheckpointIo);
    return std::string();
  });
}

std::vector<std::string> LoadSession::Banners(const std::vector<Passed>& passed,
                                              const StepState& state) const {
  std::vector<std::string> banners;
  for (const Passed& bad : passed) {
    std::string tokens;
    if (bad.tokens && *bad.tokens >= state.data.tokens) {
      tokens =
          Concat(", ", HumanCount(static_cast<double>(*bad.tokens - state.data.tokens)), " tokens");
    }
    banners.push_back(Concat("CHECKPOINT step ", bad.step, " DAMAGED: ", bad.text,
                             ". FALLING BACK to step ", state.step, " (", bad.step - state.step,
                             " steps", tokens, " will be repeated)."));
  }
  return banners;
}

std::optional<LoadReport> LoadSession::Newest() {
  std::vector<Passed> passed;
  for (const fs::path& step_dir : Candidates()) {
    Passed candidate;
    try {
      LoadReport report = Try(step_dir, &candidate);
      report.own = true;
      report.fell_back = !passed.empty();
      report.damage = Banners(passed, report.state);
      if (control_.rank() == 0)
        for (const std::string& banner : report.damage) HL_ERROR("ckpt", banner);
      RepairLatest(step_dir);
      return report;
    } catch (const DamageError&) {
      if (control_.rank() == 0)
        HL_ERROR("ckpt", "step ", candidate.step, " is damaged: ", candidate.text);
    }
    passed.push_back(std::move(candidate));
    RenameBad(step_dir);
  }
  if (passed.empty()) return std::nullopt;
  std::string text;
  for (const Passed& bad : passed) text += Concat("\n  step ", bad.step, ": ", bad.text);
  HL_FAIL(ExitCode::kNoUsableCheckpoint, "no usable checkpoint in ", dir_.string(), ":", text,
          "\nThe damaged steps were renamed to .bad. Restore a good step, or start afresh in "
          "another run folder");
}

LoadReport LoadSession::Exactly(const fs::path& step_dir) {
  Passed passed;
  try {
    return Try(step_dir, &passed);
  } catch (const DamageError&) {
    std::error_code ignored;
    HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, fs::exists(step_dir, ignored), "there is no ",
                step_dir.string(), "; `halflife ckpt ls` lists the steps of a run");
    HL_CHECK_AS(ExitCode::kUsage,
                ParseStepName(step_dir) || fs::exists(step_dir / kManifestName, ignored),
                step_dir.string(), " is not the folder of a step. Use a step in it, for example ",
                (step_dir / "ckpt" / StepName(1200)).string(),
                "; `halflife ckpt ls` lists the steps of a run");
    throw DamageError(Concat(step_dir.string(), " is damaged: ", passed.text,
                             "; a step that is asked for by name has no substitute, --resume auto "
                             "looks for the newest good one"));
  }
}

// Renames the steps that a run abandons when it resumes from a step given by name: the newer steps,
// or all steps if the given one is in another folder. This happens before the run continues, for
// two reasons. (1) If such a run ended before its first save, the next start would resume from an
// abandoned step. (2) Abandoned steps with lower numbers would count as ancestors of the run:
// retention would delete the real ones, and a load would fall back to the wrong ones.
void LoadSession::LeaveBranch(LoadReport& report) {
  const std::string own = OnRankZero(control_, {"ckpt_leave_branch", 0}, [&] {
    const auto named = ParseStepName(report.path);
    if (!named || named->kind != StepDir::Kind::kPublished ||
        fs::weakly_canonical(report.path).parent_path() != fs::weakly_canonical(dir_)) {
      WriteOrigin(dir_, report.path);
      SetAllAside(dir_, report.path);
      return std::string();
    }
    SetNewerAside(dir_, report.state.step);
    return named->path.filename().string();
  });
  report.own = !own.empty();
  if (report.own) RepairLatest(dir_ / own);
}

// Returns the real path of step_dir, without a trailing slash and with links resolved.
fs::path OwnName(const fs::path& step_dir) {
  std::error_code error;
  const fs::path own = fs::canonical(step_dir, error);
  return error ? NamedFolder(step_dir) : own;
}

}  // namespace

ResumeRequest ParseResume(const std::string& text) {
  if (text == "auto") return {.mode = ResumeMode::kAuto, .step = 0, .path = {}};
  if (text == "none") return {.mode = ResumeMode::kNone, .step = 0, .path = {}};
  if (text.starts_with("path=") && text.size() > 5) {
    return {.mode = ResumeMode::kPath, .step = 0, .path = text.substr(5)};
  }
  ResumeRequest request{.mode = ResumeMode::kStep, .step = 0, .path = {}};
  const bool is_step = text.starts_with("step=");
  const char* const begin = text.data() + std::min<size_t>(5, text.size());
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(begin, end, request.step);
  HL_CHECK_AS(ExitCode::kUsage, is_step && error == std::errc() && stop == end, "--resume '", text,
              "' is not auto, none, step=N or path=DIR");
  return request;
}

std::optional<LoadReport> CheckpointStore::Load(const ResumeRequest& request,
                                                const Expectation& expectation,
                                                const ArenaView& arena,
                                                const std::function<ArenaView()>& allocate) {
  HL_CHECK(arena.layout->num_slices() == control_.size(), "the arena has ",
           arena.layout->num_slices(), " slices for ", control_.size(), " ranks");
  LoadSession session(dir_, control_, expectation, arena, allocate);
  if (request.mode == ResumeMode::kNone) session.RefuseExisting();
  session.CleanUp();
  if (request.mode == ResumeMode::kNone || request.mode == ResumeMode::kAuto) {
    std::optional<LoadReport> report;
    if (request.mode == ResumeMode::kAuto) report = session.Newest();
    if (!report) CheckAllowedNames(expectation, nullptr);
    return report;
  }
  LoadReport report = session.Exactly(
      request.mode == ResumeMode::kStep ? dir_ / StepName(request.step) : OwnName(request.path));
  session.LeaveBranch(report);
  return report;
}

}  // namespace halflife::ckpt
