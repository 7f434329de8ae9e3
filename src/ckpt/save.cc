// CheckpointStore::Save: the phases of a commit, each ended by one outcome for all ranks.
//
//   P0 open      rank 0   owner, free space, folder .tmp_step_N.<attempt>
//   P1 data      all      write and fsync own shard
//   P2 vote      all      any failure, or a rank missing after timeout_s, cancels
//   P3 seal      rank 0   coverage, manifest, fsync
//   P4 publish   rank 0   rename to step_N, fsync ckpt/: the commit
//   P5 pointer   rank 0   LATEST
//   P6 announce  all      read back a sample of the own file, then retention
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "ckpt/collective.h"
#include "ckpt/damage.h"
#include "ckpt/shard_writer.h"
#include "ckpt/step_dir.h"
#include "ckpt/step_files.h"
#include "ckpt/store.h"
#include "core/clock.h"
#include "core/fault.h"
#include "core/files.h"
#include "core/host.h"
#include "core/human.h"
#include "core/log.h"

namespace halflife::ckpt {
namespace {

namespace fs = std::filesystem;

// The state of one Save. CheckpointStore::Save calls its phases in order.
class SaveSession {
 public:
  SaveSession(const fs::path& dir, dist::Communicator& control, const StoreConfig& config,
              const std::function<void()>& check_owner, const ArenaView& arena,
              const StepState& state)
      : dir_(dir),
        control_(control),
        config_(config),
        check_owner_(check_owner),
        arena_(arena),
        state_(state),
        final_path_(dir / StepName(state.step)) {}

  void Open();
  void WriteAndVote();
  void SealAndPublish();
  void SampleBack();
  void Retain() const;

  uint64_t bytes() const { return manifest_.total_bytes; }
  const fs::path& path() const { return final_path_; }

 private:
  std::string OpenAttempt() const;
  std::string WriteOwnPart();
  void Assemble(const std::vector<std::string>& parts);
  void MakeWay() const;
  void CancelAttempt() const noexcept;
  void CheckOwnSample() const;
  void WithdrawStep() const noexcept;
  void CheckOwner() const {
    if (check_owner_) check_owner_();
  }

  const fs::path& dir_;
  dist::Communicator& control_;
  const StoreConfig& config_;
  const std::function<void()>& check_owner_;
  const ArenaView& arena_;
  const StepState& state_;
  const fs::path final_path_;
  std::string attempt_;
  fs::path temporary_;
  Manifest own_part_;
  Manifest manifest_;  // of the whole step, on every rank
  std::string hash_;   // of the bytes of manifest.pb
};

// --- P0 ---

void SaveSession::Open() {
  attempt_ = OnRankZero(control_, {"ckpt_open", 0}, [&] { return OpenAttempt(); });
  temporary_ = dir_ / TemporaryName(state_.step, attempt_);
}

std::string SaveSession::OpenAttempt() const {
  CheckOwner();
  std::error_code error;
  fs::create_directories(dir_, error);
  HL_CHECK_AS(ExitCode::kCheckpointIo, !error, "cannot create ", dir_.string(), ": ",
              error.message());
  EmptyTrash(dir_);  // of cancelled attempts: frees their space before it is asked for
  const auto needed =
      static_cast<uint64_t>(arena_.layout->num_parameters()) * sizeof(float) * arena_.arrays.size();
  const uint64_t free = FreeBytes(dir_, ExitCode::kCheckpointIo);
  HL_CHECK_AS(ExitCode::kCheckpointIo, free >= needed + needed / 10, "step ", state_.step,
              " needs ", HumanBytes(needed + needed / 10), " in ", dir_.string(), ", ",
              HumanBytes(free), " are free (", std::strerror(ENOSPC),
              "). Free space, or set ckpt.keep_last to keep fewer steps.");
  const std::string attempt = RandomHex(8);
  const fs::path temporary = dir_ / TemporaryName(state_.step, attempt);
  fs::create_directory(temporary, error);
  HL_CHECK_AS(ExitCode::kCheckpointIo, !error, "cannot create ", temporary.string(), ": ",
              error.message());
  FsyncDirectory(dir_, ExitCode::kCheckpointIo);
  return attempt;
}

// --- P1, P2 ---

void SaveSession::WriteAndVote() {
  // This runs outside of the vote's collective, to distinguish a late rank from a failed one.
  std::string own;
  std::exception_ptr failure;
  try {
    own = WriteOwnPart();
  } catch (...) {
    failure = std::current_exception();
  }
  try {
    ArriveWithin(control_, config_.timeout_s, {"ckpt_written", 0});
    Assemble(OnEveryRank(control_, {"ckpt_vote", 0}, [&] {
      if (failure) std::rethrow_exception(failure);
      HL_FAULT_POINT("ckpt.p2.vote", ExitCode::kCheckpointIo);
      return own;
    }));
  } catch (...) {
    if (control_.rank() == 0) CancelAttempt();
    throw;
  }
}

std::string SaveSession::WriteOwnPart() {
  const int rank = control_.rank();
  own_part_ = WriteShard(temporary_, PlanShard(arena_, rank),
                         {.step = state_.step, .rank = rank, .attempt = attempt_});
  own_part_.hosts = {HostName()};
  FsyncDirectory(temporary_, ExitCode::kCheckpointIo);
  return EncodeManifest(own_part_);
}

void SaveSession::Assemble(const std::vector<std::string>& parts) {
  manifest_.state = state_;
  manifest_.attempt = attempt_;
  manifest_.unix_ms = UnixMilliseconds();
  manifest_.tensors = TensorEntries(*arena_.layout);
  std::vector<std::string> arrays;
  for (const ArenaArray& array : arena_.arrays) arrays.push_back(array.name);
  manifest_.arrays = ArrayEntries(*arena_.layout, arrays);
  std::set<std::string> hosts;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const Manifest part = DecodeManifest(parts[rank], Concat("vote of rank ", rank));
    HL_CHECK(part.attempt == attempt_ && part.files.size() == 1 &&
                 part.files[0].rank == static_cast<int>(rank),
             "vote of rank ", rank, " belongs to another save");
    MergePart(part, &manifest_);
    hosts.insert(part.hosts.begin(), part.hosts.end());
  }
  manifest_.hosts.assign(hosts.begin(), hosts.end());
  manifest_.state.mesh.nodes = static_cast<int>(hosts.size());
}

// Best effort: an attempt that remains is found and removed by the next holder of the run folder.
void SaveSession::CancelAttempt() const noexcept {
  try {
    if (fs::exists(temporary_)) MoveToTrash(dir_, temporary_);
  } catch (const std::exception& error) {
    HL_WARN("ckpt", "could not move the cancelled attempt away: ", error.what());
  }
}

// --- P3, P4, P5 ---

void SaveSession::SealAndPublish() {
  hash_ = OnRankZero(control_, {"ckpt_commit", 0}, [&] {
    try {
      CheckCoverage(manifest_, "the step being saved");
      HL_FAULT_POINT("ckpt.p3.manifest", ExitCode::kCheckpointIo);
      const std::string bytes = WriteManifestFiles(manifest_, temporary_);
      CheckOwner();
      MakeWay();
      HL_FAULT_POINT("ckpt.p4.rename", ExitCode::kCheckpointIo);
      PublishDirectory(temporary_, final_path_, ExitCode::kCheckpointIo);
      HL_FAULT_POINT("ckpt.p5.latest", ExitCode::kCheckpointIo);
      WriteLatest(dir_, final_path_.filename().string(), HashBytes(bytes));
      return ToHex(HashBytes(bytes));
    } catch (const Error& error) {
      std::error_code ignored;
      const bool renamed = !fs::exists(temporary_, ignored);
      CancelAttempt();
      if (!renamed) throw;
      throw Error(error.code(), error.place(),
                  Concat("step ", state_.step, " is visible but unconfirmed, no older step is ",
                         "deleted: ", error.message()));
    }
  });
}

// Removes the steps that this one replaces before it is published. After a crash in between, the
// run resumes from an older step of this branch, never from a step of the abandoned branch. Newer
// steps exist here only if nothing was loaded, because a load renames them.
void SaveSession::MakeWay() const {
  SetNewerAside(dir_, state_.step);
  for (const StepDir& step : ListPublished(dir_)) {
    if (step.step == state_.step) MoveToTrash(dir_, step.path);
  }
}

// --- P6 ---

void SaveSession::SampleBack() {
  try {
    OnEveryRank(control_, {"ckpt_sample_back", 0}, [&] {
      CheckOwnSample();
      return std::string();
    });
  } catch (const DamageError& error) {
    if (control_.rank() == 0) WithdrawStep();
    HL_FAIL(ExitCode::kCheckpointIo, "step ", state_.step,
            " was written, but does not read back as written: ", error.message(),
            "; it was renamed to .bad");
  }
}

// Verifies the header, one random block and the last block of this rank's file, read from the disk
// and not from memory.
void SaveSession::CheckOwnSample() const {
  if (control_.rank() == 0) {
    CheckDamage(ToHex(HashBytes(ReadManifestBytes(final_path_))) == hash_, kManifestName,
                ": hash mismatch");
  }
  const StepFiles files(final_path_, own_part_);
  files.ForgetCached(0);
  files.CheckHeader(0);
  std::vector<std::pair<FileFragment, uint64_t>> blocks;
  for (const FileFragment& fragment : FragmentsOfFile(own_part_, 0)) {
    const uint64_t count = fragment.fragment->block_hashes.size();
    for (uint64_t block = 0; block < count; ++block) blocks.emplace_back(fragment, block);
  }
  if (blocks.empty()) return;
  const auto buffer = std::make_unique_for_overwrite<char[]>(kBlockBytes);
  for (const size_t i :
       {static_cast<size_t>(std::random_device()() % blocks.size()), blocks.size() - 1}) {
    const auto& [at, block] = blocks[i];
    files.ReadBlock(*at.tensor, *at.fragment, block, buffer.get());
  }
}

void SaveSession::WithdrawStep() const noexcept {
  try {
    SetAside(final_path_, "bad");
    fs::remove(dir_ / "LATEST");  // only a hint: the next load or save writes it again
  } catch (const std::exception& error) {
    HL_ERROR("ckpt", "could not rename ", final_path_.string(), " to .bad: ", error.what());
  }
}

void SaveSession::Retain() const {
  if (control_.rank() != 0) return;
  try {
    ApplyRetention(dir_, PlanRetention(dir_, config_.retention));
  } catch (const Error& error) {
    HL_WARN("ckpt", "old steps were not deleted: ", error.what());
  }
}

}  // namespace

CheckpointStore::CheckpointStore(fs::path ckpt_dir, dist::Communicator& control,
                                 const StoreConfig& config)
    : dir_(std::move(ckpt_dir)), control_(control), config_(config) {
  HL_CHECK_AS(ExitCode::kUsage, config.retention.keep_last >= 2, "ckpt.keep_last is ",
              config.retention.keep_last,
              "; at least 2 steps are kept, so that a damaged one has a predecessor");
}

SaveReport CheckpointStore::Save(const ArenaView& arena, const StepState& state) {
  HL_CHECK(arena.layout->num_slices() == control_.size(), "the arena has ",
           arena.layout->num_slices(), " slices for ", control_.size(), " ranks");
  HL_CHECK(!arena.arrays.empty() && arena.arrays[0].name == kMainArray,
           "the first array of an arena is main");
  const Stopwatch stopwatch;
  SaveSession session(dir_, control_, config_, ownership_check_, arena, state);
  session.Open();
  session.WriteAndVote();
  session.SealAndPublish();
  session.SampleBack();
  const double durable_seconds = stopwatch.Seconds();
  session.Retain();
  return {session.bytes(), stopwatch.Seconds(), durable_seconds, session.path()};
}

}  // namespace halflife::ckpt
